#!/usr/bin/env bash
# Fuzzes the readers of files that users give (tests/fuzz), each for some seconds, in a folder of its own (build-fuzz/).
#   scripts/fuzz.sh [SECONDS] [TARGET...]     60 seconds each where none are given; targets: config, plan, ...
#   scripts/fuzz.sh COUNTx [TARGET...]        COUNT inputs each, the same ones every time
# Any crash, leak, undefined behaviour, or memory beyond what a file of that size allows (tests/fuzz/allocation_limit.h) ends it with 1; the input that did it
# stays in build-fuzz/found/. Needs clang with its libFuzzer: apt-get install clang libclang-rt-14-dev
set -euo pipefail
BUILD_DIR="${FUZZ_BUILD_DIR:-}"
[ -n "$BUILD_DIR" ] || BUILD_DIR="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/build-fuzz"
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

seconds=${1:-60}
[[ $seconds =~ ^[0-9]{1,6}x?$ ]] || die "usage: scripts/fuzz.sh [SECONDS|COUNTx] [TARGET...], found '$seconds'"
[ $# -gt 0 ] && shift

# The test that runs this takes a line that begins so as skipped.
skip() {
  echo "SKIPPED: $*"
  exit 0
}
command -v clang++ >/dev/null || skip "no clang++ here: apt-get install clang libclang-rt-14-dev"
runtime=$(clang++ -print-file-name=libclang_rt.fuzzer-x86_64.a)
[ -e "$runtime" ] || [ -e "$(clang++ -print-runtime-dir)/libclang_rt.fuzzer.a" ] ||
  [ -e "$(clang++ -print-runtime-dir)/libclang_rt.fuzzer-$(uname -m).a" ] || skip "clang++ has no libFuzzer: apt-get install libclang-rt-14-dev"

if [ ! -f "$BUILD_DIR/CMakeCache.txt" ]; then
  cmake -S "$ROOT" -B "$BUILD_DIR" -G Ninja -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_BUILD_TYPE=Release -DLANCET_FUZZ=ON \
    -DLANCET_TESTS=OFF -DLANCET_MPI=OFF -DLANCET_ONEDNN=OFF >&2
fi
cmake --build "$BUILD_DIR" -j "$(jobs_that_fit)" --target fuzz >&2

if [ $# -eq 0 ]; then
  for target in "$BUILD_DIR"/tests/fuzz/fuzz_*; do
    [ -x "$target" ] && [ -f "$target" ] && set -- "$@" "${target##*/fuzz_}"
  done
fi
mkdir -p "$BUILD_DIR/found"
for name in "$@"; do
  target="$BUILD_DIR/tests/fuzz/fuzz_$name"
  [ -x "$target" ] || die "no fuzz target '$name' at $target"
  options=(-max_len=16384 -timeout=10 -rss_limit_mb=1024 -verbosity=0
    -print_final_stats=1 -artifact_prefix="$BUILD_DIR/found/$name-")
  corpus="$BUILD_DIR/corpus/$name" # new inputs are kept there
  if [[ $seconds == *x ]]; then
    options+=(-runs="${seconds%x}" -seed=1)
    corpus="$BUILD_DIR/corpus-fresh/$name" # what earlier runs found would change the inputs
    rm -rf "$corpus"
  else
    options+=(-max_total_time="$seconds")
  fi
  mkdir -p "$corpus"
  seeds=("$corpus")
  [ -d "tests/fuzz/seeds/$name" ] && seeds+=("tests/fuzz/seeds/$name")
  [ -f "tests/fuzz/$name.dict" ] && options+=(-dict="tests/fuzz/$name.dict")
  say "$name, $([[ $seconds == *x ]] && echo "${seconds%x} inputs" || echo "$seconds s")"
  "$target" "${options[@]}" "${seeds[@]}" 2>&1 | tee "$BUILD_DIR/$name.log" | grep -E "ERROR|SUMMARY|number_of_executed|peak_rss|Test unit written|runtime error|abort" ||
    die "$name: see $BUILD_DIR/$name.log"
  grep -qE "SUMMARY: .*(Sanitizer|libFuzzer)" "$BUILD_DIR/$name.log" && die "$name: see $BUILD_DIR/$name.log"
done
say "no crash, no leak"
