#!/usr/bin/env bash
# Tokens per second of `lancet generate` and of PyTorch on the same random weights of GPT-2 small's shape, fp32, in turn.
#   scripts/bench-generate.sh [--rounds 3] [--tokens 64] [--threads 2]
# Needs python3-torch (and libopenblas0-openmp for its best settings). Takes 2 GB of disk in a temporary folder.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

rounds=3 tokens=64 threads=$(nproc)
while [ $# -gt 0 ]; do
  case "$1" in
    --rounds) rounds=$2 ;;
    --tokens) tokens=$2 ;;
    --threads) threads=$2 ;;
    *) die "usage: scripts/bench-generate.sh [--rounds N] [--tokens N] [--threads N]" ;;
  esac
  shift 2
done
python=${PYTHON:-/usr/bin/python3}
"$python" -c 'import torch' 2>/dev/null || die "expected PyTorch in $python (apt-get install python3-torch)"
lancet=$BUILD_DIR/lancet
[ -x "$lancet" ] || die "expected $lancet: run scripts/build.sh first"

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
peer=$ROOT/scripts/bench_generate.py
"$python" "$peer" --make "$folder/hf"
"$lancet" import --from "$folder/hf" --out "$folder/run"

openblas=/usr/lib/x86_64-linux-gnu/openblas-openmp
for ((round = 1; round <= rounds; ++round)); do
  "$lancet" generate --from "$folder/run" --ids --prompt "1 2 3" --temperature 0 --max-tokens "$tokens" \
    --threads "$threads" >"$folder/ids.$round" 2>"$folder/log.$round"
  tail -1 "$folder/log.$round" >&2
  env ATEN_CPU_CAPABILITY=avx512 LD_LIBRARY_PATH=$openblas \
    GLIBC_TUNABLES=glibc.malloc.hugetlb=1:glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=100000000000 \
    "$python" "$peer" --from "$folder/hf" --tokens "$tokens" --threads 1 "$threads" >"$folder/peer.$round"
done

"$python" - "$folder" "$rounds" <<'PYTHON'
import json, pathlib, re, statistics, sys
folder, rounds = pathlib.Path(sys.argv[1]), range(1, int(sys.argv[2]) + 1)
ours = [float(re.search(r"then ([\d.]+) tokens/s", (folder / f"log.{r}").read_text()).group(1)) for r in rounds]
peers = [json.loads((folder / f"peer.{r}").read_text()) for r in rounds]
print(f"{'lancet generate':<28} {statistics.median(ours):8.1f} tokens/s")
median = {name: statistics.median(p["rates"][name] for p in peers) for name in peers[0]["rates"]}
for name, rate in median.items():
    print(f"{'PyTorch ' + name:<28} {rate:8.1f} tokens/s")
def ratio(peer): return statistics.median(o / peer(p["rates"]) for o, p in zip(ours, peers))
print(f"ratio to the best {ratio(lambda rates: max(rates.values())):.2f}, to the best with transformers' products and cache "
      f"{ratio(lambda rates: max(r for n, r in rates.items() if n.startswith('conv1d, cat'))):.2f} (medians of {len(ours)} rounds)")
ids = [int(x) for x in (folder / "ids.1").read_text().split()]
print("the same tokens" if ids == peers[0]["ids"] else f"other tokens: {ids} and {peers[0]['ids']}")
PYTHON
