"""Makes tables (CSV, Markdown) and plots (SVG) of experiments, and compares them with the Lancet paper's claims.

Reads DIR/points/EXPERIMENT/points.jsonl as `bench sweep` writes them and makes DIR/EXPERIMENT.{csv,md}, of the paper's
figures also a plot, EXPERIMENT.svg, and DIR/claims.md. Every table has a column `network` (simulated, emulated,
measured), every plot names it in its title, and a plot of several kinds marks each kind differently.
"""
import itertools
import sys
from pathlib import Path

from bench import makers
from bench.claims import claims
from bench.points import COLUMNS, networks, read, sources, stand_ins
from bench.run import ROOT
from bench.table import write_csv
from hardware_table import read_commented

MAKERS = {
    "fig02": makers.breakdown, "fig06": makers.partition_range, "fig11": makers.iteration, "fig12": makers.iteration,
    "fig13": makers.decomposition, "fig14": makers.accuracy, "fig15": makers.planning, "fig16": makers.ablation,
    "padding": makers.padding, "scale": makers.scale, "sensitivity": makers.by_variation,
    "explanations": makers.by_variation, "fig06-launch": makers.launches}
RESULTS = ROOT / "docs/results"


def missing_of(experiment, points):
    """Returns the number of an experiment's points without a record. Records of any hardware count (--on)."""
    there = {(variation, *(point[key] for key in ("label", "model", "gate", "ranks", "policy")))
             for point in points for variation in point["varied"]}
    return sum((variation, grid.get("label", ""), *requested) not in there for grid in experiment["grids"]
               for variation in grid.get("hardware", [""])
               for requested in itertools.product(grid["models"], grid["gates"], grid["ranks"], grid["policies"]))


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
    plot = [f"![{title}]({name}.svg)", ""] if name[3:].isdigit() else []  # a figure of the paper
    command = f"`python3 scripts/bench sweep {name}`. {sources(points)}"
    return "\n".join([heading, "", command, "", *notes, *plot, *caption, *table]) + "\n"


def make(name, points, out):
    """Writes an experiment's files. Returns False if points are missing."""
    experiment = read_commented(ROOT / f"configs/experiments/{name}.json")
    title, missing = experiment["title"], missing_of(experiment, points)
    if missing:
        print(f"{name}: missing points: {missing}; the sweep's command makes them", file=sys.stderr)
    table = MAKERS[name](points, out / f"{name}.svg", title)
    write_csv(out / f"{name}.csv", COLUMNS, points)
    (out / f"{name}.md").write_text(page(name, title, points, missing, table))
    return missing == 0


def make_all(out, folder):
    """Writes the files of every experiment that has points, and the claims. Returns False if points are missing."""
    found, complete = {}, True
    for name in MAKERS:
        if not (folder / name / "points.jsonl").is_file():
            print(f"{name}: no points", file=sys.stderr)
            continue
        points = read(folder / name)
        try:
            complete &= make(name, points, out)
            found[name] = points
        except KeyError as key:
            print(f"{name}: no table without a point of {key}", file=sys.stderr)
            complete = False
    (out / "claims.md").write_text("\n".join(
        ["# The paper's claims, re-simulated and emulated", "",
         "Made by `python3 scripts/bench reproduce`. In brackets: the least and the greatest value among the ends of",
         "the hardware file's numbers. A system's schedule runs on this program's kernels and messages.", "",
         *claims(found)]) + "\n")
    return complete


def add_arguments(parser):
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results (default: docs/results)")
    parser.add_argument("--points", type=Path, help="folder of the sweeps (default: OUT/points)")


def main(options):
    return 0 if make_all(options.out, options.points or options.out / "points") else 1
