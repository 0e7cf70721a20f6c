#!/usr/bin/env bash
# The tests with a sanitizer, in a folder of its own (build-address/, build-thread/).
#   scripts/sanitize.sh [address|thread] [ctest options...]
# address: memory errors and undefined behaviour, every test. thread: races, in the rooms that have threads; ranks as
# MPI processes are left out, since Open MPI knows nothing of the sanitizer.
set -euo pipefail
export LANCET_SANITIZE="${1:-address}"
[ $# -gt 0 ] && shift
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

options=()
case "$LANCET_SANITIZE" in
  address)
    # Open MPI and what it loads leave memory behind when a process ends.
    export ASAN_OPTIONS="detect_leaks=0:strict_string_checks=1${ASAN_OPTIONS:+:$ASAN_OPTIONS}"
    export UBSAN_OPTIONS="halt_on_error=1:print_stacktrace=1${UBSAN_OPTIONS:+:$UBSAN_OPTIONS}"
    tests=() timeout=900 ;;
  thread)
    # oneDNN and OpenMP synchronise in ways that the sanitizer cannot see.
    options+=(-DLANCET_MPI=OFF -DLANCET_ONEDNN=OFF)
    export TSAN_OPTIONS="halt_on_error=1:second_deadlock_stack=1${TSAN_OPTIONS:+:$TSAN_OPTIONS}"
    tests=(-L "^(backend|comm|runtime|train)$") timeout=1800 ;;
  *) die "usage: scripts/sanitize.sh [address|thread] [ctest options...], found '$LANCET_SANITIZE'" ;;
esac
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

say "build in ${BUILD_DIR#"$ROOT"/}"
scripts/build.sh "-DLANCET_TEST_TIMEOUT=$timeout" "${options[@]}"
say "tests under the $LANCET_SANITIZE sanitizer, at most $timeout s each"
ctest --test-dir "$BUILD_DIR" --output-on-failure --no-tests=error -j "$(jobs_that_fit)" "${tests[@]}" "$@"
