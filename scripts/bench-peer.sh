#!/usr/bin/env bash
# Training speed and memory against the plain PyTorch peer: same model, same machine, in turn, several rounds.
#   scripts/bench-peer.sh PATH_TO_PEER [--rounds N] [--shape small|gpt2-s] [--dtype fp32|bf16] [--json FILE]
# PATH_TO_PEER holds gpt2_moe_torch.py, launch.py and env.sh. Needs: apt-get install python3-torch libopenblas0-openmp
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

case "${1:-}" in -h | --help | "") exec /usr/bin/python3 scripts/bench_peer.py --help ;; esac
[ -x "$BUILD_DIR/lancet" ] || die "expected the program at $BUILD_DIR/lancet; build it with scripts/build.sh"
/usr/bin/python3 -c 'import torch' 2>/dev/null || die "expected PyTorch: apt-get install python3-torch libopenblas0-openmp"
exec /usr/bin/python3 scripts/bench_peer.py --lancet "$BUILD_DIR/lancet" "$@"
