#!/usr/bin/env bash
# Kills N training runs at random moments, also inside saves, and checks that each goes on as if nothing had been: of one
# rank, of two or four of which one is killed or all, of two that are threads; some by policy lancet.
#   scripts/attack-checkpoints.sh [N] [SEED]     200 where none is given: about 15 minutes on two cores
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
inproc=$BUILD_DIR/tests/inproc_train
for program in "$BUILD_DIR/lancet" "$inproc"; do
  [ -x "$program" ] || die "expected $program; scripts/build.sh makes it"
done
exec python3 tests/faults/kill.py "$BUILD_DIR/lancet" "${1:-200}" "${2:-1}" "$inproc"
