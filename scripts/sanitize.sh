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
    # Leaks too, but for ranks under mpirun: Open MPI and what it loads leave memory behind when a process ends, most of
    # it from libraries that are unloaded by then, so that no suppression file could name them.
    options_of() { echo "detect_leaks=$1:strict_string_checks=1${ASAN_OPTIONS:+:$ASAN_OPTIONS}"; }
    ranks="$(options_of 0)"
    export OMPI_MCA_mca_base_env_list="ASAN_OPTIONS=$ranks"
    ASAN_OPTIONS="$(options_of 1)"
    export ASAN_OPTIONS
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
