"""Runs the policies on emulated clusters and compares their steps with the prediction.

It needs root, since hosts are network namespaces (scripts/emulate-cluster.sh). A case is a hardware file, a model that is
cut down so that steps stay short, and a number of hosts and of ranks on each. Its ranks are emulated devices: the real
planner, executor and messages run, and ops take the time that the hardware file declares. So the errors are those of the
simulator, the executor and the transport; they say nothing about the numbers of the hardware file.

Each case is one process group that runs all policies in turns, in several rounds (lancet bench policies). A case whose
result is in the folder is not run again, so the command may be interrupted. The tables go to docs/results/emulated.md
and emulated.csv; `python3 scripts/bench figures` draws the latter as emulated.svg.
"""
import csv
import itertools
import json
import os
import random
import shutil
import statistics
from pathlib import Path

from bench import run
from bench.table import markdown, number, rounded, signed_percent, write_csv

CLUSTER = run.ROOT / "scripts/emulate-cluster.sh"
CONFIG = run.ROOT / "configs/gpt2-s-moe.json"
POLICIES = ["sequential", "tutel", "fastermoe", "flowmoe", "dw", "partition", "lancet_paper", "lancet"]
MODEL = ["model.n_layer=4", "model.vocab_size=2048", "train.seq_len=512"]
# name: (hardware, hosts, ranks a host, scale, dilation, sequences of a micro-batch). A link carries its device's rate
# divided by scale and dilation. More hosts get a higher dilation, which leaves the machine the time for their messages,
# and a lower scale, so that messages among many ranks are still packets of some size.
CASES = {
    "v100-2": ("p3dn-v100", 2, 1, 100, 12, 8),
    "v100-4": ("p3dn-v100", 4, 1, 100, 12, 8),
    "v100-8": ("p3dn-v100", 8, 1, 50, 24, 4),
    "v100-16": ("p3dn-v100", 16, 1, 50, 24, 4),
    "v100-32": ("p3dn-v100", 32, 1, 25, 48, 4),
    "v100-4x2": ("p3dn-v100", 4, 2, 50, 24, 4),
    "a100-4": ("p4de-a100", 4, 1, 100, 24, 32),
    "a100-8": ("p4de-a100", 8, 1, 100, 24, 32),
    "h100-4": ("dgx-h100", 4, 1, 100, 96, 32),
    "h100-8": ("dgx-h100", 8, 1, 100, 96, 32),
}
TOLD_APART = 0.03  # predicted speed-ups that differ by more are expected in the right order


def run_case(name, lancet, folder, rounds, steps):
    hardware, hosts, on_host, scale, dilation, sequences = CASES[name]
    out = folder / name
    shutil.rmtree(out, ignore_errors=True)
    run.call([CLUSTER, "down"])  # a cluster of a run that was killed
    run.call([CLUSTER, "up", "--hosts", hosts, "--hardware", hardware, "--scale", scale, "--dilation", dilation,
              "--ranks-per-host", on_host])
    try:
        run.call([CLUSTER, "run", "--", lancet, "bench", "policies", CONFIG, "--policies", ",".join(POLICIES), "--repeats",
                  rounds, "--steps", steps, "--out", out, "--set", "device=emulated", "--set",
                  f"emulated.hardware={hardware}", "--set", f"emulated.scale={scale}", "--set",
                  f"emulated.dilation={dilation}", *run.sets([*MODEL, f"train.micro_batch_size={sequences}"])])
    finally:
        run.call([CLUSTER, "down"])


def results(folder):
    """The cases that have been run, in the order of the table: name and policies."""
    return [(name, json.loads((folder / name / "policies.json").read_text())["policies"]) for name in CASES
            if (folder / name / "policies.json").exists()]


def error(predicted, measured):
    return 100 * (measured / predicted - 1)


def rows_of(name, policies):
    base = policies[0]
    rows = []
    for policy in policies:
        step = statistics.median(policy["step_ms"])
        faster = statistics.median(b / s for b, s in zip(base["step_ms"], policy["step_ms"]))
        predicted = base["predicted_ms"] / policy["predicted_ms"]
        rows.append({"case": name, "policy": policy["policy"], "ran": policy["ran"], "predicted_ms": policy["predicted_ms"],
                     "step_ms": step, "least_ms": min(policy["step_ms"]), "most_ms": max(policy["step_ms"]),
                     "error_pct": error(policy["predicted_ms"], step), "speed_up": faster,
                     "predicted_speed_up": predicted, "speed_up_error_pct": error(predicted, faster),
                     "late_pct": policy["late_pct"]})
    return rows


def distinct(rows):
    """One row for each plan: policies that are predicted alike to the microsecond run the same schedule."""
    return list({round(row["predicted_ms"], 3): row for row in rows}.values())


def pairs_in_order(rows):
    """Of the pairs of plans whose predictions differ: how many there are, and how many are measured in that order."""
    pairs = [(a, b) for a, b in itertools.combinations(distinct(rows), 2)
             if abs(a["predicted_ms"] / b["predicted_ms"] - 1) > TOLD_APART]
    right = [(a["predicted_ms"] < b["predicted_ms"]) == (a["step_ms"] < b["step_ms"]) for a, b in pairs]
    return len(pairs), sum(right)


def interval(values, draws=2000):
    """The bootstrapped 95% confidence interval of the mean; the draws are the same each time."""
    generator = random.Random(1)
    means = sorted(statistics.fmean(generator.choices(values, k=len(values))) for _ in range(draws))
    return means[int(0.025 * draws)], means[int(0.975 * draws)]


def summary(by_case):
    plans = [row for rows in by_case for row in distinct(rows)]
    steps = [abs(row["error_pct"]) for row in plans]
    faster = [abs(row["speed_up_error_pct"]) for rows in by_case for row in distinct(rows)[1:]]
    pairs, right = map(sum, zip(*map(pairs_in_order, by_case)))
    lines = []
    for what, values in (("step", steps), ("speed-up over sequential", faster)):
        low, high = interval(values)
        lines.append(f"- error of the predicted {what}: {statistics.fmean(values):.1f}% in the mean "
                     f"(95% confidence: {low:.1f}% to {high:.1f}%), {max(values):.1f}% at worst, {len(values)} plans")
    lines.append(f"- bias: steps took {statistics.fmean(row['error_pct'] for row in plans):+.1f}% longer than predicted "
                 "in the mean")
    lines.append(f"- order: right in {right} of the {pairs} pairs whose predictions differ by more than "
                 f"{100 * TOLD_APART:.0f}%")
    return lines


TIMES = ("predicted_ms", "step_ms", "least_ms", "most_ms")


def cells(row):
    return [row["case"], row["policy"], *(number(row[field]) for field in TIMES), signed_percent(row["error_pct"] / 100),
            number(row["speed_up"], 3), number(row["predicted_speed_up"], 3), number(row["late_pct"])]


def page(by_case):
    """Returns the text of emulated.md."""
    done = dict.fromkeys(row["case"] for rows in by_case for row in rows)
    lines = [
        "# Emulated clusters: predicted against run", "",
        f"`python3 scripts/bench emulated`, commit {run.commit()}, {run.cpu()}. Emulated devices on emulated links: messages,",
        "planner, executor and transport are real, ops take declared times. So the errors are those of the simulator, the",
        "executor and the transport, and say nothing about the numbers of the hardware files. Times are the device's own",
        "milliseconds: the machine's, divided by the dilation. A step's time is the median over rounds of a round's median.", "",
        "![Predicted beside emulated steps](emulated.svg)", "",
        *summary(by_case), "",
        *markdown(["case", "hardware", "hosts", "ranks a host", "scale", "dilation", "sequences"],
                  [[name, *CASES[name]] for name in done]), "",
        *markdown(["case", "policy", "predicted", "step", "least", "most", "error", "speed-up", "predicted", "late %"],
                  [cells(row) for rows in by_case for row in rows])]
    return "\n".join(lines) + "\n"


def write(folder, out):
    by_case = [rows_of(*result) for result in results(folder)]
    rows = [row for rows in by_case for row in rows]
    out.mkdir(parents=True, exist_ok=True)
    (out / "emulated.md").write_text(page(by_case))
    write_csv(out / "emulated.csv", list(rows[0]), map(rounded, rows))
    for line in summary(by_case):
        run.log(line)


def read(path):
    """Returns the rows of an emulated.csv, with their times as numbers and the hardware file of their case."""
    times = ("predicted_ms", "step_ms", "least_ms", "most_ms")
    return [{**row, "hardware": CASES[row["case"]][0], **{name: float(row[name]) for name in times}}
            for row in csv.DictReader(path.read_text().splitlines())]


def add_arguments(parser):
    parser.add_argument("--cases", default=",".join(CASES), help="cases, separated by commas; default: %(default)s")
    parser.add_argument("--rounds", type=run.at_least(1), default=5)
    parser.add_argument("--steps", type=run.at_least(1), default=1, help="measured steps of a policy in a round, after one")
    parser.add_argument("--folder", type=Path, default=run.ROOT / "runs/emulated", help="of the cases' results")
    parser.add_argument("--fresh", action="store_true", help="also run cases whose results are there")
    parser.add_argument("--out", type=Path, default=run.ROOT / "docs/results")
    run.add_program(parser)


def main(options):
    names, lancet = run.chosen("--cases", options.cases, CASES), run.program(options)
    os.environ["LANCET_CLUSTER"] = "bench"
    for name in names:
        if options.fresh or not (options.folder / name / "policies.json").exists():
            run.log(f"case {name}")
            run_case(name, lancet, options.folder, options.rounds, options.steps)
        write(options.folder, options.out)
