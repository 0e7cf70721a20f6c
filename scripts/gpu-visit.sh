#!/usr/bin/env bash
# One visit to a GPU machine that is there for minutes: what only a GPU can tell, the most telling first.
#   scripts/gpu-visit.sh 1      values, then dense speed beside PyTorch: within 280 s
#   scripts/gpu-visit.sh 2      further values, then MoE speed, overlap, counters, machine code: within 420 s
#   scripts/gpu-visit.sh        both, within 570 s
# The programs are in built/ (docs/gpu.md says how they are made), the results in runs/visit. A call leaves out the
# parts that have a result for these programs. It resumes on another machine if visit.tar.gz is unpacked into runs/visit
# there. $OUT: a folder that gets the few files to bring home (see --copy of `bench gpu`).
# BUILT, VISIT: other folders than built/ and runs/visit.
set -uo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage="usage: scripts/gpu-visit.sh [1|2]"
case "${1:-}" in
  1) seconds=280 ;;
  2) seconds=420 ;;
  "") seconds=570 ;;
  -h | --help)
    echo "$usage"
    exit
    ;;
  *) die "$usage" ;;
esac
[ $# -le 1 ] || die "$usage"
built=${BUILT:-$ROOT/built} visit=${VISIT:-$ROOT/runs/visit}
mkdir -p "$visit" || die "cannot make $visit"
export PYTHONUNBUFFERED=1 TORCHINDUCTOR_CACHE_DIR=${visit%/}-compiled

# What runs beside the parts: it keeps the driver loaded and records clocks and power.
nvidia-smi dmon -s pucm -d 2 >>"$visit/dmon.txt" 2>&1 &
dmon=$!
running= peers=()
leave() { kill "$dmon" $running "${peers[@]}" 2>/dev/null; }
trap leave EXIT
trap 'exit 143' TERM HUP
trap 'exit 130' INT

worst=0
# parts NAMES [SECONDS]: runs parts of `bench gpu`, each within a limit of its own, all within the time that is left, or
# SECONDS of it
parts() {
  local left=$((seconds - SECONDS)) code=0
  [ "$left" -gt 0 ] || left=1
  [ "$left" -lt "${2:-$left}" ] || left=${2:-$left}
  python3 scripts/bench gpu --built "$built" --out "$visit" ${OUT:+--copy "$OUT"} --rest --seconds "$left" --only "$1" &
  running=$!
  wait "$running" || code=$?
  running=
  # 1, a failure, is worse than 3, a part that is missing; anything else ends the visit: usage, no GPU, a signal.
  case $code in
    0) ;;
    1) worst=1 ;;
    3) [ "$worst" -eq 1 ] || worst=3 ;;
    *) exit "$code" ;;
  esac
}
# compile_peer NAME OPTIONS: fills the cache of PyTorch's compiler, which takes a minute or two, beside parts that take
# no times
compile_peer() {
  python3 scripts/bench/gpu_peer.py "${@:2}" --steps 1 --warmup 1 >"$visit/compile-$1.txt" 2>&1 &
  peers+=($!)
}
compile_moe() { compile_peer moe-32k --batch 32 --moe-every 2 --experts 8; }
# Waits for the compilers, but leaves those that take too long: the parts themselves compile then.
peers_compiled() {
  local most=$((SECONDS + 60))
  while [ -n "$(jobs -rp | grep -vx "$dmon")" ] && [ "$SECONDS" -lt "$most" ]; do sleep 1; done
  kill "${peers[@]}" 2>/dev/null
  peers=()
}

if [ "${1:-1}" = 1 ]; then
  parts probe
  compile_peer dense --batch 32
  [ $# -eq 1 ] || compile_moe
  parts losses,repeat
  parts tests 70
  peers_compiled
  parts dense
fi
if [ "${1:-2}" = 2 ]; then
  [ $# -eq 0 ] || compile_moe
  parts tests 100
  parts ranks,schedules 120
  [ $# -eq 0 ] || peers_compiled
  parts moe-32k,overlap-p4de-a100,ncu,sass
fi
exit "$worst"
