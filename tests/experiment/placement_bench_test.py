#!/usr/bin/env python3
"""Tests `scripts/bench placement` with a double of the program: its tables, what it asks again, what does not fit.

    placement_bench_test.py
"""
import csv
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent

# The makespan is 100 less ten for each letter of the solver's name, and 1 more for a graph that is placed op by op;
# even runs out of memory, and nothing fits moirai-inter.
LANCET = """#!/usr/bin/env python3
import json, pathlib, sys
words = sys.argv
with open(pathlib.Path(words[0]).parent / "calls", "a") as calls:
    calls.write(" ".join(words[1:]) + "\\n")
solver, cluster = words[words.index("--solver") + 1], words[words.index("--on") + 1]
if solver == "even" or cluster == "moirai-inter":
    print("error: " + cluster + ": no memory", file=sys.stderr)
    sys.exit(2)
ms = 100 - 10 * len(solver) + ("--no-coarsen" in words)
end = {"end": "time"} if solver == "milp" else {}
print(json.dumps({"solver": solver, "task": "forward", "makespan_ms": ms, "bound_ms": 20, "seconds": len(solver), "ops": 9,
                  "solved_ops": 9 if "--no-coarsen" in words else 5, "op_by_op_ms": ms + 0.5, **end}))
"""


def expect(found, wanted, what):
    if found != wanted:
        sys.exit(f"{what}: expected {wanted!r}, found {found!r}")


def bench(folder, *words):
    done = subprocess.run([sys.executable, ROOT / "scripts/bench", "placement", "--lancet", folder / "lancet", "--out",
                           folder / "out", *words], capture_output=True, text=True, env=os.environ)
    expect(done.returncode, 0, done.stderr)
    return (folder / "out/placement.md").read_text().splitlines()


def calls(folder):
    return (folder / "calls").read_text().splitlines()


def tables(folder):
    page = bench(folder, "--points", "one-device-forward,inter-2.7B-training", "--limit", "3")
    for row in ("| one-device-forward | 9 | 5 | - | 60.0 | 70.0 | 60.0 | 60.0 | 40.0 | 60.0 | 20.0 | time | 1.50 | 1.00 |",
                "| one-device-forward | 9 | 5 | 60.5 | 61.5 | 40.5 | 41.5 | 60.5 | 61.5 |",
                "| one-device-forward | no | - | 4.00 | 3.00 | 4.00 | 4.00 | 6.00 | 4.00 |",
                "| inter-2.7B-training | moirai-inter: no memory |"):
        expect(row in page, True, f"the row {row} in {page}")
    expect(any(line.startswith("`python3 scripts/bench placement --points one-device-forward,inter-2.7B-training --limit 3`")
               for line in page), True, "the command of the page")
    expect([line for line in page if line.startswith("## Makespan")], ["## Makespan, forward"], "tables of what fits")
    with open(folder / "out/placement.csv") as file:
        rows = list(csv.DictReader(file))
    expect(len(rows), 28, "rows of two points, seven solvers, with and without coarsening")
    found = next(row for row in rows if row["solver"] == "milp" and row["coarsened"] == "0" and not row["error"])
    expect((found["limit_s"], found["makespan_ms"], found["bound_ms"], found["end"]), ("3", "61", "20", "time"), "milp's row")


def words(folder):
    asked = calls(folder)
    expect(len(asked), 28, "calls")
    training = [call for call in asked if "--training" in call]
    expect(len(training), 14, "calls of a training step")
    expect(all("--set model.n_embd=2560" in call and "--on moirai-inter" in call for call in training), True, "the model")
    expect(sum("--solver milp" in call and "--time-limit 3" in call for call in asked), 4, "calls of milp")
    expect(sum("--solver search" in call and "--time-limit 2" in call for call in asked), 4, "calls of the search")


def again(folder):
    """What was answered is not asked for again."""
    bench(folder, "--points", "one-device-forward", "--limit", "3")
    expect(len(calls(folder)), 28, "calls")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        (place / "lancet").write_text(LANCET)
        (place / "lancet").chmod(0o755)
        for test in (tables, words, again):
            test(place)
            print(f"{test.__name__}: as expected")
