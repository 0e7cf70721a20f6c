#!/usr/bin/env bash
# Configures and builds into build/ (or $BUILD_DIR); what is up to date stays.
#   scripts/build.sh [--no-tests] [cmake options...]
#   LANCET_TARGETS="lancet test_cuda"   only these, not all
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

options=(-DLANCET_TESTS=ON)
if [ "${1:-}" = --no-tests ]; then
  options=(-DLANCET_TESTS=OFF)
  shift
fi
if [ ! -f "$BUILD_DIR/CMakeCache.txt" ]; then
  generator=(-G Ninja)
  command -v ninja >/dev/null || generator=()
  options+=("${generator[@]}")
fi

cmake -S "$ROOT" -B "$BUILD_DIR" "${options[@]}" "$@" >&2
NINJA_STATUS='   [%f/%t %es] ' cmake --build "$BUILD_DIR" -j "$(jobs_that_fit)" ${LANCET_TARGETS:+--target $LANCET_TARGETS} >&2
