#!/usr/bin/env bash
# Tokens per second of `lancet generate` and of PyTorch in turn: the same random weights, fp32, greedy, the same prompt and
# length, the same number of threads. Prints a table of medians and writes it, with CPU and commit.
#   scripts/bench-generate.sh [--rounds 3] [--tokens 64] [--threads "1 2"] [--shape gpt2|tiny] [--out docs/results/generate.md]
# Needs python3-torch (and libopenblas0-openmp for its best settings). Takes 2 GB of disk in a temporary folder. Without
# --out, and for the shape tiny, which only tries the script, no file is written.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage='usage: scripts/bench-generate.sh [--rounds N] [--tokens N] [--threads "N ..."] [--shape gpt2|tiny] [--out FILE]'
rounds=3 tokens=64 threads="1 2" shape=gpt2 out=
while [ $# -gt 0 ]; do
  [ $# -ge 2 ] || die "$usage"
  case "$1" in
    --rounds) rounds=$2 ;;
    --tokens) tokens=$2 ;;
    --threads) threads=$2 ;;
    --shape) shape=$2 ;;
    --out) out=$2 ;;
    *) die "$usage" ;;
  esac
  shift 2
done
for number in $rounds $tokens $threads; do
  [[ $number =~ ^[1-9][0-9]{0,4}$ ]] || die "$usage, found '$number'"
done
[ "$tokens" -ge 2 ] || die "--tokens: expected at least 2, since the first is not timed, found $tokens"
[[ $shape =~ ^(gpt2|tiny)$ ]] || die "--shape: expected gpt2 or tiny, found '$shape'"
python=${PYTHON:-/usr/bin/python3}
"$python" -c 'import torch' 2>/dev/null || die "expected PyTorch in $python (apt-get install python3-torch)"
lancet=$BUILD_DIR/lancet
[ -x "$lancet" ] || die "expected $lancet: run scripts/build.sh first"

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
peer=$ROOT/scripts/bench_generate.py
"$python" "$peer" --make "$folder/hf" --shape "$shape"
"$lancet" import --from "$folder/hf" --out "$folder/run"

openblas=/usr/lib/x86_64-linux-gnu/openblas-openmp
for ((round = 1; round <= rounds; ++round)); do
  for n in $threads; do
    note "round $round of $rounds, $n thread(s)"
    "$lancet" generate --from "$folder/run" --ids --prompt "1 2 3" --temperature 0 --max-tokens "$tokens" --past-end \
      --threads "$n" >"$folder/ids.$n.$round" 2>"$folder/log.$n.$round"
    tail -1 "$folder/log.$n.$round" >&2
    env ATEN_CPU_CAPABILITY=avx512 LD_LIBRARY_PATH=$openblas OMP_NUM_THREADS="$n" \
      GLIBC_TUNABLES=glibc.malloc.hugetlb=1:glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=100000000000 \
      "$python" "$peer" --from "$folder/hf" --prompt 1 2 3 --tokens "$tokens" --threads "$n" --repeats 1 >"$folder/peer.$n.$round"
  done
done

table=$("$python" "$peer" --table "$folder" --rounds "$rounds" --threads $threads --tokens "$tokens" --shape "$shape" \
  --commit "$(git describe --always --dirty 2>/dev/null || echo unknown)")
printf '%s\n' "$table"
if [ -n "$out" ] && [ "$shape" = gpt2 ]; then
  printf '%s\n' "$table" >"$out"
  note "$out"
fi
