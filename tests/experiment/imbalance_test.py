#!/usr/bin/env python3
"""Tests `bench imbalance` with a double of the program.

    imbalance_test.py
"""
import csv
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent

# A step of `lancet` takes 100 ms, 10 more for each unit of S, and 5 more with the plan for even routing; sequential takes
# twice as long. The fullest rank has 1 + S of the mean; a capacity of 1.25 drops 10% for each unit of S.
LANCET = """#!/usr/bin/env python3
import json, pathlib, sys
words = dict(word.split("=", 1) for word in sys.argv if "=" in word)
routing, capacity = words["emulated.routing"], float(words["model.capacity_factor"])
skew = float(routing[5:]) if routing.startswith("zipf:") else 0 if routing == "even" else 2
drops = 10 * skew if capacity < 2 else 0
given = "--plan" in sys.argv
ms = 100.0 + 10 * skew + 5 * given
policies = [] if given else ["sequential", "tutel", "fastermoe", "comet", "flowmoe", "lancet_paper"]
print(json.dumps({"fullest": 1 + skew, "kept": 1 - drops / 100, "policies": [
    *({"policy": policy, "step_ms": 2 * ms} for policy in policies), {"policy": "lancet", "step_ms": ms}]}))
if "--out" in sys.argv:
    pathlib.Path(sys.argv[sys.argv.index("--out") + 1]).touch()
"""


def expect(found, wanted, what):
    if found != wanted:
        sys.exit(f"{what}: expected {wanted!r}, found {found!r}")


def simulated():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lancet = folder / "lancet"
        lancet.write_text(LANCET)
        lancet.chmod(0o755)
        (folder / "runs").mkdir()
        for run in ("balanced", "unbalanced"):  # recorded before
            (folder / f"runs/{run}.jsonl").touch()
        done = subprocess.run([sys.executable, ROOT / "scripts/bench", "imbalance", "--lancet", lancet, "--folder",
                               folder / "runs", "--out", folder / "out"], capture_output=True, text=True)
        expect(done.returncode, 0, f"exit code, {done.stderr}")
        with open(folder / "out/imbalance.csv") as file:
            rows = {(row["hardware"], row["capacity_factor"], row["routing"], row["policy"]): row
                    for row in csv.DictReader(file)}
        row = rows["p3dn-v100", "1.250", "zipf:1", "lancet"]
        expect([row[field] for field in ("fullest", "dropped_pct", "step_ms", "speed_up", "even_plan_ms", "replan_gain_pct")],
               ["2.000", "10.000", "110.000", "2.000", "115.000", "4.348"], "a row")
        expect(rows["p4de-a100", "16", "unbalanced", "sequential"]["step_ms"], "240.000", "a recorded routing")
        text = (folder / "out/imbalance.md").read_text()
        expect("| zipf:1 | 2.00 | 10.0% | 220.0 | 220.0 | 220.0 | 220.0 | 220.0 | 220.0 | 110.0 | 2.000 | 115.0 | 4.3% |" in text,
               True, f"a line of the page: {text}")


if __name__ == "__main__":
    simulated()
    print("simulated: as expected")
