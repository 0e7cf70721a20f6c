#!/usr/bin/env bash
# On a GPU machine: builds, runs every test that needs a GPU, prints a short table last. Bare machines bring a kit
# (scripts/gpu-kit.sh): without MPI, oneDNN and packages.
#   scripts/gpu-check.sh [--kit DIR] [--out DIR]     --out: also DIR/gpu-check.json, and the logs
# Exit codes: 0 all passed, 1 something failed, 2 usage, 77 no GPU here.
set -euo pipefail
from=$PWD
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

absolute() { case $1 in /*) echo "$1" ;; *) echo "$from/$1" ;; esac; }
kit='' out=''
while [ $# -gt 0 ]; do
  case $1 in
    --kit) kit=$(absolute "${2:?}"); shift 2 ;;
    --out) out=$(absolute "${2:?}"); shift 2 ;;
    *) sed -n '2,6s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
  esac
done
logs=${out:-$(mktemp -d)}
mkdir -p "$logs"

gpu=$(nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem --format=csv,noheader 2>/dev/null | head -n 1) || gpu=''
[ -n "$gpu" ] || { echo "no GPU: nvidia-smi names none" >&2; exit 77; }

options=(-DLANCET_CUDA=ON)
[ -z "$kit" ] || options+=("-DLANCET_KIT=$kit" -DLANCET_MPI=OFF -DLANCET_ONEDNN=OFF)
failed=0
started=$SECONDS
say "build"
scripts/build.sh "${options[@]}" >"$logs/build.log" 2>&1 || { tail -n 30 "$logs/build.log" >&2; die "the build failed"; }
built=$((SECONDS - started))

say "tests"
ctest --test-dir "$BUILD_DIR" -L gpu --output-on-failure >"$logs/tests.log" 2>&1 || failed=1
passed=$(grep -c ' Passed ' "$logs/tests.log" || true)
skipped=$(grep -c 'Skipped' "$logs/tests.log" || true)
wrong=$(grep -c '\*\*\*Failed\|\*\*\*Timeout\|\*\*\*Exception' "$logs/tests.log" || true)
[ "$failed" -eq 0 ] || grep -E '\*\*\*|FAILED|error' "$logs/tests.log" | head -n 20 >&2

commit=$(git -C "$ROOT" rev-parse --short HEAD 2>/dev/null || echo unknown)
if [ -n "$out" ]; then
  printf '{"gpu": "%s", "commit": "%s", "build_s": %d, "tests": {"passed": %d, "skipped": %d, "failed": %d}}\n' \
    "$gpu" "$commit" "$built" "$passed" "$skipped" "$wrong" >"$out/gpu-check.json"
fi
printf '%-8s %s\n' gpu "$gpu" commit "$commit" build "$built s" tests "$passed passed, $skipped skipped, $wrong failed"
exit "$failed"
