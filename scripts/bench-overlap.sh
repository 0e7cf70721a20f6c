#!/usr/bin/env bash
# Every policy on an emulated cluster: one table, measured against predicted, in docs/results/overlap.md and .csv.
#   scripts/bench-overlap.sh [--points main,fast,slow,bf16,wide,4hosts] [--steps N] [--rounds N] [--out DIR]
# As root, since hosts are network namespaces (scripts/emulate-cluster.sh); some 40 minutes for all points.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

case "${1:-}" in -h | --help) exec python3 scripts/bench_overlap.py --help ;; esac
[ -x "$BUILD_DIR/lancet" ] || die "expected the program at $BUILD_DIR/lancet; build it with scripts/build.sh"
export LANCET_CLUSTER=bench
trap 'scripts/emulate-cluster.sh down >/dev/null 2>&1 || true' EXIT
python3 scripts/bench_overlap.py --lancet "$BUILD_DIR/lancet" "$@"
