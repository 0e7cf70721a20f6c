"""Runs the policies on emulated clusters and compares their steps with the prediction.

It needs root, since hosts are network namespaces (scripts/emulate-cluster.sh). A case is a hardware file, a model that
is cut down so that steps stay short, and a number of hosts and of ranks on each. Its ranks are emulated devices: the
real planner, executor and messages run, and ops take the time that the hardware file declares. So the errors are those
of the simulator, the executor and the transport; they say nothing about the numbers of the hardware file.

Each case runs all policies in turns, in several rounds. Rounds that are in the folder are not run again, as long as the
program's commit is the same, so the command may be interrupted. The tables go to docs/results/emulated.md and
emulated.csv; `python3 scripts/bench figures` draws the latter as emulated.svg.
"""
import csv
from pathlib import Path
from typing import NamedTuple

from bench import policies, run
from bench.emulated_errors import is_late, plans_of, rows_of, summary
from bench.table import markdown, number, rounded, signed_percent, write_csv

OF_PAIRS = "neighbour_microbatches"  # without a second micro batch it is dw
LONG = 3  # seconds of this machine; what a step should stay below


class Case(NamedTuple):
    """A link carries its device's rate divided by scale and dilation. More hosts get a higher dilation, which leaves
    the machine the time for their messages, a lower scale, so that messages among many ranks are still packets of some
    size, and fewer layers, since a step takes the dilation times as long here."""
    hardware: str
    hosts: int
    ranks_a_host: int
    scale: int
    dilation: int
    layers: int
    sequences: int  # of a micro-batch
    routing: str = "even"
    micro_batches: int = 1
    memory_factor: float = 1.05  # pairs of micro batches need more

    def policies(self):
        return [policy for policy in policies.ALL if policy != OF_PAIRS or self.micro_batches > 1]

    def point(self):
        return policies.Point(f"{self.hosts} hosts of {self.hardware}", str(policies.CONFIG), policies.settings_of({
            **policies.fields_of(self.hardware, self.scale, self.dilation, self.routing), "model.vocab_size": 2048,
            "model.n_layer": self.layers, "train.seq_len": 512, "train.micro_batch_size": self.sequences,
            "train.gradient_accumulation_steps": self.micro_batches, "overlap.memory_factor": self.memory_factor}),
            self.hosts * self.ranks_a_host, self.policies())


CASES = {
    "v100-2": Case("p3dn-v100", 2, 1, 100, 12, 4, 8),
    "v100-4": Case("p3dn-v100", 4, 1, 100, 12, 4, 8),
    "v100-4-zipf": Case("p3dn-v100", 4, 1, 100, 12, 4, 8, "zipf:1"),
    "v100-4-micro": Case("p3dn-v100", 4, 1, 100, 12, 4, 4, micro_batches=2, memory_factor=1.3),
    "v100-8": Case("p3dn-v100", 8, 1, 50, 24, 2, 4),
    "v100-16": Case("p3dn-v100", 16, 1, 50, 40, 2, 4),
    "v100-32": Case("p3dn-v100", 32, 1, 25, 48, 2, 4),
    "v100-4x2": Case("p3dn-v100", 4, 2, 50, 24, 2, 4),
    "a100-4": Case("p4de-a100", 4, 1, 100, 24, 4, 32),
    "a100-8": Case("p4de-a100", 8, 1, 100, 24, 4, 32),
    "h100-4": Case("dgx-h100", 4, 1, 100, 192, 4, 32),
    "h100-8": Case("dgx-h100", 8, 1, 100, 192, 4, 32),
}


POINTS = {name: case.point() for name, case in CASES.items()}


def run_case(name, lancet, results, effort):
    _, about = results.begin(name, effort.steps, run.program_commit())
    results.note(name, about)
    if len(results.rounds(name)) >= effort.rounds:
        return
    case = CASES[name]
    up = policies.links(case.hosts, case.hardware, case.scale, case.dilation, case.ranks_a_host)
    with policies.Cluster("bench", *up) as launcher:
        policies.run_rounds(results, name, lancet, launcher, effort)


def seconds_here(name, rounds):
    """Returns the longest median step of a policy in seconds of this machine."""
    longest = max(row["step_ms"] for row in policies.medians(rounds).values())
    return longest * CASES[name].dilation / 1e3


def cases_table(found):
    rows = []
    for name, (_, about, rounds) in found.items():
        case = CASES[name]
        rows.append([name, case.hardware, case.routing, case.hosts, case.ranks_a_host, case.scale, case.dilation,
                     case.layers, case.sequences, case.micro_batches, number(seconds_here(name, rounds)),
                     len(rounds), about["steps"], about["commit"]])
    return markdown(["case", "hardware", "routing", "hosts", "ranks a host", "scale", "dilation", "layers", "sequences",
                     "micro batches", "longest step here, s", "rounds", "steps", "commit"], rows)


def long_steps(found):
    """Returns lines on the cases whose steps take long here."""
    names = [name for name, (*_, rounds) in found.items() if seconds_here(name, rounds) > LONG]
    if not names:
        return []
    return [f"Steps of {', '.join(names)} take more than {LONG} s here. The messages of an all-to-all grow with the",
            "square of the ranks, and each takes this machine its time, whatever its size: a lower dilation would leave",
            "less time than they need, fewer sequences would make messages of less than a packet, and there is one MoE",
            "layer already.", ""]


def missing_lines(found):
    """Returns a line on the cases without results."""
    names = [name for name in CASES if name not in found]
    return [f"Cases that have not been run to their end: {', '.join(names)}.", ""] if names else []


def late_cell(row):
    return number(row["late_pct"]) + (", left out" if is_late(row) else "")


def cells(same):
    """Returns the line of a plan. same: the rows of its policies."""
    row = same[0]
    return [row["case"], ", ".join(each["policy"] for each in same), row["steps"],
            *(number(row[name]) for name in ("predicted_ms", "step_ms", "least_ms", "most_ms")),
            signed_percent(row["error_pct"] / 100), number(row["speed_up"], 3), number(row["predicted_speed_up"], 3),
            late_cell(row)]


def best_over_auto(rows):
    """Returns the step of the fastest published way, that was not late, over that of `auto`, by the way's name."""
    published = [name for name in rows if name in policies.PUBLISHED]
    best = min([name for name in published if not is_late(rows[name])] or published,
               key=lambda name: rows[name]["step_ms"])
    return {best: rows[best]["step_ms"] / rows["auto"]["step_ms"]}


def auto_lines(found):
    """Returns the lines on what `auto` chose beside the best of what it could have chosen."""
    rows = []
    for name, (*_, rounds) in found.items():
        medians = policies.medians(rounds)
        if "auto" not in medians or is_late(medians["auto"]):
            rows.append([name, "", "auto was late", "", ""])
            continue
        (best, ratio), = best_over_auto(medians).items()
        what, ends = policies.intervals(rounds, lambda rows: {"over": next(iter(best_over_auto(rows).values()))})
        rows.append([name, best, number(ratio, 3), " to ".join(number(end, 3) for end in ends["over"]), what])
    return ["## The best single published way over `auto`", "",
            "The median step of the published way that was fastest, over that of `auto`; plans that are the same",
            "schedule are one, and plans that were late are left out. The ends are from rounds drawn again at random.", "",
            *markdown(["case", "best single way", "its step / that of auto", "ends", "which are"], rows), ""]


def rows_by_case(found):
    return [rows_of(name, about, policies.medians(rounds)) for name, (_, about, rounds) in found.items()]


def page(found):
    """Returns the text of emulated.md. found: point, what its rounds are of, rounds, by case."""
    by_case = rows_by_case(found)
    return "\n".join([
        "# Emulated devices: predicted against run", "",
        f"`python3 scripts/bench emulated` on {run.cpu()}. Emulated devices on emulated links: messages, planner,",
        "executor and transport are real, ops take declared times. So the errors are those of the simulator, the executor",
        "and the transport, and say nothing about the numbers of the hardware files. Times are the device's own",
        "milliseconds: the machine's, divided by the dilation. A step's time is the median over rounds of a round's",
        "median; policies that ran the same plan are one line, with the rounds of all. An error is predicted / step - 1:",
        "below 0, the step was longer than predicted.", "",
        "![Predicted beside emulated steps](emulated.svg)", "",
        *summary(by_case), "", *cases_table(found), "", *long_steps(found),
        *missing_lines(found), *auto_lines(found), "## All plans", "",
        *markdown(["case", "policies of the plan", "steps", "predicted", "step", "least", "most", "error", "speed-up",
                   "predicted", "late %"], [cells(same) for rows in by_case for same in plans_of(rows)])]) + "\n"


def write(results, out):
    found = results.all()
    by_case = rows_by_case(found)
    rows = [row for of_case in by_case for row in of_case]
    out.mkdir(parents=True, exist_ok=True)
    (out / "emulated.md").write_text(page(found))
    write_csv(out / "emulated.csv", list(rows[0]), map(rounded, rows))
    for line in summary(by_case):
        run.log(line)


NUMBERS = ("predicted_ms", "step_ms", "least_ms", "most_ms", "error_pct", "late_pct")


def read(path):
    """Returns the rows of an emulated.csv, with numbers as such and the hardware file of their case."""
    return [{**row, "hardware": CASES[row["case"]].hardware, **{name: float(row[name]) for name in NUMBERS}}
            for row in csv.DictReader(path.read_text().splitlines())]


def add_arguments(parser):
    parser.add_argument("--cases", default=",".join(CASES), help="cases, separated by commas; default: %(default)s")
    parser.add_argument("--rounds", type=run.at_least(1), default=5)
    parser.add_argument("--steps", type=run.at_least(1), default=1, help="measured steps in a round, after one")
    parser.add_argument("--folder", type=Path, default=run.ROOT / "runs/emulated", help="of the cases' results")
    parser.add_argument("--out", type=Path, default=run.ROOT / "docs/results")
    run.add_program(parser)


def main(options):
    names, lancet = run.chosen("--cases", options.cases, CASES), run.program(options)
    options.folder.mkdir(parents=True, exist_ok=True)
    results = policies.Results(options.folder, POINTS)
    for name in names:
        run.log(f"case {name}")
        run_case(name, lancet, results, policies.Effort(options.rounds, options.steps))
        write(results, options.out)
    return 0
