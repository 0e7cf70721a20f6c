#!/usr/bin/env python3
"""The terms of scripts/bench/all_to_all_terms.py add up to the all-to-all time of steps that the program simulates.

    all_to_all_terms_test.py PROGRAM
"""
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
from bench import all_to_all_terms as terms  # noqa: E402

MODEL, BATCH, RANKS = "GPT2-L-MoE bf16", 16, [8, 64, 512]  # within a node, direct, in two steps


def simulated(program):
    """The points without any overlap; there an all-to-all has the network to itself."""
    with tempfile.TemporaryDirectory() as folder:
        experiment = Path(folder) / "sequential.json"
        experiment.write_text(json.dumps({
            "title": "terms", "settings": str(ROOT / "configs/experiments/settings.json"),
            "grids": [{"on": "dgx-h100", "models": [MODEL], "gates": ["switch"], "ranks": RANKS, "policies": ["sequential"],
                       "set": [f"train.micro_batch_size={BATCH}"]}]}))
        subprocess.run([program, "bench", "sweep", str(experiment), "--out", folder], cwd=ROOT, check=True, capture_output=True)
        return [json.loads(line) for line in (Path(folder) / "points.jsonl").read_text().splitlines()]


def main():
    hardware = terms.read_hardware("dgx-h100")
    for point in simulated(sys.argv[1]):
        ranks = point["ranks"]
        total = sum(number * terms.taken(hardware, ranks, sent)["total"] for number, sent in terms.all_to_alls_of(MODEL, BATCH, ranks))
        if abs(total - point["all_to_all_ms"]) > 0.001:
            sys.exit(f"{ranks} ranks: expected {point['all_to_all_ms']} ms of all-to-alls as simulated, found {total:.3f}")
    ways = {k: terms.taken(hardware, 256, terms.all_to_alls_of(MODEL, BATCH, 256)[0][1] / k)["way"] for k in (1, 2)}
    if ways != {1: "direct", 2: "two steps"}:
        sys.exit(f"256 ranks: expected whole all-to-alls to go directly and halves in two steps, found {ways}")
    crossings = terms.crossings(hardware, MODEL, BATCH, [128, 256, 512, 1024, 2048], (1, 2, 4))
    if crossings != {1: (512, None), 2: (256, 2048), 4: (128, 1024)}:
        sys.exit(f"crossings: found {crossings}")
    print("terms add up")


if __name__ == "__main__":
    main()
