#!/usr/bin/env bash
# Configures and builds into build/ (or $BUILD_DIR), as far as it is out of date.
#   scripts/build.sh [--no-tests] [cmake options...]     --no-tests: without tests, unless this folder has them already
#   JOBS=4                              compilers at once; default: one on each core
#   LANCET_TARGETS="lancet test_cuda"   builds these targets alone; lancet: the executable, program: and the CUDA plugin
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

cache="$BUILD_DIR/CMakeCache.txt"
options=(-DLANCET_CUDA=AUTO)  # scripts/test.sh may have left the plugin out of this folder
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

# Runs CMake and shows only the lines about the GPU libraries, which decide what the program can do. Warnings and errors
# go to stderr anyway.
configure() {
  cmake -S "$ROOT" -B "$BUILD_DIR" "${options[@]}" "$@" | { grep -E '^-- (CUDA|NCCL|cuDNN): ' || true; } >&2
}

build() {
  # shellcheck disable=SC2086
  NINJA_STATUS='   [%f/%t %es] ' cmake --build "$BUILD_DIR" -j "$(job_count)" ${LANCET_TARGETS:+--target $LANCET_TARGETS}
}

# Passes on one of ninja's lines for each tenth of the work, and all output of the compilers.
tenths() {
  local line tenth shown=0
  while IFS= read -r line; do
    if [[ $line =~ ^\ \ \ \[([0-9]+)/([0-9]+)\ [0-9.]+s\]\  ]]; then
      tenth=$((10 * BASH_REMATCH[1] / BASH_REMATCH[2]))
      [ "$tenth" != "$shown" ] || continue
      shown=$tenth
    fi
    printf '%s\n' "$line"
  done
}

configure "$@"
if [ -t 2 ] && [ "${TERM:-dumb}" != dumb ]; then
  build >&2  # on a terminal ninja rewrites one line
else
  build 2>&1 | tenths >&2
fi
