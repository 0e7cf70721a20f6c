#!/usr/bin/env bash
# N ranks of a command on this machine, with what Open MPI needs to be told there.
#   scripts/mpirun.sh N COMMAND [ARGUMENT...]
# The line it runs is printed first, to copy and change. Your own OMPI_MCA_* variables still hold.
set -euo pipefail

if [ $# -lt 2 ]; then
  echo "usage: scripts/mpirun.sh N COMMAND [ARGUMENT...]" >&2
  exit 2
fi
ranks=$1
shift

options=(-np "$ranks")
options+=(--bind-to none)  # each rank has several threads; Open MPI would pin all of them to one core
[ "$ranks" -gt "$(nproc)" ] && options+=(--oversubscribe)
[ "$(id -u)" -eq 0 ] && options+=(--allow-run-as-root)

printf '+ mpirun' >&2
printf ' %q' "${options[@]}" "$@" >&2
printf '\n' >&2
exec mpirun "${options[@]}" "$@"
