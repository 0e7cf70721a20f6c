#!/usr/bin/env bash
# Kills N training runs at random moments, also inside saves, and checks that each goes on as if nothing had been.
#   scripts/attack-checkpoints.sh [N] [SEED]     200 where none is given: a few minutes
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
[ -x "$BUILD_DIR/lancet" ] || die "expected $BUILD_DIR/lancet; scripts/build.sh makes it"
exec python3 tests/faults/kill.py "$BUILD_DIR/lancet" "${1:-200}" "${2:-1}"
