"""Reproduces the Lancet paper's figures: the points of every experiment, then tables (CSV, Markdown) and plots (SVG).

Figure 14 needs real runs, here and on an emulated cluster (as root, on an idle machine): --runs. An interrupted command
resumes where it stopped; --fresh runs every point again.
"""
from pathlib import Path

from bench import figures, run, sweep


def add_arguments(parser):
    parser.add_argument("--out", type=Path, default=figures.RESULTS, help="of the results (default: docs/results)")
    parser.add_argument("--only", default=",".join(figures.MAKERS), help="names of experiments, separated by commas")
    parser.add_argument("--runs", action="store_true", help="run figure 14's points as well")
    parser.add_argument("--fresh", action="store_true", help="run recorded points again")
    run.add_program(parser)


def main(options):
    lancet, names, failed = run.program(options), options.only.split(","), 0
    for name in names:
        if name not in figures.MAKERS:
            raise run.Failed(f"--only: expected some of {','.join(figures.MAKERS)}, found '{name}'")
    for name in names:
        if name == "fig14" and not options.runs:
            continue
        code = sweep.sweep(name, lancet, options.out / "points" / name, fresh=options.fresh)
        if code == sweep.INTERRUPTED:
            return code
        failed = code or failed  # the tables mark points that failed
    return failed if figures.make_all(options.out, options.out / "points") else 1
