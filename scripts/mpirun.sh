#!/usr/bin/env bash
# Runs N ranks of a command on this machine, with the options that Open MPI needs here.
#   scripts/mpirun.sh N COMMAND [ARGUMENT...]
# Ctrl-C, SIGTERM and a lost terminal (SIGHUP) make a training run save and stop, code 75; a second one ends it. The
# exit code is 5 if a signal ends a rank, or mpirun. The ranks end with this script, even if it is killed.
# The mpirun command is printed first, to copy and change. Your own OMPI_MCA_* variables still hold.
set -euo pipefail

if [ $# -lt 2 ]; then
  echo "usage: scripts/mpirun.sh N COMMAND [ARGUMENT...]" >&2
  exit 2
fi
ranks=$1
shift
if ! [[ $ranks =~ ^[1-9][0-9]{0,4}$ ]]; then
  echo "error: expected a number of ranks from 1 on, found '$ranks'" >&2
  exit 2
fi
if ! command -v "$1" >/dev/null; then  # mpirun's exit code would look like that of a rank that a signal ended
  echo "error: expected a program to run, found none called $1" >&2
  exit 2
fi

options=(-np "$ranks")
options+=(--bind-to none)  # each rank has several threads; Open MPI would pin all of them to one core
[ "$ranks" -gt "$(nproc)" ] && options+=(--oversubscribe)
[ "$(id -u)" -eq 0 ] && options+=(--allow-run-as-root)

printf '+ mpirun' >&2
printf ' %q' "${options[@]}" "$@" >&2
printf '\n' >&2

# mpirun answers SIGINT and SIGTERM by ending the ranks a second later, but passes SIGUSR1 on to them: a training run then
# saves and stops. The signal is sent again each second, to the ranks themselves, because mpirun loses a signal that
# comes before they have started and dies of one that comes when they have ended. A rank ignores it from the second time
# on. The helpers of this script are disowned: bash 5.2 may miss the end of a child that a trap started, and would wait
# for it for ever.
job='' stops=0 helpers=''
stop() {
  stops=$((stops + 1))
  [ -n "$job" ] || return 0  # mpirun has not started; the main part calls stop again
  if [ "$stops" -eq 1 ]; then
    request_stop </dev/null >/dev/null 2>&1 3>&- &
    helpers+=" $!"
    disown "$!" || true  # by its number: the current job may be mpirun, if this child has ended already
  elif [ "$stops" -eq 2 ]; then  # only once: after a second SIGTERM mpirun exits before its ranks
    kill -TERM "$job" 2>/dev/null || true
  fi
  return 0  # a bare `return` would give the status from before the trap, and `set -e` would end this script
}
request_stop() {
  while kill -0 "$job"; do
    # shellcheck disable=SC2013
    for rank in $(cat "/proc/$job/task/"*/children); do kill -USR1 "$rank" || true; done
    sleep 1
  done
}

# Ends mpirun if it has waited for a lock of its own for 20 seconds without a running rank: when a rank dies while another
# connects ("PMIX ERROR: UNREACHABLE"), the mpirun of Open MPI 4.1 can lock itself up.
end_stuck_mpirun() {
  local job=$1 looks=0 rank
  while sleep 2 && kill -0 "$job"; do
    looks=$((looks + 1))
    grep -q futex "/proc/$job/wchan" || looks=0
    # shellcheck disable=SC2013
    for rank in $(cat "/proc/$job/task/"*/children); do
      grep -q '^State:.*zombie' "/proc/$rank/status" || looks=0
    done
    [ "$looks" -ge 10 ] || continue
    echo "mpirun locked itself up after its ranks had ended, and was ended" >&3
    kill -KILL "$job" || true
    break
  done
}

# Passes mpirun's own messages, which are paragraphs between two lines of dashes, on to stderr. Those that only say that
# a rank's exit code was not 0 wait for that code: 75 is no failure, and nothing is said about it.
relay_messages() {
  trap '' INT TERM HUP USR1
  local line block='' open=0 alarms=''
  while IFS= read -r line && [[ $line != "exit code "* ]]; do
    block+=$line$'\n'
    [[ $line != -----* ]] || open=$((1 - open))
    [ "$open" -eq 0 ] || continue
    case $block in
      *"a non-zero exit code"* | *"exited with non-zero status"*) alarms+=$block ;;
      *) printf '%s' "$block" >&2 || true ;;
    esac
    block=''
  done
  [ "$line" = "exit code 75" ] || printf '%s' "$alarms$block" >&2
}

trap stop INT TERM USR1 HUP
exec 3> >(relay_messages)
relay=$!
# OPAL_OUTPUT_STDERR_FD is the descriptor of mpirun's own messages; the ranks get stderr again. mpirun runs in a session
# of its own, so that the terminal's Ctrl-C reaches only this script, and gets SIGTERM if this script is killed.
OPAL_OUTPUT_STDERR_FD=3 setpriv --pdeathsig TERM setsid mpirun -x OPAL_OUTPUT_STDERR_FD=2 "${options[@]}" "$@" <&0 &
started=$!
end_stuck_mpirun "$started" </dev/null >/dev/null 2>&1 &
helpers+=" $!"
disown "$!" || true
job=$started  # from here on a signal's trap starts a child of its own
if [ "$stops" -gt 0 ]; then
  stops=0
  stop
fi
while kill -0 "$job" 2>/dev/null; do wait "$job" || true; done
code=0
wait "$job" || code=$?
# shellcheck disable=SC2086
kill $helpers 2>/dev/null || true
echo "exit code $code" >&3 || true
exec 3>&-
wait "$relay" || true
if [ "$code" -gt 128 ] && [ "$stops" -eq 0 ]; then
  echo "a rank was ended by signal $((code - 128))" >&2
  code=5  # the code of a rank that does not start
fi
exit "$code"
