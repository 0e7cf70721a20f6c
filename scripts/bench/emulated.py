"""Runs the policies on emulated clusters and compares their steps with the prediction.

It needs root, since hosts are network namespaces (scripts/emulate-cluster.sh). A case is a hardware file, a model that
is cut down so that steps stay short, and a number of hosts and of ranks on each. Its ranks are emulated devices: the
real planner, executor and messages run, and ops take the time that the hardware file declares. So the errors are those
of the simulator, the executor and the transport; they say nothing about the numbers of the hardware file. An error is
predicted / step - 1, as in figure 14: below 0, the step was longer than predicted.

Each case runs all policies in turns, in several rounds. Rounds that are in the folder are not run again, as long as the
program's commit is the same, so the command may be interrupted. Policies whose plans are the same schedule are one
plan, whose rounds are pooled. The tables go to docs/results/emulated.md and emulated.csv.
"""
import itertools
import random
import statistics
from typing import NamedTuple

from bench import policies, run
from bench.points import group
from bench.policies import MOST_LATE
from bench.table import markdown, number, signed_percent, write_page

OF_PAIRS = "neighbour_microbatches"  # without a second micro batch it is dw
TOLD_APART = 0.03  # predicted steps that differ by more are expected in the right order


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
    memory_factor: float = 1.05  # micro batches beside one another need more
    settings: dict = {}  # further fields of the config

    def policies(self):
        return [policy for policy in policies.ALL if policy != OF_PAIRS or self.micro_batches > 1]

    def point(self):
        return policies.Point(f"{self.hosts} hosts of {self.hardware}", str(policies.CONFIG), policies.settings_of({
            **policies.fields_of(self.hardware, self.scale, self.dilation, self.routing), "model.vocab_size": 2048,
            "model.n_layer": self.layers, "train.seq_len": 512, "train.micro_batch_size": self.sequences,
            "train.gradient_accumulation_steps": self.micro_batches, "overlap.memory_factor": self.memory_factor,
            **self.settings}),
            self.hosts * self.ranks_a_host, self.policies())


TOP_2 = {"model.router": "top_k", "model.num_experts_per_tok": 2, "model.capacity_factor": "null"}  # drops nothing
CASES = {
    "v100-2": Case("p3dn-v100", 2, 1, 100, 12, 4, 8),
    "v100-4": Case("p3dn-v100", 4, 1, 100, 12, 4, 8),
    "v100-4-zipf": Case("p3dn-v100", 4, 1, 100, 12, 4, 8, "zipf:1"),
    "v100-4-top-2": Case("p3dn-v100", 4, 1, 100, 12, 4, 8, settings=TOP_2),
    "v100-4-top-2-zipf": Case("p3dn-v100", 4, 1, 100, 12, 4, 8, "zipf:0.5", settings=TOP_2),
    "v100-4-micro": Case("p3dn-v100", 4, 1, 100, 12, 4, 4, micro_batches=2, memory_factor=1.3),
    "v100-8": Case("p3dn-v100", 8, 1, 50, 24, 2, 4),
    "v100-8-top-2": Case("p3dn-v100", 8, 1, 50, 24, 2, 4, settings=TOP_2),
    "v100-8-top-2-zipf": Case("p3dn-v100", 8, 1, 50, 24, 2, 4, "zipf:0.5", settings=TOP_2),
    "v100-16": Case("p3dn-v100", 16, 1, 50, 40, 2, 4),
    "v100-32": Case("p3dn-v100", 32, 1, 25, 48, 2, 4),
    "v100-4x2": Case("p3dn-v100", 4, 2, 50, 24, 2, 4),
    "a100-4": Case("p4de-a100", 4, 1, 100, 24, 4, 32),
    "a100-8": Case("p4de-a100", 8, 1, 100, 24, 4, 32),
    "h100-4": Case("dgx-h100", 4, 1, 100, 192, 4, 32),
    "h100-8": Case("dgx-h100", 8, 1, 100, 192, 4, 32),
}
POINTS = {name: case.point() for name, case in CASES.items()}


# The errors of predictions

def error(predicted, measured):
    return 100 * (predicted / measured - 1)


def rows_of(case, about, found):
    """Returns a row for each policy. found: medians of the rounds by policy (policies.medians)."""
    base, rows = next(iter(found.values())), []
    for policy, row in found.items():
        faster, predicted = base["step_ms"] / row["step_ms"], base["predicted_ms"] / row["predicted_ms"]
        rows.append({"case": case, "policy": policy, **row, "error_pct": error(row["predicted_ms"], row["step_ms"]),
                     "speed_up": faster, "predicted_speed_up": predicted,
                     "speed_up_error_pct": error(predicted, faster), "commit": about["commit"]})
    return rows


def plans_of(rows):
    """Returns the rows of each plan of one case."""
    return list(group(rows, "plan").values())


def is_late(row):
    return row["late_pct"] > MOST_LATE


def on_time(rows):
    """Returns one row for each plan of a case that the machine kept up with."""
    return [same[0] for same in plans_of(rows) if not is_late(same[0])]


def speed_up_errors(rows):
    """Returns the errors of the speed-ups of a case; none if the base was late."""
    base = rows[0]
    return [] if is_late(base) else [row["speed_up_error_pct"] for row in on_time(rows) if row["plan"] != base["plan"]]


def pairs_in_order(rows):
    """Of the pairs of plans whose predictions differ: how many there are, and how many are measured in that order."""
    pairs = [(a, b) for a, b in itertools.combinations(on_time(rows), 2)
             if abs(a["predicted_ms"] / b["predicted_ms"] - 1) > TOLD_APART]
    return len(pairs), sum((a["predicted_ms"] < b["predicted_ms"]) == (a["step_ms"] < b["step_ms"]) for a, b in pairs)


def interval(values, draws=2000):
    """The bootstrapped 95% confidence interval of the mean; the draws are the same each time."""
    generator = random.Random(1)
    means = sorted(statistics.fmean(generator.choices(values, k=len(values))) for _ in range(draws))
    return means[int(0.025 * draws)], means[int(0.975 * draws)]


def errors_line(what, errors):
    sizes = [abs(each) for each in errors]
    low, high = interval(sizes)
    return (f"- error of the predicted {what}: {statistics.fmean(sizes):.1f}% in the mean (95% confidence: "
            f"{low:.1f}% to {high:.1f}%), {max(sizes):.1f}% at worst, {len(sizes)} plans")


def bias_line(errors):
    mean = statistics.fmean(errors)
    return f"- bias: steps were {abs(mean):.1f}% {'longer' if mean < 0 else 'shorter'} than predicted in the mean"


def summary(by_case):
    """Returns lines on the plans of all cases. by_case: the rows of each case."""
    steps = [row["error_pct"] for rows in by_case for row in on_time(rows)]
    faster = [each for rows in by_case for each in speed_up_errors(rows)]
    pairs, right = (sum(counts) for counts in zip(*map(pairs_in_order, by_case)))
    plans = sum(len(plans_of(rows)) for rows in by_case)
    lines = [errors_line("step", steps), bias_line(steps)] if steps else []
    lines += [errors_line("speed-up over the first policy", faster)] if faster else []
    return [*lines,
            f"- order: right in {right} of the {pairs} pairs of plans whose predictions differ by more than "
            f"{100 * TOLD_APART:.0f}%",
            f"- left out of these numbers: {plans - len(steps)} of {plans} plans, since they were late by more than "
            f"{MOST_LATE}% of a step"]


# The page

def seconds_here(name, rounds):
    """Returns the longest median step of a policy in seconds of this machine."""
    return max(row["step_ms"] for row in policies.medians(rounds).values()) * CASES[name].dilation / 1e3


def cases_table(found):
    rows = []
    for name, (_, about, rounds) in found.items():
        case = CASES[name]
        rows.append([name, case.hardware, case.routing, case.hosts, case.ranks_a_host, case.scale, case.dilation,
                     case.layers, case.sequences, case.micro_batches, number(seconds_here(name, rounds)),
                     len(rounds), about["steps"], about["commit"]])
    return markdown(["case", "hardware", "routing", "hosts", "ranks a host", "scale", "dilation", "layers", "sequences",
                     "micro batches", "longest step here, s", "rounds", "steps", "commit"], rows)


def cells(same):
    """Returns the line of a plan. same: the rows of its policies."""
    row = same[0]
    return [row["case"], ", ".join(each["policy"] for each in same), row["steps"],
            *(number(row[name]) for name in ("predicted_ms", "step_ms", "least_ms", "most_ms")),
            signed_percent(row["error_pct"] / 100), number(row["speed_up"], 3), number(row["predicted_speed_up"], 3),
            number(row["late_pct"]) + (", left out" if is_late(row) else "")]


def best_over_lancet(rows):
    """Returns the name of the fastest published way that was not late, and its step over that of `lancet`."""
    published = [name for name in rows if name in policies.PUBLISHED]
    best = min([name for name in published if not is_late(rows[name])] or published,
               key=lambda name: rows[name]["step_ms"])
    return best, rows[best]["step_ms"] / rows["lancet"]["step_ms"]


def lancet_lines(found):
    """Returns the lines on what `lancet` chose beside the best of what it could have chosen."""
    rows = []
    for name, (*_, rounds) in found.items():
        medians = policies.medians(rounds)
        if "lancet" not in medians or is_late(medians["lancet"]):
            rows.append([name, "", "lancet was late", "", ""])
            continue
        best, ratio = best_over_lancet(medians)
        what, ends = policies.intervals(rounds, lambda rows: {"over": best_over_lancet(rows)[1]})
        rows.append([name, best, number(ratio, 3), " to ".join(number(end, 3) for end in ends["over"]), what])
    return ["## The best single published way over `lancet`", "",
            "The median step of the published way that was fastest, over that of `lancet`; plans that are the same",
            "schedule are one, and late plans are left out. The ends are from rounds drawn again at random.", "",
            *markdown(["case", "best single way", "its step / that of lancet", "ends", "which are"], rows), ""]


def page(found, by_case):
    """Returns the lines of emulated.md. found: point, what its rounds are of, rounds, by case."""
    missing = [name for name in CASES if name not in found]
    return [
        "# Emulated devices: predicted against run", "",
        f"`python3 scripts/bench emulated` on {run.cpu()}. Emulated devices on emulated links: messages, planner,",
        "executor and transport are real, ops take declared times. So the errors are those of the simulator, the",
        "executor and the transport, and say nothing of the hardware files' numbers. Times are the device's own",
        "milliseconds: the machine's, divided by the dilation. A step's time is the median over rounds of a round's",
        "median; policies that ran the same plan are one line, with the rounds of all. An error is predicted / step -",
        "1: below 0, the step was longer than predicted.", "",
        *summary(by_case), "", *cases_table(found), "",
        *([f"Cases that have not been run to their end: {', '.join(missing)}.", ""] if missing else []),
        *lancet_lines(found), "## All plans", "",
        *markdown(["case", "policies of the plan", "steps", "predicted", "step", "least", "most", "error", "speed-up",
                   "predicted", "late %"], [cells(same) for rows in by_case for same in plans_of(rows)])]


def write(results, out):
    found = results.all()
    by_case = [rows_of(name, about, policies.medians(rounds)) for name, (_, about, rounds) in found.items()]
    rows = [row for of_case in by_case for row in of_case]
    write_page(out / "emulated", page(found, by_case), rows)
    for line in summary(by_case):
        run.log(line)


def add_arguments(parser):
    run.add_options(parser, "--cases", CASES, "emulated", rounds=5, steps=1)


def main(options):
    names, lancet = run.chosen("--cases", options.cases, CASES), run.program(options)
    results, effort = policies.Results(options.folder, POINTS), policies.Effort(options.rounds, options.steps)
    for name in names:
        run.log(f"case {name}")
        case = CASES[name]
        if results.start(name, effort):
            up = policies.links(case.hosts, case.hardware, case.scale, case.dilation, case.ranks_a_host)
            with policies.Cluster("bench", *up) as launcher:
                policies.run_rounds(results, name, lancet, launcher, effort)
        write(results, options.out)
