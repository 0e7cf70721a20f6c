#!/usr/bin/env bash
# clang-tidy over the sources that the build compiles: scripts/clang-tidy.sh [FILE...]
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

command -v clang-tidy >/dev/null || die "expected clang-tidy: apt-get install clang-tidy"
[ -f "$BUILD_DIR/compile_commands.json" ] || die "expected $BUILD_DIR/compile_commands.json; run scripts/build.sh first"
files=("$@")
[ ${#files[@]} -gt 0 ] || mapfile -t files < <(find src -name '*.cpp' | sort)
printf '%s\n' "${files[@]}" | xargs -P "$(jobs_that_fit)" -n 1 clang-tidy --quiet --warnings-as-errors='*' -p "$BUILD_DIR"
