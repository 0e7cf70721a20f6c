"""Loss against wall-clock by the capacity factor: capacity.md, capacity.csv and capacity.svg.

Trains configs/quickstart.json on 2 ranks, once for each capacity factor, on the data that scripts/quickstart.sh makes.
Losses do not depend on the machine's load, step times do: they are the medians of short runs that take turns, in
several rounds. A curve's time is the number of steps times that median.
"""
import json
import os
import statistics
from pathlib import Path

from bench import run
from bench.plot import plt, save
from bench.table import markdown, number, percent, rounded, write_csv

FACTORS = (0.5, 1.0, 1.25, 2.0, 4.0)  # with 4 experts nothing is dropped at 4
BASE = 1.25  # of the quick start
WINDOW = 10  # steps over which a plotted loss is the mean
FIELDS = ["capacity_factor", "step", "seconds", "loss", "mean_loss", "drop_pct", "step_ms"]


def train(lancet, factor, steps, name):
    """Returns the run's folder and the records of its steps."""
    run_dir = run.ROOT / f"runs/capacity/{name}"
    records, _ = run.train(lancet, run.ROOT / "configs/quickstart.json", run_dir, steps,
                           [f"model.capacity_factor={factor}", "train.eval_interval=0", "train.sample_tokens=0",
                            "train.save_interval=0", "train.save_minutes=0", f"train.lr_warmup_steps={steps // 10}"],
                           [run.ROOT / "scripts/mpirun.sh", 2])
    return run_dir, records


def curve(lancet, factor, steps):
    """Returns the records of a whole run and its held-out loss."""
    run.log(f"capacity factor {factor}: {steps} steps")
    run_dir, records = train(lancet, factor, steps, f"factor-{factor}")
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return records, next(line["held_out_loss"] for line in lines if "held_out_loss" in line)


def step_times(lancet, rounds, steps):
    """Returns the milliseconds of the steps of all rounds, by factor."""
    def side(factor):
        _, records = train(lancet, factor, run.WARMUP + steps, "timed")
        return [record["step_ms"] for record in records[run.WARMUP:]]

    found = run.in_turns(rounds, {factor: lambda factor=factor: side(factor) for factor in FACTORS})
    return {factor: [ms for each in times for ms in each] for factor, times in found.items()}


def rows_of(factor, records, step_ms):
    losses = [record["loss"] for record in records]
    return [{"capacity_factor": factor, "step": record["step"], "seconds": record["step"] * step_ms / 1e3,
             "loss": record["loss"], "mean_loss": statistics.fmean(losses[max(0, i + 1 - WINDOW):i + 1]),
             "drop_pct": record["drop_pct"], "step_ms": step_ms} for i, record in enumerate(records)]


def draw(curves, path):
    figure, (by_time, by_step) = plt.subplots(1, 2, figsize=(9, 3.4), sharey=True)
    for axis, field, label in ((by_time, "seconds", "seconds"), (by_step, "step", "steps")):
        for factor, rows in curves.items():
            shown = rows[WINDOW:]
            axis.plot([row[field] for row in shown], [row["mean_loss"] for row in shown], linewidth=1, label=f"capacity factor {factor:g}")
        axis.set_xlim(0)
        axis.set_xlabel(label)
    by_time.set_ylabel(f"loss, mean of {WINDOW} steps")
    save(figure, path, "Loss by the capacity factor (measured)")


def reached(rows, loss):
    """The seconds after which the mean loss is at most `loss`, or None."""
    return next((row["seconds"] for row in rows[WINDOW:] if row["mean_loss"] <= loss), None)


def page(curves, held_out, times, rounds, load):
    """Returns the text of capacity.md."""
    steps = len(curves[BASE])
    goal = curves[BASE][-1]["mean_loss"]
    cells = []
    for factor, rows in curves.items():
        quarters = statistics.quantiles(times[factor], n=4)
        cells.append([f"{factor:g}", percent(statistics.fmean(row["drop_pct"] for row in rows) / 100),
                      number(rows[0]["step_ms"]), f"{number(quarters[0])} to {number(quarters[2])}",
                      number(rows[-1]["mean_loss"], 3), number(held_out[factor], 3),
                      number(reached(rows, goal)) or "not reached"])
    return "\n".join([
        "# Loss against wall-clock by the capacity factor", "",
        f"`python3 scripts/bench capacity`, commit {run.commit()}. configs/quickstart.json on 2 ranks, {steps} steps for each",
        f"capacity factor, measured on {run.cpu()}. The machine had other work (load {load[0]:.1f} to {load[1]:.1f} on",
        f"{os.cpu_count()} cores): a step's time is the median of {rounds} short runs that took turns, with its quartiles, and a",
        "curve's time is the number of steps times that median. The losses are those of one seed.", "",
        "![Loss by time and by steps for each capacity factor](capacity.svg)", "",
        *markdown(["capacity factor", "dropped, mean", "step, ms", "quartiles", f"loss, last {WINDOW} steps", "held-out loss",
                   f"seconds to the loss of {BASE:g}"], cells)]) + "\n"


def add_arguments(parser):
    parser.add_argument("--steps", type=run.at_least(2 * WINDOW), default=120, help="of a curve")
    parser.add_argument("--rounds", type=run.at_least(1), default=3, help="of the short runs that time the steps")
    parser.add_argument("--timed", type=run.at_least(1), default=8, help="timed steps of a short run")
    parser.add_argument("--out", type=Path, default=run.ROOT / "docs/results")
    run.add_program(parser)


def main(options):
    lancet, loads = run.program(options), [os.getloadavg()[0]]
    times = step_times(lancet, options.rounds, options.timed)
    loads.append(os.getloadavg()[0])
    curves, held_out = {}, {}
    for factor in FACTORS:
        records, held_out[factor] = curve(lancet, factor, options.steps)
        curves[factor] = rows_of(factor, records, statistics.median(times[factor]))
    text = page(curves, held_out, times, options.rounds, (min(loads), max(loads)))
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "capacity.md").write_text(text)
    write_csv(options.out / "capacity.csv", FIELDS, [rounded(row) for rows in curves.values() for row in rows])
    draw(curves, options.out / "capacity.svg")
