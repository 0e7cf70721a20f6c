"""Makes tables (CSV, Markdown) and plots (SVG) of experiments, and compares them with the Lancet paper's claims.

Reads DIR/points/EXPERIMENT/points.jsonl as `bench sweep` writes them and makes DIR/EXPERIMENT.{csv,md,svg} and
DIR/claims.md. DIR/emulated.csv, which `bench emulated` writes, is drawn as DIR/emulated.svg. Every table has a column
`network` (simulated, emulated, measured), every plot names it in its title, and a plot of several kinds marks each kind
differently.
"""
import itertools
import sys
from pathlib import Path

from bench import accuracy_figure, emulated, emulated_figure, planning_figures, sensitivity_figures, steps_figures
from bench.claims import claims
from bench.points import COLUMNS, bounds, networks, read, sources, stand_ins
from bench.run import ROOT
from bench.table import write_csv
from hardware_table import read_commented

MAKERS = {
    "fig02": steps_figures.breakdown, "fig06": steps_figures.partition_range, "fig11": steps_figures.iteration,
    "fig12": steps_figures.iteration, "fig13": steps_figures.decomposition, "fig14": accuracy_figure.accuracy,
    "fig15": planning_figures.planning, "fig16": steps_figures.ablation, "padding": steps_figures.padding,
    "scale": planning_figures.scale, "sensitivity": sensitivity_figures.by_variation,
    "explanations": sensitivity_figures.by_variation, "fig06-launch": sensitivity_figures.launches}
RESULTS = ROOT / "docs/results"


def missing_of(experiment, points):
    """Returns the number of an experiment's points without a record. Records of any hardware count (--on)."""
    there = {(variation, *(point[key] for key in ("label", "model", "gate", "ranks", "policy")))
             for point in points for variation in point["varied"]}
    return sum((variation, grid.get("label", ""), *requested) not in there for grid in experiment["grids"]
               for variation in grid.get("hardware", [""])
               for requested in itertools.product(grid["models"], grid["gates"], grid["ranks"], grid["policies"]))


def points_of(name, folder):
    """Returns an experiment's points, or None."""
    return read(folder / name) if (folder / name / "points.jsonl").is_file() else None


def page(name, title, points, missing, table):
    """Returns the text of an experiment's Markdown file."""
    failed = [point["why"] for point in points if point["status"] == "failed"]
    heading = f"# {title}"
    if name.startswith("fig"):
        heading += f", {networks(points).replace('simulated', 're-simulated')} (Fig. {int(name[3:5])} of the paper)"
    notes = [f"{len(failed)} points failed: " + "; ".join(failed), ""] if failed else []
    notes += [f"{missing} points are missing.", ""] if missing else []
    schedules = stand_ins(points)
    caption = [f"{schedules}. All run on this program's kernels and messages.", ""] if schedules else []
    return "\n".join([heading, "", f"`python3 scripts/bench sweep {name}`. {sources(points)}", "", *notes,
                      f"![{title}]({name}.svg)", "", *caption, *table]) + "\n"


def make(name, points, out):
    """Writes an experiment's files. Returns False if points are missing."""
    experiment = read_commented(ROOT / f"configs/experiments/{name}.json")
    title, missing = experiment["title"], missing_of(experiment, points)
    if missing:
        print(f"{name}: missing points: {missing}; the sweep's command makes them", file=sys.stderr)
    table = MAKERS[name](points, out / f"{name}.svg", title)
    write_csv(out / f"{name}.csv", COLUMNS, points + bounds(points))
    (out / f"{name}.md").write_text(page(name, title, points, missing, table))
    return missing == 0


def make_all(out, folder):
    """Writes the files of every experiment that has points, and the claims. Returns False if points are missing."""
    found, complete = {}, True
    for name in MAKERS:
        points = points_of(name, folder)
        if points is None:
            print(f"{name}: no points", file=sys.stderr)
            continue
        try:
            complete &= make(name, points, out)
            found[name] = points
        except KeyError as key:
            print(f"{name}: no table without a point of {key}", file=sys.stderr)
            complete = False
    if (out / "emulated.csv").is_file():  # `bench emulated` writes it
        emulated_figure.draw(emulated.read(out / "emulated.csv"), out / "emulated.svg")
    (out / "claims.md").write_text("\n".join(
        ["# The paper's claims, re-simulated and emulated", "",
         "Made by `python3 scripts/bench reproduce`. In brackets: the least and the greatest value among the ends of the",
         "hardware file's numbers. A system's schedule is that schedule on this program's kernels and messages.", "",
         *claims(found)]) + "\n")
    return complete


def add_arguments(parser):
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results (default: docs/results)")
    parser.add_argument("--points", type=Path, help="folder of the sweeps (default: OUT/points)")


def main(options):
    return 0 if make_all(options.out, options.points or options.out / "points") else 1
