#!/usr/bin/env bash
# Installs what is missing, builds, and runs the tests.
#   scripts/test.sh [ctest options...]        e.g. scripts/test.sh -R planner
#   scripts/test.sh --all [ctest options...]  with the CUDA plugin if nvcc is there, and with the long tests (label
#                                             long), some of which are builds of their own
# Without --all, a machine without a GPU does not build the plugin, unless the folder has it: compiling it takes minutes.
# With sanitizers: cmake --workflow --preset address (or thread)
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# Tests that start ranks run mpirun, which requires these two variables if the user is root.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

without_long=(-LE '^long$')
options=()
if [ "${1:-}" = --all ]; then
  without_long=()
  shift
elif [ ! -f "$BUILD_DIR/liblancet_cuda.so" ] && ! nvidia-smi -L >/dev/null 2>&1; then
  options=(-DLANCET_CUDA=OFF)
fi
start=$SECONDS
say "1/3 packages"
scripts/install_deps.sh
say "2/3 build in ${BUILD_DIR#"$ROOT"/}"
scripts/build.sh "${options[@]}"
built=$SECONDS
say "3/3 tests"
status=0 results="$BUILD_DIR/tests.xml"  # not LastTest.log, which is overwritten by a test that runs ctest
rm -f "$results"
ctest --test-dir "$BUILD_DIR" --output-on-failure --no-tests=error --output-junit "$results" -j "$(job_count)" \
  "${without_long[@]}" "$@" || status=$?

if [ $status -eq 0 ]; then
  skipped=
  [ -f "$results" ] && skipped=$(skipped_tests "$results")
  [ ${#without_long[@]} -eq 0 ] || skipped="${skipped:+$skipped; }the long tests did not run (--all)"
  say "all tests passed${skipped:+ but $skipped} (build $((built - start)) s, tests $((SECONDS - built)) s)"
else
  [ -f "$results" ] && failed_tests "$results"
  say "tests FAILED (build $((built - start)) s, tests $((SECONDS - built)) s); see the failures above"
fi
exit $status
