#!/usr/bin/env bash
# Emulates a cluster on this machine: its hosts are network namespaces, their links have the speed you set. Needs root.
#   scripts/emulate-cluster.sh up --hosts 2 --rate 500mbit
#   scripts/emulate-cluster.sh up --hosts 4 --hardware p3dn-v100 --scale 100 --dilation 12 [--ranks-per-host K]
#   scripts/emulate-cluster.sh up --hosts 2 --rate 500mbit,250mbit     a rate for each host's link
#   scripts/emulate-cluster.sh run [--hosts N] [--cores C] -- build/lancet train configs/quickstart.json
#   scripts/emulate-cluster.sh rate 280mbit     sets the speed of the links, also while ranks run (500mbit, 1gbit, ...)
#   scripts/emulate-cluster.sh cut HOST         takes the host's link down; HOST is 1, or lancet1
#   scripts/emulate-cluster.sh restore HOST     brings it up again
#   scripts/emulate-cluster.sh status
#   scripts/emulate-cluster.sh down             removes the cluster, and does nothing where none is up
# --hardware NAME: links have the speed that configs/hardware/NAME.json (or the file NAME) declares, over scale and
# dilation. It holds for messages; headers of packets come on top. A host stands for K devices of a node (default 1),
# runs K ranks and has their share of the node's NICs. What its ranks send to each other has the speed of K links of the
# node.
# `run` starts one rank (or K) on each host by Open MPI's own launcher and exits with the launcher's code. The ranks'
# messages take the limited links. The launcher's messages take unlimited links of their own, so that it survives a cut.
# --hosts N: use only the first N hosts. --cores C (default 1): each host has C cores of this machine, and all threads
# of its ranks stay on them; with more hosts than cores, or with 0, nothing is pinned. The variable LANCET_CLUSTER=NAME
# (default lancet) names the cluster and its hosts, so that several clusters can be up. Your own OMPI_MCA_* variables
# still hold.
# Exit codes: 2 wrong usage, a wrong hardware file, a cluster that is up already or is not up; 77 this machine or user
# cannot have a cluster.
set -euo pipefail

name=${LANCET_CLUSTER:-lancet}
head=$name-head          # the namespace that holds the switch and mpirun
data_net=10.77.0         # host 0 has .1, host 1 has .2, ...
launcher_net=10.78.0     # the same, and head has .254
packet=1514 payload=1448 # bytes of a full packet, and of them those of a message: the rest is Ethernet, IP and TCP
queue=64mb               # more than the ranks have under way at once: links lose no packet
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
hardware_example="scripts/emulate-cluster.sh up --hosts 4 --hardware p3dn-v100 --scale 100 --dilation 12"
need_up() { is_up || fail "no cluster '$name' is up; first: $example"; }

need_tools() {
  [ "$(uname -s)" = Linux ] || cannot "expected Linux, found $(uname -s)"
  [ "$(id -u)" -eq 0 ] || cannot "expected root, found user $(id -un)"
  need_commands "$@"
}
need_commands() {
  local tool
  for tool in "$@"; do
    command -v "$tool" >/dev/null ||
      cannot "expected the command '$tool', found none; scripts/install_deps.sh installs it"
  done
}

# Runs a step of `up`. If it fails, its first line of output becomes the error.
attempt() {
  local output
  output=$("$@" 2>&1) || cannot "'$*' failed: $(printf '%s' "${output:-no reason given}" | head -n 1)"
}

# Limits what an interface sends. After an idle time a link sends a burst at once, and the rest at its rate. A burst is
# as much as the link sends in a millisecond, at least two packets (1.2% of an all-to-all of 250 KB), and TCP hands over
# at most half of one at once. Single packets at 500 Mbit/s would cost 6 ms of processor time per MB, not 1.6 ms.
limit() { # NAMESPACE INTERFACE BITS-A-SECOND
  local burst=$(($3 / 8000))
  [ "$burst" -ge $((2 * packet)) ] || burst=$((2 * packet))
  ip -n "$1" link set dev "$2" gso_max_segs $((burst / (2 * packet)))
  ip netns exec "$1" tc qdisc replace dev "$2" root tbf rate "$3bit" burst "$burst" limit "$queue"
}
limit_all() { # HOSTS BITS-A-SECOND...: of all hosts, or of each
  local hosts=$1 i
  shift
  local bits=("$@")
  for ((i = 0; i < hosts; ++i)); do
    attempt limit "$name$i" data "${bits[i]:-${bits[0]}}"
    attempt limit "$head" "data$i" "${bits[i]:-${bits[0]}}"
  done
}

# Prints the bits a second of a rate like 500mbit.
bits_of() {
  local found=''
  [[ ! ${1:-} =~ ^[0-9]{1,9}(\.[0-9]{1,9})?([kmg]?bit)$ ]] ||
    found=$(awk -v rate="$1" 'BEGIN {
      unit = rate ~ /kbit/ ? 1e3 : rate ~ /mbit/ ? 1e6 : rate ~ /gbit/ ? 1e9 : 1
      if (rate * unit >= 64e3 && rate * unit <= 100e9) printf "%.0f", rate * unit
    }')
  [ -n "$found" ] || fail "expected a rate like 500mbit, from 64kbit to 100gbit, found '${1:-}'"
  echo "$found"
}
# Sets bits: of all hosts, or of each.
read_rates() { # RATE[,RATE...] HOSTS
  local rate network each
  IFS=, read -ra each <<<"$1,"
  [ ${#each[@]} -eq 1 ] || [ ${#each[@]} -eq "$2" ] ||
    fail "expected a rate for all hosts, or $2 of them for as many hosts, found '$1'"
  bits=()
  for rate in "${each[@]}"; do
    network=$(bits_of "$rate")
    bits+=("$network")
  done
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

hardware_address() { printf '02:00:00:00:00:%02x' $(($1 + 1)); } # of host INDEX

make_link() { # HOST INDEX NETWORK-NAME NETWORK
  attempt ip -n "$1" link add "$3" address "$(hardware_address "$2")" type veth peer name "$3$2" netns "$head"
  attempt ip -n "$1" address add "$4.$(($2 + 1))/24" dev "$3"
  attempt ip -n "$head" link set "$3$2" master "$3" up
  attempt ip -n "$1" link set "$3" up
}

# TCP for links that are slow and lose nothing. Without it, an all-to-all among 4 hosts takes 40% longer than its bytes,
# and later ones stop for seconds.
set_up_tcp() { # HOST INDEX HOSTS
  local i setting
  # This machine may use bbr, which paces messages by timers and would slow ranks on one switch.
  ip netns exec "$1" sysctl -q -w net.ipv4.tcp_congestion_control=cubic 2>/dev/null ||
    ip netns exec "$1" sysctl -q -w net.ipv4.tcp_congestion_control=reno 2>/dev/null || true
  # tcp_limit_output_bytes: a connection has two packets (or halves of a burst) on its way, so that a link serves its
  # connections in turn; otherwise it sends one rank's whole message after the other, while the other ranks' links idle.
  # tcp_early_retrans=0, rto_min: TCP does not take a packet that waits in a queue for lost, so it does not repeat it.
  # tcp_slow_start_after_idle=0, tcp_no_metrics_save=1: what was sent before does not matter.
  for setting in tcp_limit_output_bytes=1 tcp_early_retrans=0 tcp_slow_start_after_idle=0 tcp_no_metrics_save=1; do
    attempt ip netns exec "$1" sysctl -q -w "net.ipv4.$setting"
  done
  attempt ip -n "$1" route change "$data_net.0/24" dev data rto_min 3s
  # Addresses of neighbours are fixed, since the machine keeps 1,024 learned ones at most: 32 hosts need almost as many
  # here, and as the table was full, packets were lost.
  attempt ip -n "$1" -batch - < <(for ((i = 0; i < $3; ++i)); do
    [ "$i" -eq "$2" ] ||
      echo "neighbour add $data_net.$((i + 1)) lladdr $(hardware_address "$i") dev data nud permanent"
  done)
}

make_hosts() { # HOSTS
  local i host
  names=$(printf '127.0.0.1 localhost\n%s.254 %s\n' "$launcher_net" "$head"
    for ((i = 0; i < $1; ++i)); do printf '%s.%s %s%s\n' "$launcher_net" $((i + 1)) "$name" "$i"; done)
  make_namespace "$head"
  for bridge in data launch; do
    attempt ip -n "$head" link add "$bridge" type bridge
    attempt ip -n "$head" link set "$bridge" up
  done
  attempt ip -n "$head" address add "$launcher_net.254/24" dev launch
  for ((i = 0; i < $1; ++i)); do
    host=$name$i
    make_namespace "$host"
    make_link "$host" "$i" data "$data_net"
    make_link "$host" "$i" launch "$launcher_net"
    set_up_tcp "$host" "$i" "$1"
  done
}

# Ranks of one host reach each other through its `lo`, with the packets of a network.
limit_within() { # HOSTS BITS-A-SECOND...: of all hosts, or of each
  local hosts=$1 i
  shift
  local bits=("$@")
  for ((i = 0; i < hosts; ++i)); do
    attempt ip -n "$name$i" link set dev lo mtu 1500
    attempt limit "$name$i" lo "${bits[i]:-${bits[0]}}"
  done
}

# The bridge's alias keeps what the cluster is: the ranks of a host, then words for `status`.
describe() { attempt ip -n "$head" link set dev data alias "$1"; } # "RANKS WORDS"
description() { ip -n "$head" -o link show dev data | sed -n 's/.*alias //p'; }

mbit() { awk -v bits="$1" 'BEGIN { printf "%.4g Mbit/s", bits / 1e6 }'; }

# Sets bits (of packets), within (none: not limited), each of all hosts or of each, and what from the options of `up`.
read_links() { # RATE[,RATE...] HARDWARE SCALE DILATION RANKS HOSTS
  local ranks=${5:-1} links network inside
  bits=() within=() what="$1 each way"
  if [ -z "$2" ]; then
    [ -z "$3$4$5" ] || fail "--scale, --dilation and --ranks-per-host need --hardware"
    read_rates "$1" "$6"
    return
  fi
  [ -z "$1" ] || fail "expected --rate or --hardware, found both"
  [ -n "$3" ] || fail "up --hardware needs --scale, for example: $hardware_example"
  [ -n "$4" ] || fail "up --hardware needs --dilation, for example: $hardware_example"
  check_count --ranks-per-host "$ranks" 1
  need_commands python3
  links=$(python3 "$(dirname "${BASH_SOURCE[0]}")/hardware_links.py" "$2" "$6" "$ranks" "$3" "$4") || exit
  while read -r network inside; do
    bits+=($((network * packet / payload)))
    [ "$ranks" -eq 1 ] || within+=($((inside * packet / payload)))
  done <<<"$links"
  read -r network inside <<<"$links"
  what="$2 at scale $3 and dilation $4, ranks a host: $ranks"
  if [ ${#bits[@]} -gt 1 ]; then
    what="unlike hosts${what#"$2"}"
    return
  fi
  what+=", $(mbit "$network") each way"
  [ "$ranks" -eq 1 ] || what+=", $(mbit "$inside") within a host"
}

up() {
  local hosts="" rate="" hardware="" scale="" dilation="" ranks="" bits within what
  while [ $# -gt 0 ]; do
    case "$1" in
      --hosts) hosts=${2:-} ;;
      --rate) rate=${2:-} ;;
      --hardware) hardware=${2:-} ;;
      --scale) scale=${2:-} ;;
      --dilation) dilation=${2:-} ;;
      --ranks-per-host) ranks=${2:-} ;;
      *) usage ;;
    esac
    shift $(($# > 1 ? 2 : 1))
  done
  [ -n "$hosts" ] || fail "up needs --hosts, for example: $example"
  [ -n "$rate$hardware" ] || fail "up needs --rate, the speed of the links, or --hardware, for example: $example"
  check_count --hosts "$hosts" 1
  read_links "$rate" "$hardware" "$scale" "$dilation" "$ranks" "$hosts"
  need_tools ip tc unshare taskset
  ! is_up || fail "a cluster '$name' of $(hosts_up) hosts is up already; 'down' ends it, 'rate' changes its links"
  trap 'tear_down; exit 130' INT TERM HUP
  trap tear_down EXIT
  make_hosts "$hosts"
  limit_all "$hosts" "${bits[@]}"
  [ "${#within[@]}" -eq 0 ] || limit_within "$hosts" "${within[@]}"
  describe "${ranks:-1} $what"
  trap - EXIT INT TERM HUP
  echo "cluster '$name': $hosts hosts, $what" >&2
}

set_rate() {
  local bits ranks rates=${1:-}
  bits_of "${rates%%,*}" >/dev/null
  need_tools ip tc
  need_up
  read_rates "$rates" "$(hosts_up)"
  limit_all "$(hosts_up)" "${bits[@]}"
  read -r ranks _ <<<"$(description)"
  describe "$ranks $rates each way"
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
  local i host rate state what
  need_tools ip tc
  is_up || { echo "cluster '$name': not up" && return; }
  read -r _ what <<<"$(description)"
  echo "cluster '$name': $(hosts_up) hosts, $what"
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
write_agent() { # FILE HOSTS
  local i
  local -a all mine
  mapfile -t all < <(cores_here)
  {
    echo '#!/bin/sh'
    echo "host=\$1; shift; pin="
    for ((i = 0; i < $2 && pins > 0; ++i)); do
      echo "[ \$host != $name$i ] || pin='taskset -c $(IFS=,; mine=("${all[@]:i * pins:pins}"); echo "${mine[*]}")'"
    done
    # shellcheck disable=SC2016
    # shellcheck disable=SC2016
    echo 'exec $pin ip netns exec "$host" unshare --uts sh -c '\''echo "$0" >/proc/sys/kernel/hostname; eval "$*"'\'' "$host" "$@"'
  } >"$1"
  chmod +x "$1"
}

run() {
  local hosts ranks pins cores=1 i code=0
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
  pins=$cores
  if [ $((cores * hosts)) -gt "$(cores_here | wc -l)" ]; then
    echo "note: $hosts hosts of --cores $cores on $(cores_here | wc -l) cores; nothing is pinned" >&2
    pins=0
  fi
  command -v "$1" >/dev/null || fail "expected a program that can be run, found '$1'"
  [ "$hosts" -le "$(hosts_up)" ] || fail "expected --hosts up to $(hosts_up), found $hosts"

  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  read -r ranks _ <<<"$(description)"
  for ((i = 0; i < hosts; ++i)); do echo "$name$i slots=$ranks"; done >"$work/hosts"
  write_agent "$work/agent" "$hosts"
  # shellcheck disable=SC2054
  local options=(-np $((hosts * ranks)) --hostfile "$work/hosts" --map-by slot --bind-to none --allow-run-as-root
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
