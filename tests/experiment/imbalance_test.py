#!/usr/bin/env python3
"""Tests `bench imbalance` with a double of the program.

    imbalance_test.py
"""
import csv
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
from bench import imbalance, policies  # noqa: E402

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


def shifting():
    def steps(first, second, replan):
        return [{"step": i + 1, "step_ms": first if i < 6 else second, "late_pct": 0.5 + 0.1 * i,
                 "replan": replan if i == 7 else None} for i in range(12)]

    kept = [steps(120, 100, None), steps(122, 102, None)]
    new = [steps(108, 99, {"from_ms": 130.25, "to_ms": 101}), steps(110, 99, None)]
    lines = imbalance.shift_table({"kept": kept, "replanned": new})
    expect(lines[2:4], ["| skewed | 121.0 | 109.0 | -9.9% |", "| even | 101.0 | 99.0 | -2.0% |"], "the halves")
    expect(lines[5], "Planned again after step 8: 130.2 ms predicted with the old plan, 101.0 ms with the new one. Messages "
           "were late by at most 1.6% of a step.", "the note")


def emulated():
    """Which emulated results are on the page, and which are run again."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        results, case = policies.Results(folder, imbalance.POINTS), "emulated-1.25-zipf-1"
        expect(imbalance.CASES[case], (1.25, "zipf:1"), "a point")
        where, _ = results.begin(case, imbalance.EMULATED_STEPS, "0123456789")
        for n, steps in enumerate(((100, 80), (102, 85), (98, 80)), 1):
            for policy, step, predicted, late in zip(("sequential", "lancet"), steps, (90, 75), (0.5, 2.5)):
                out = where / f"round-{n:02}" / policy
                out.mkdir(parents=True)
                (out / "metrics.jsonl").write_text(json.dumps({"step_ms": step, "predicted_ms": predicted, "late_pct": late}))
                (out / "plan.ir").write_text("plan {}\narena 1\n")
            (where / f"round-{n:02}/policies.json").write_text(json.dumps({"policies": [
                {"policy": name, "ran": name, "plan": name, "communications": []} for name in ("sequential", "lancet")]}))
        rows = imbalance.emulated_rows(folder)
        expect([imbalance.emulated_cells(row) for row in rows], [
            [1.25, "zipf:1", "sequential", "100.0", "90.0", "1.000", "1.000", "0.5", "0123456789"],
            [1.25, "zipf:1", "lancet", "80.0", "75.0", "1.250", "1.200", "2.5, too late", "0123456789"]], "its rows")
        shift = {"commit": "0123456789", "settings": {**imbalance.EMULATED, **imbalance.SHIFT}, "kept": [[], []],
                 "replanned": [[], []]}
        (folder / "shift.json").write_text(json.dumps(shift))
        expect([imbalance.is_shift_done(folder, *wanted) for wanted in ((2, "0123456789"), (3, "0123456789"), (2, "98"))],
               [True, False, False], "the run whose routing shifts")
        (folder / "shift.json").write_text(json.dumps({**shift, "settings": {**imbalance.EMULATED, "scale": 50}}))
        expect(imbalance.shift_of(folder), None, "one of another scale")


if __name__ == "__main__":
    for test in (simulated, shifting, emulated):
        test()
        print(f"{test.__name__}: as expected")
