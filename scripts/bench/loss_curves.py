"""Loss against wall-clock of variants of configs/quickstart.json, trained on 2 ranks on the data that scripts/quickstart.sh
makes. Losses do not depend on the machine's load, step times do: they are the medians of short runs that take turns, in
several rounds. A curve's time is the number of steps times that median.
"""
import json
import os
import statistics
from pathlib import Path

from bench import run
from bench.plot import plt, save

WINDOW = 10  # steps over which a plotted loss is the mean
RANKS = 2
FIELDS = ["step", "seconds", "loss", "mean_loss", "drop_pct", "step_ms"]


def fields(settings, steps):
    """Returns what a run of a variant sets in configs/quickstart.json."""
    return ["train.eval_interval=0", "train.sample_tokens=0", "train.save_interval=0", "train.save_minutes=0",
            f"train.lr_warmup_steps={steps // 10}", *settings]


def train(lancet, folder, settings, steps):
    """Returns the records of the steps of a run in this folder below runs/."""
    records, _ = run.train(lancet, run.ROOT / "configs/quickstart.json", run.ROOT / "runs" / folder, steps,
                           fields(settings, steps), [run.ROOT / "scripts/mpirun.sh", RANKS])
    return records


def curve(lancet, folder, settings, steps):
    """Returns the records of a whole run and its held-out loss."""
    run.log(f"{folder}: {steps} steps")
    records = train(lancet, folder, settings, steps)
    lines = [json.loads(line) for line in (run.ROOT / "runs" / folder / "metrics.jsonl").read_text().splitlines()]
    return records, next(line["held_out_loss"] for line in lines if "held_out_loss" in line)


def step_times(lancet, folder, variants, rounds, steps):
    """Returns the milliseconds of the steps of all rounds, by variant, and the machine's load before and after."""
    def side(settings):
        records = train(lancet, f"{folder}/timed", settings, run.WARMUP + steps)
        return [record["step_ms"] for record in records[run.WARMUP:]]

    loads = [os.getloadavg()[0]]
    found = run.in_turns(rounds, {name: lambda settings=settings: side(settings) for name, settings in variants.items()})
    loads.append(os.getloadavg()[0])
    return {name: [ms for each in times for ms in each] for name, times in found.items()}, loads


def rows_of(records, step_ms):
    losses = [record["loss"] for record in records]
    return [{"step": record["step"], "seconds": record["step"] * step_ms / 1e3, "loss": record["loss"],
             "mean_loss": statistics.fmean(losses[max(0, i + 1 - WINDOW):i + 1]), "drop_pct": record["drop_pct"],
             "step_ms": step_ms} for i, record in enumerate(records)]


def draw(curves, path, title):
    figure, (by_time, by_step) = plt.subplots(1, 2, figsize=(9, 3.4), sharey=True)
    for axis, field, label in ((by_time, "seconds", "seconds"), (by_step, "step", "steps")):
        for name, rows in curves.items():
            shown = rows[WINDOW:]
            axis.plot([row[field] for row in shown], [row["mean_loss"] for row in shown], linewidth=1, label=name)
        axis.set_xlim(0)
        axis.set_xlabel(label)
    by_time.set_ylabel(f"loss, mean of {WINDOW} steps")
    save(figure, path, title)


def machine(load):
    """Returns a sentence about the machine and its load while steps were timed."""
    return (f"Measured on {run.cpu()}, {os.cpu_count()} cores, of which other work took some (load {min(load):.1f} to "
            f"{max(load):.1f}).")


def add_arguments(parser):
    parser.add_argument("--rounds", type=run.at_least(1), default=3, help="of the short runs that time the steps")
    parser.add_argument("--timed", type=run.at_least(1), default=8, help="timed steps of a short run")
    parser.add_argument("--out", type=Path, default=run.ROOT / "docs/results")
    run.add_program(parser)
