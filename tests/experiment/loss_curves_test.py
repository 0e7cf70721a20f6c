#!/usr/bin/env python3
"""Tests `bench capacity` and `bench routers` on made-up records: training is replaced. That the program accepts their
configs it is asked by planning them.

    loss_curves_test.py LANCET
"""
import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
from bench.run import python_with  # noqa: E402


def expect(found, wanted, what):
    if found != wanted:
        sys.exit(f"{what}: expected {wanted!r}, found {found!r}")


def records_of(steps):
    return [{"step": i + 1, "loss": 9 - 0.1 * i, "drop_pct": 20} for i in range(steps)]


def capacities():
    from bench import capacity, loss_curves
    slow, fast = (loss_curves.rows_of(records_of(40), ms) for ms in (500, 250))
    expect([round(slow[-1][field], 6) for field in ("seconds", "mean_loss")], [20, 5.55], "the last row")
    expect(slow[0]["mean_loss"], 9, "a mean of one step")
    expect(capacity.reached(fast, slow[-1]["mean_loss"]), 10, "the seconds to a loss")
    expect(capacity.reached(fast, 5), None, "the seconds to a loss that is not reached")
    times = {1.25: [490, 500, 510], 2.0: [240, 250, 260]}
    options = argparse.Namespace(steps=40, rounds=3)
    text = capacity.page({1.25: slow, 2.0: fast}, {1.25: 5.6, 2.0: 5.5}, times, options, (1, 2))
    expect("| 2 | 20.0% | 250.0 | 240.0 to 260.0 | 5.550 | 5.500 | 10.0 |" in text, True, f"a line of the page: {text}")


# A step of top-2 takes 500 ms, any other 250; the loss does not depend on the router, the held-out loss is the seed.
def train(lancet, config, run_dir, steps, settings, launcher):
    fields = dict(setting.split("=", 1) for setting in settings)
    ms = 500 if fields["model.router"] == "top_k" else 250
    run_dir.mkdir(parents=True, exist_ok=True)
    lines = [{**record, "step_ms": ms, "tokens_per_s": 1} for record in records_of(steps)]
    lines.append({"step": steps, "held_out_loss": float(fields.get("train.seed", 0))})
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return lines[:-1], None


def routers():
    from bench import routers, run
    run.train = train
    with tempfile.TemporaryDirectory() as name:
        run.ROOT = Path(name)
        options = argparse.Namespace(steps=40, seeds=2, first_seed=3, rounds=2, timed=4, out=Path(name) / "out",
                                     lancet=Path(sys.executable))
        routers.main(options)
        text = (options.out / "routers.md").read_text()
        with open(options.out / "routers.csv") as file:
            rows = list(csv.DictReader(file))
    runs = [[row for row in rows if (row["router"], row["seed"]) == (name, seed)]
            for name in ("switch", "top-2, dropless") for seed in "34"]
    expect([len(rows) for rows in runs], [40, 40, 20, 20], "the steps that fit the time of the first router")
    expect([float(rows[-1]["seconds"]) for rows in runs], [10.0] * 4, "the seconds of a run")
    expect("| 250.0 | 250.0 to 250.0 | 40 | 20.0% | 5.550 | 5.550 to 5.550 | 3.500 | 3.000 to 4.000 |" in text, True,
           f"the line of switch: {text}")


# The program plans every variant, so it would train it, too.
def accepted(lancet):
    from bench import loss_curves, routers
    for name, settings in routers.VARIANTS.items():
        sets = [word for field in loss_curves.fields(settings, 40) for word in ("--set", field)]
        command = [lancet, "plan", ROOT / "configs/quickstart.json", "--ranks", str(loss_curves.RANKS), *sets]
        planned = subprocess.run(command, capture_output=True, text=True)
        expect(planned.returncode, 0, f"the plan of {name}: {planned.stderr}")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    python = python_with("matplotlib")
    if not python:
        sys.exit(print("SKIPPED: python3-matplotlib is not here"))
    if "restarted" not in sys.argv:
        os.execvp(python, [python, __file__, sys.argv[1], "restarted"])
    accepted(sys.argv[1])
    print("accepted: as expected")
    for test in (capacities, routers):
        test()
        print(f"{test.__name__}: as expected")
