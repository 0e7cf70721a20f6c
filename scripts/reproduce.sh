#!/usr/bin/env bash
# The Lancet paper's figures: every experiment's points, tables (CSV, Markdown) and plots (SVG) in docs/results/.
#   scripts/reproduce.sh [--out DIR] [--only fig11,fig12] [--fresh] [--runs]
# Without --runs figure 14, which wants real runs here and on an emulated cluster (as root, on a quiet machine), is drawn
# from the runs that are there. Interrupted, it goes on from where it was; --fresh makes every point anew.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

out=docs/results runs=0 fresh=() code=0
only=fig02,fig06,fig11,fig12,fig13,fig14,fig15,fig16,padding,scale
while [ $# -gt 0 ]; do
  case "$1" in
    --out) out=${2:?--out: expected a folder}; shift ;;
    --only) only=${2:?--only: expected names of experiments}; shift ;;
    --runs) runs=1 ;;
    --fresh) fresh=(--fresh) ;;
    *) sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
  esac
  shift
done
[ -x "$BUILD_DIR/lancet" ] || die "expected the program at $BUILD_DIR/lancet; build it with scripts/build.sh"
python=python3
"$python" -c 'import matplotlib' 2>/dev/null || python=/usr/bin/python3  # Debian's, where another stands before it
"$python" -c 'import matplotlib' 2>/dev/null || die "expected python3-matplotlib, which draws; scripts/install_deps.sh --plots installs it"
cd "$ROOT"
for name in ${only//,/ }; do
  [ -f "configs/experiments/$name.json" ] || die "--only: expected a file of configs/experiments, found '$name'"
  if [ "$name" = fig14 ] && [ $runs = 0 ]; then continue; fi
  "$BUILD_DIR/lancet" bench sweep "configs/experiments/$name.json" --out "$out/points/$name" "${fresh[@]}" ||
    { code=$? && [ "$code" -ne 75 ] || exit "$code"; }  # points that failed are marked in the tables
done
"$python" scripts/figures.py --out "$out" || code=$?
exit "$code"
