#!/usr/bin/env bash
# Configures and builds into build/ (or $BUILD_DIR); what is up to date is kept.
#   scripts/build.sh [--no-tests] [cmake options...]     --no-tests: no tests, unless this build folder has them already
#   LANCET_TARGETS="lancet test_cuda"   builds these targets alone; lancet is the executable, program also the CUDA module
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

cache="$BUILD_DIR/CMakeCache.txt"
options=()
if [ "${1:-}" != --no-tests ]; then
  options+=(-DLANCET_TESTS=ON)
else
  shift
  # Other builds in this folder keep their tests.
  grep -qs '^LANCET_TESTS:BOOL=ON$' "$cache" || options+=(-DLANCET_TESTS=OFF)
fi
if [ ! -f "$cache" ] && command -v ninja >/dev/null; then
  options+=(-G Ninja)
fi

# Of what CMake finds only the accelerator's libraries are shown, which decide what the program can do; warnings and
# errors go to stderr by themselves.
configure() {
  cmake -S "$ROOT" -B "$BUILD_DIR" "${options[@]}" "$@" | { grep -E '^-- (CUDA|NCCL|cuDNN): ' || true; } >&2
}

build() {
  # shellcheck disable=SC2086
  NINJA_STATUS='   [%f/%t %es] ' cmake --build "$BUILD_DIR" -j "$(jobs_that_fit)" ${LANCET_TARGETS:+--target $LANCET_TARGETS}
}

# Of ninja's lines, one for each tenth of the work; all of what compilers say.
tenths() {
  awk '
    match($0, /^   \[[0-9]+\/[0-9]+ [0-9.]+s\] /) {
      split(substr($0, 5, RLENGTH - 6), count, /[\/ ]/)
      tenth = int(10 * count[1] / count[2])
      if (tenth == shown) next
      shown = tenth
    }
    { print; fflush() }'
}

configure "$@"
if [ -t 2 ] && [ "${TERM:-dumb}" != dumb ]; then
  build >&2  # where ninja writes all its lines over one another
else
  build 2>&1 | tenths >&2
fi
