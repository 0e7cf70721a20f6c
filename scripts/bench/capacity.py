"""Loss against wall-clock by the capacity factor: capacity.md, capacity.csv and capacity.svg.

Trains configs/quickstart.json on 2 ranks, once for each capacity factor, on the data that scripts/quickstart.sh makes.
A step's time is the median of short runs that take turns, in several rounds; a curve's time is the number of steps times
that median.
"""
import statistics

from bench import loss_curves, run
from bench.loss_curves import WINDOW
from bench.table import markdown, number, percent, rounded, write_csv

FACTORS = (0.5, 1.0, 1.25, 2.0, 4.0)  # with 4 experts nothing is dropped at 4
BASE = 1.25  # of the quick start


def settings_of(factor):
    return [f"model.capacity_factor={factor}"]


def reached(rows, loss):
    """The seconds after which the mean loss is at most `loss`, or None."""
    return next((row["seconds"] for row in rows[WINDOW:] if row["mean_loss"] <= loss), None)


def page(curves, held_out, times, options, load):
    """Returns the text of capacity.md."""
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
        f"`python3 scripts/bench capacity`, commit {run.commit()}. configs/quickstart.json on 2 ranks, {options.steps} steps",
        f"for each capacity factor. {loss_curves.machine(load)}",
        f"A step's time is the median of {options.rounds} short runs that took turns, with its quartiles, and a curve's time is",
        "the number of steps times that median. The losses are those of one seed.", "",
        "![Loss by time and by steps for each capacity factor](capacity.svg)", "",
        *markdown(["capacity factor", "dropped, mean", "step, ms", "quartiles", f"loss, last {WINDOW} steps", "held-out loss",
                   f"seconds to the loss of {BASE:g}"], cells)]) + "\n"


def add_arguments(parser):
    parser.add_argument("--steps", type=run.at_least(2 * WINDOW), default=120, help="of a curve")
    loss_curves.add_arguments(parser)


def main(options):
    lancet = run.program(options)
    variants = {factor: settings_of(factor) for factor in FACTORS}
    times, load = loss_curves.step_times(lancet, "capacity", variants, options.rounds, options.timed)
    curves, held_out = {}, {}
    for factor, settings in variants.items():
        records, held_out[factor] = loss_curves.curve(lancet, f"capacity/factor-{factor}", settings, options.steps)
        curves[factor] = loss_curves.rows_of(records, statistics.median(times[factor]))
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "capacity.md").write_text(page(curves, held_out, times, options, load))
    write_csv(options.out / "capacity.csv", ["capacity_factor", *loss_curves.FIELDS],
              [rounded({"capacity_factor": factor, **row}) for factor, rows in curves.items() for row in rows])
    loss_curves.draw({f"capacity factor {factor:g}": rows for factor, rows in curves.items()}, options.out / "capacity.svg",
                     "Loss by the capacity factor (measured)")
