#!/usr/bin/env bash
# Does bf16 train as fp32 does? Runs the quick start's config in both, on 2 ranks, and compares the losses.
#   scripts/compare-dtypes.sh [STEPS]      default 200; needs the data that scripts/quickstart.sh makes
# Fails when the mean difference over the steps is over 1%.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

steps=${1:-200}
lancet="$BUILD_DIR/lancet"
[ -x "$lancet" ] && [ -s data/gcide/train.bin ] || die "run scripts/quickstart.sh first: it builds the program and makes the data"
for dtype in fp32 bf16; do
  say "$steps steps in $dtype"
  scripts/mpirun.sh 2 "$lancet" train configs/quickstart.json --set train.steps="$steps" --set train.dtype="$dtype" \
    --set train.eval_interval=0 --set train.sample_tokens=0 --set log.interval=50 --run-dir "runs/compare-$dtype"
done
losses() { sed -n 's/.*"loss": \([0-9.e+-]*\),.*/\1/p' "runs/compare-$1/metrics.jsonl"; }
paste <(losses fp32) <(losses bf16) | awk '
  { difference = ($2 > $1 ? $2 - $1 : $1 - $2) / $1; sum += difference; if (difference > most) most = difference }
  END {
    printf "bf16 against fp32 over %d steps: mean difference %.2f%%, largest of a single batch %.2f%%\n", NR, 100 * sum / NR, 100 * most
    exit !(NR > 0 && sum / NR <= 0.01)
  }'
