#!/usr/bin/env bash
# Checks that clang-format 14 would change no source of the tree; --write formats them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
format=$(command -v clang-format-14 || command -v clang-format) || format=false
if ! "$format" --version 2>/dev/null | grep -q 'version 14\.'; then
  echo "SKIPPED: clang-format 14 is not installed"
  exit 0
fi
if ! git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
  echo "SKIPPED: this folder is no git checkout"
  exit 0
fi
options=(--dry-run --Werror)
[ "${1:-}" = --write ] && options=(-i)
git ls-files -z '*.cpp' '*.h' '*.cu' ':!third_party' | xargs -0 -P "$(nproc)" -n 20 "$format" "${options[@]}"
