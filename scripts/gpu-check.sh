#!/usr/bin/env bash
# On a GPU machine, in under 9 minutes: builds, runs every test that needs a GPU, then the benchmarks, and prints a table
# last. What the time does not suffice for is said. Bare machines bring a kit (scripts/gpu-kit.sh): no MPI, no oneDNN, no
# packages, no network. The benchmarks want python3; their peer, PyTorch 2.
#   scripts/gpu-check.sh [--out DIR] [--kit DIR] [--quick] [--dry] [--seconds N] [--python PYTHON]
#     --out      DIR/gpu-check.json, the logs and the runs; default: a new folder
#     --quick    without GPT2-L-MoE, the race checker and the peer's slower modes
#     --dry      tiny shapes on the CPU, with the build that is there: which parts run and what works, without any figure
#     --seconds  for all of it; default 525
# Exit codes: 0 all passed (figures may miss their targets: the table says so), 1 something failed, 2 usage, 77 no GPU.
set -euo pipefail
from=$PWD
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage() { sed -n '2,10s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2; }
absolute() { case $1 in /*) echo "$1" ;; *) echo "$from/$1" ;; esac; }
kit='' out='' quick='' dry='' seconds=525 python=''
while [ $# -gt 0 ]; do
  case $1 in
    --kit | --out | --seconds | --python) [ $# -ge 2 ] && [ -n "$2" ] || usage ;;&
    --kit) kit=$(absolute "$2"); shift 2 ;;
    --out) out=$(absolute "$2"); shift 2 ;;
    --seconds) seconds=$2; shift 2 ;;
    --python) python=$2; shift 2 ;;
    --quick) quick=--quick; shift ;;
    --dry) dry=--dry; shift ;;
    *) usage ;;
  esac
done
[[ $seconds =~ ^[1-9][0-9]{0,4}$ ]] || { echo "error: --seconds: expected 1 to 99999, found $seconds" >&2; exit 2; }
out=${out:-$(mktemp -d)}
mkdir -p "$out" || { echo "error: --out: expected a folder that can be made at $out" >&2; exit 2; }

gpu=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | head -n 1) || gpu=''
[ -n "$gpu" ] || [ -n "$dry" ] || { echo "no GPU: nvidia-smi names none" >&2; exit 77; }
left() { echo $((seconds - SECONDS > 1 ? seconds - SECONDS : 1)); }

# The first python3 with PyTorch; without PyTorch the first at all.
find_python() {
  local candidate first=''
  for candidate in python3 /usr/bin/python3 /usr/local/bin/python3 /opt/conda/bin/python3; do
    command -v "$candidate" >/dev/null || continue
    first=${first:-$candidate}
    if timeout 60 "$candidate" -c 'import torch' 2>/dev/null; then echo "$candidate"; return; fi
  done
  echo "$first"
}
[ -n "$python" ] || python=$(find_python)

# The shapes that gpu_check.py times.
# Until $out/peer-compile.stop is there; $out/peer-compile.pid is the one that runs.
warm_peer() {
  local shape shapes=('--batch 16' '--seq 512 --batch 8 --moe-every 2')
  [ -n "$quick" ] || shapes+=('--seq 512 --batch 4 --moe-every 2 --layers 24 --width 1024 --heads 16')
  for shape in "${shapes[@]}"; do
    [ ! -e "$out/peer-compile.stop" ] || break
    # shellcheck disable=SC2086
    timeout 60 nice "$python" scripts/gpu_peer.py --compile-only $shape &
    echo $! >"$out/peer-compile.pid"
    wait $! || true
    rm -f "$out/peer-compile.pid"
  done
}

# end_warming SECONDS: that it may still take
end_warming() {
  [ -n "$warming" ] || return 0
  local end=$((SECONDS + $1)) running
  while [ "$SECONDS" -lt "$end" ] && kill -0 "$warming" 2>/dev/null; do sleep 0.5; done
  touch "$out/peer-compile.stop"
  running=$(cat "$out/peer-compile.pid" 2>/dev/null) || running=''
  [ -z "$running" ] || kill "$running" 2>/dev/null || true
  wait "$warming" 2>/dev/null || true
  warming=''
}

started=$SECONDS
if [ -n "$dry" ]; then
  [ -x "$BUILD_DIR/lancet" ] || die "--dry: expected the program at $BUILD_DIR/lancet; build it with scripts/build.sh"
else
  say "build"
  # The peer's compiler works meanwhile, and leaves what it made in its cache.
  warming=''
  rm -f "$out/peer-compile.stop" "$out/peer-compile.pid"
  if [ -n "$python" ]; then
    warm_peer >"$out/peer-compile.log" 2>&1 &
    warming=$!
  fi
  options=(-DLANCET_CUDA=ON)
  capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1) || capability=''
  if nvcc --list-gpu-arch 2>/dev/null | grep -qx "compute_${capability/./}"; then
    options+=("-DCMAKE_CUDA_ARCHITECTURES=${capability/./}-real")  # for others than this GPU nothing is built
  fi
  [ -z "$kit" ] || options+=("-DLANCET_KIT=$kit" -DLANCET_MPI=OFF -DLANCET_ONEDNN=OFF)
  LANCET_TARGETS="lancet test_cuda" timeout "$(left)" scripts/build.sh "${options[@]}" >"$out/build.log" 2>&1 || {
    end_warming 0
    tail -n 30 "$out/build.log" >&2
    die "the build failed, or took longer than $seconds s"
  }
  end_warming 20
fi
built=$((SECONDS - started))

say "tests"
failed=0
most=$(left)
[ "$most" -lt 120 ] || most=120
timeout "$most" ctest --test-dir "$BUILD_DIR" -L gpu --output-on-failure >"$out/tests.log" 2>&1 || failed=$?
count() { grep -cE "$1" "$out/tests.log" || true; }
passed=$(count ' Passed ') skipped=$(count '\*\*\*Skipped') missing=$(count '\*\*\*Not Run')
wrong=$(count '\*\*\*(Failed|Timeout|Exception)')
[ "$failed" -ne 124 ] || wrong=$((wrong + 1))
[ "$wrong" -eq 0 ] || grep -E '\*\*\*|FAILED|error' "$out/tests.log" | head -n 20 >&2
tests="{\"passed\": $passed, \"skipped\": $skipped, \"failed\": $wrong, \"not_run\": $missing}"

commit=$(git -C "$ROOT" rev-parse --short HEAD 2>/dev/null || echo unknown)
cuda=$(nvcc --version 2>/dev/null | sed -n 's/.*release \([0-9.]*\).*/\1/p') || cuda=''
if [ -z "$python" ]; then
  printf '{"dry": %s, "gpu": "%s", "commit": "%s", "cuda": "%s", "build_s": %d, "tests": %s, "figures": [], "parts": []}\n' \
    "$([ -n "$dry" ] && echo true || echo false)" "$gpu" "$commit" "$cuda" "$built" "$tests" >"$out/gpu-check.json"
  printf '%-8s %s\n' gpu "${gpu:-none}" commit "$commit" build "$built s" \
    tests "$passed passed, $skipped skipped, $wrong failed, $missing not run" benchmarks "not run: no python3"
  exit $((wrong > 0))
fi
say "benchmarks, into $out"
exec "$python" scripts/gpu_check.py --lancet "$BUILD_DIR/lancet" --build "$BUILD_DIR" --out "$out" --seconds "$(left)" \
  --build-s "$built" --tests "$tests" --commit "$commit" --cuda "$cuda" --python "$python" $quick $dry
