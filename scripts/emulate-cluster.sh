#!/usr/bin/env bash
# Emulates a cluster on this machine: its hosts are network namespaces, their links have the speed you set. Needs root.
#   scripts/emulate-cluster.sh up --hosts 2 --rate 500mbit
#   scripts/emulate-cluster.sh run [--hosts N] [--cores C] -- build/lancet train configs/quickstart.json
#   scripts/emulate-cluster.sh rate 280mbit     sets the speed of all links, also while ranks run (500mbit, 1gbit, ...)
#   scripts/emulate-cluster.sh cut HOST         takes the host's link down; HOST is 1, or lancet1
#   scripts/emulate-cluster.sh restore HOST     brings it up again
#   scripts/emulate-cluster.sh status
#   scripts/emulate-cluster.sh down             removes the cluster, and does nothing where none is up
# `run` starts one rank on each host by Open MPI's own launcher and exits with the launcher's code. The ranks' messages
# take the limited links. The launcher's messages take unlimited links of their own, so that it survives a cut.
# --hosts N: use only the first N hosts. --cores C (default 1): each host has C cores of this machine, and all threads
# of its rank stay on them; with more hosts than cores, or with 0, nothing is pinned. The variable LANCET_CLUSTER=NAME
# (default lancet) names the cluster and its hosts, so that several clusters can be up. Your own OMPI_MCA_* variables
# still hold.
# Exit codes: 2 wrong usage, a cluster that is up already or is not up; 77 this machine or user cannot have a cluster.
set -euo pipefail

name=${LANCET_CLUSTER:-lancet}
head=$name-head          # the namespace that holds the switch and mpirun
data_net=10.77.0         # host 0 has .1, host 1 has .2, ...
launcher_net=10.78.0     # the same, and head has .254
burst=256kb latency=100ms
most_hosts=200

usage() {
  sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2
  exit 2
}
fail() {
  printf 'error: %s\n' "$1" >&2
  exit "${2:-2}"
}
cannot() { fail "cannot emulate a cluster here: $1" 77; }

# No cluster's name ends in a digit, so that no host of one cluster has the name of another's.
namespaces() { ip netns list 2>/dev/null | awk '{print $1}' | grep -x -E "$name(-head|[0-9]+)" || true; }
hosts_up() { namespaces | grep -c -v -x "$head" || true; }
is_up() { [ -e "/run/netns/$head" ]; }
example="scripts/emulate-cluster.sh up --hosts 2 --rate 500mbit"
need_up() { is_up || fail "no cluster '$name' is up; first: $example"; }

need_tools() {
  [ "$(uname -s)" = Linux ] || cannot "expected Linux, found $(uname -s)"
  [ "$(id -u)" -eq 0 ] || cannot "expected root, found user $(id -un)"
  local tool
  for tool in "$@"; do
    command -v "$tool" >/dev/null || cannot "expected the command '$tool', found none; scripts/install_deps.sh installs it"
  done
}

# Runs a step of `up`. If it fails, its first line of output becomes the error.
attempt() {
  local output
  output=$("$@" 2>&1) || cannot "'$*' failed: $(printf '%s' "${output:-no reason given}" | head -n 1)"
}

limit() { # NAMESPACE INTERFACE RATE
  ip netns exec "$1" tc qdisc replace dev "$2" root tbf rate "$3" burst "$burst" latency "$latency"
}

check_rate() {
  [[ ${1:-} =~ ^[0-9]{1,9}(\.[0-9]{1,9})?([kmg]?bit)$ && ${1:-} =~ [1-9] ]] ||
    fail "expected a rate like 500mbit, found '${1:-}'"
}
check_count() { # NAME VALUE SMALLEST
  { [[ ${2:-} =~ ^(0|[1-9][0-9]{0,2})$ ]] && [ "$2" -ge "$3" ] && [ "$2" -le $most_hosts ]; } ||
    fail "expected $1 from $3 to $most_hosts, found '${2:-}'"
}

tear_down() {
  local space pids
  for space in $(namespaces); do
    pids=$(ip netns pids "$space" 2>/dev/null || true)
    # shellcheck disable=SC2086
    [ -z "$pids" ] || kill -KILL $pids 2>/dev/null || true
    ip netns delete "$space" 2>/dev/null || true
    rm -rf "/etc/netns/$space"
  done
  rmdir /etc/netns 2>/dev/null || true
}

# The namespace gets a hosts file of its own, so that the hosts' names are in no file of this machine.
make_namespace() { # NAME
  attempt ip netns add "$1"
  attempt ip -n "$1" link set lo up
  mkdir -p "/etc/netns/$1"
  printf '%s\n' "$names" >"/etc/netns/$1/hosts"
}

make_link() { # HOST INDEX NETWORK-NAME NETWORK
  attempt ip -n "$1" link add "$3" type veth peer name "$3$2" netns "$head"
  attempt ip -n "$1" address add "$4.$(($2 + 1))/24" dev "$3"
  attempt ip -n "$head" link set "$3$2" master "$3" up
  attempt ip -n "$1" link set "$3" up
}

up() {
  local hosts="" rate="" i host
  while [ $# -gt 0 ]; do
    case "$1" in
      --hosts) hosts=${2:-} ;;
      --rate) rate=${2:-} ;;
      *) usage ;;
    esac
    shift $(($# > 1 ? 2 : 1))
  done
  [ -n "$hosts" ] || fail "up needs --hosts, for example: $example"
  [ -n "$rate" ] || fail "up needs --rate, the speed of the links, for example: $example"
  check_count --hosts "$hosts" 1
  check_rate "$rate"
  need_tools ip tc unshare taskset
  ! is_up || fail "a cluster '$name' of $(hosts_up) hosts is up already; 'down' ends it, 'rate' changes its links"
  trap 'tear_down; exit 130' INT TERM HUP
  trap tear_down EXIT
  names=$(printf '127.0.0.1 localhost\n%s.254 %s\n' "$launcher_net" "$head"
    for ((i = 0; i < hosts; ++i)); do printf '%s.%s %s%s\n' "$launcher_net" $((i + 1)) "$name" "$i"; done)
  make_namespace "$head"
  for bridge in data launch; do
    attempt ip -n "$head" link add "$bridge" type bridge
    attempt ip -n "$head" link set "$bridge" up
  done
  attempt ip -n "$head" address add "$launcher_net.254/24" dev launch
  for ((i = 0; i < hosts; ++i)); do
    host=$name$i
    make_namespace "$host"
    make_link "$host" "$i" data "$data_net"
    make_link "$host" "$i" launch "$launcher_net"
    # This machine may use bbr, which paces messages by timers and would slow ranks on one switch.
    ip netns exec "$host" sysctl -q -w net.ipv4.tcp_congestion_control=cubic 2>/dev/null ||
      ip netns exec "$host" sysctl -q -w net.ipv4.tcp_congestion_control=reno 2>/dev/null || true
    attempt limit "$host" data "$rate"
    attempt limit "$head" "data$i" "$rate"
  done
  trap - EXIT INT TERM HUP
  echo "cluster '$name': $hosts hosts, $rate each way" >&2
}

set_rate() {
  local i
  check_rate "${1:-}"
  need_tools ip tc
  need_up
  for ((i = 0; i < $(hosts_up); ++i)); do
    limit "$name$i" data "$1"
    limit "$head" "data$i" "$1"
  done
}

# Prints the number of a host that is given as 1 or lancet1.
host_index() {
  local index=${1#"$name"}
  { [[ $index =~ ^(0|[1-9][0-9]{0,2})$ ]] && [ "$index" -lt "$(hosts_up)" ]; } ||
    fail "expected a host from ${name}0 to $name$(($(hosts_up) - 1)), found '${1:-}'"
  echo "$index"
}

# Acts on the switch's end of the link, as a pulled cable does: the host's own interface keeps its address.
set_link() { # up|down HOST
  local index
  need_tools ip
  need_up
  index=$(host_index "${2:-}")
  ip -n "$head" link set "data$index" "$1"
}

status() {
  local i host rate state
  need_tools ip tc
  is_up || { echo "cluster '$name': not up" && return; }
  echo "cluster '$name': $(hosts_up) hosts"
  for ((i = 0; i < $(hosts_up); ++i)); do
    host=$name$i
    rate=$(ip netns exec "$host" tc qdisc show dev data | sed -n 's/.* rate \([^ ]*\) .*/\1/p')
    state=up
    ip -n "$head" -o link show "data$i" | grep -q '[<,]UP[,>]' || state='cut'
    echo "$host  $data_net.$((i + 1))  $rate  link $state  $(ip netns pids "$host" | wc -l) processes"
  done
}

# Prints the cores that this process may use, one a line.
cores_here() {
  local range
  for range in $(sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status | tr , ' '); do
    seq "${range%-*}" "${range#*-}"
  done
}

# Writes the program that mpirun starts for each host in place of ssh, as PROGRAM HOST COMMAND...
write_agent() { # FILE HOSTS CORES
  local i mine pin
  local -a all
  mapfile -t all < <(cores_here)
  {
    echo '#!/bin/sh'
    echo "host=\$1; shift; pin="
    # shellcheck disable=SC2016
    echo 'case $host in'
    for ((i = 0; i < $2; ++i)); do
      mine=("${all[@]:$((i * $3)):$3}")
      pin=$(IFS=,; echo "${mine[*]}")
      [ "$3" -gt 0 ] && [ $(($2 * $3)) -le ${#all[@]} ] && echo "  $name$i) pin='taskset -c $pin' ;;"
    done
    echo '  *) ;;'
    echo 'esac'
    # shellcheck disable=SC2016
    echo 'exec $pin ip netns exec "$host" unshare --uts sh -c '\''echo "$0" >/proc/sys/kernel/hostname; eval "$*"'\'' "$host" "$@"'
  } >"$1"
  chmod +x "$1"
}

run() {
  local hosts cores=1 i code=0
  need_tools ip tc unshare taskset mpirun
  need_up
  hosts=$(hosts_up)
  while [ $# -gt 0 ] && [ "$1" != -- ]; do
    case "$1" in
      --hosts) hosts=${2:-} ;;
      --cores) cores=${2:-} ;;
      *) usage ;;
    esac
    shift $(($# > 1 ? 2 : 1))
  done
  [ $# -ge 2 ] || usage
  shift
  check_count --hosts "$hosts" 1
  check_count --cores "$cores" 0
  command -v "$1" >/dev/null || fail "expected a program that can be run, found '$1'"
  [ "$hosts" -le "$(hosts_up)" ] || fail "expected --hosts up to $(hosts_up), found $hosts"
  [ $((hosts * cores)) -le "$(nproc)" ] ||
    echo "note: $hosts hosts of $cores cores on $(nproc) cores; nothing is pinned" >&2

  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  for ((i = 0; i < hosts; ++i)); do echo "$name$i slots=1"; done >"$work/hosts"
  write_agent "$work/agent" "$hosts" "$cores"
  # shellcheck disable=SC2054
  local options=(-np "$hosts" --hostfile "$work/hosts" --bind-to none --allow-run-as-root
    --mca plm_rsh_agent "$work/agent" --mca plm_rsh_no_tree_spawn 1
    --mca oob_tcp_if_include "$launcher_net.0/24"
    --mca pml ob1 --mca btl tcp,self --mca btl_tcp_if_include "$data_net.0/24")
  local mpirun='' stopped=''
  trap 'stopped=1; [ -z "$mpirun" ] || kill -TERM "$mpirun" 2>/dev/null || true' INT TERM HUP
  # mpirun runs in the background and without a shell in between, so that a signal to this script reaches it at once. It
  # gets SIGTERM also when this script is killed.
  # shellcheck disable=SC2016
  ip netns exec "$head" unshare --uts sh -c 'echo "$0" >/proc/sys/kernel/hostname; exec "$@"' "$head" \
    setpriv --pdeathsig TERM mpirun "${options[@]}" "$@" <&0 &
  mpirun=$!
  [ -z "$stopped" ] || kill -TERM "$mpirun" 2>/dev/null || true
  while kill -0 "$mpirun" 2>/dev/null; do
    code=0
    wait "$mpirun" || code=$?
  done
  if [ "$code" -gt 128 ] && [ -z "$stopped" ]; then
    echo "a rank was ended by signal $((code - 128))" >&2
    code=5  # the code of a rank that does not start
  fi
  exit "$code"
}

[[ $name =~ ^[a-z]([a-z0-9-]{0,29}[a-z-])?$ ]] ||
  fail "expected LANCET_CLUSTER in small letters, digits and -, with no digit last, found '$name'"
command=${1:-}
[ $# -eq 0 ] || shift
case "$command" in
  up) up "$@" ;;
  run) run "$@" ;;
  rate) set_rate "$@" ;;
  cut) set_link down "$@" ;;
  restore) set_link up "$@" ;;
  status) status ;;
  down)
    need_tools ip
    tear_down
    left=$(namespaces)
    [ -z "$left" ] || fail "cannot remove these network namespaces of cluster '$name': ${left//$'\n'/, }"
    ;;
  *) usage ;;
esac
