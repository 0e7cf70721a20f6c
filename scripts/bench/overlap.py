"""Runs the overlap policies on an emulated network, in turns, and writes overlap.md and overlap.csv.

It needs root, since hosts are network namespaces (scripts/emulate-cluster.sh), and takes an hour or two for all
points. A point is a model, a number of hosts and a share of communication. At each, runs of the sequential step find
the rate of the links that gives this share, `lancet profile` measures communication and new ops, then the policies run
in turns, in several rounds: all published ones that have work there, and ours. Rounds that are in the folder are not
run again, as long as the program's commit is the same, so the command may be interrupted. A rate is kept as long as the
folder has rounds of a point with the same sequential step.
"""
import os

from bench import overlap_page, policies, run
from bench.bounds import CASES
from bench.policies import Effort, Point, applying

FIRST_MBIT = 140  # the links' rate before a point finds its own
CLOSE = 0.02  # of the share, relative; a rate that comes as close is taken
MOST_TRIES = 4
PARTS = {"tutel": [f"tutel:{parts}" for parts in (2, 4, 8)]}  # each number apart
MOE = CASES["fp32"]


def policies_of(settings):
    published = [each for policy in applying(settings) for each in PARTS.get(policy, [policy])]
    return ["sequential", *published, *overlap_page.OURS]


def moe(what, settings):
    return Point(what, MOE.config, settings, 2, policies_of(settings), MOE.share, overlap_page.expert_figures)


def tensor(case):
    return Point(f"{case.what}, fp32", case.config, case.settings, case.ranks, policies_of(case.settings), case.share,
                 overlap_page.tensor_figures)


POINTS = {
    "main": moe("fp32, 6 x 256", []),
    "memory": moe("fp32, 1.3 times the memory", ["overlap.memory_factor=1.3"]),
    # Pairs of micro batches do not fit the default factor.
    "micro": moe("fp32, 2 micro batches, 1.3 times the memory",
                 ["train.gradient_accumulation_steps=2", "train.micro_batch_size=16", "overlap.memory_factor=1.3"]),
    "bf16": moe("bf16", CASES["bf16"].settings),
    "tensor": tensor(CASES["tensor-2"]),
}
HEAD = [
    "# Overlap policies on an emulated network", "",
    f"`python3 scripts/bench overlap` on {run.cpu()}, hosts of one core each on one machine, links of network",
    "namespaces limited by `tc tbf`: real ranks and messages, an emulated network. Milliseconds are medians over",
    "rounds, in which the policies take turns, of medians over steps; least and most are rounds. all-to-all: with",
    "gathers and scatters. exposed: a communication stream was busy and the compute stream was not. hidden: the share of",
    "the time of all-to-alls, gathers and scatters with computation beside it, in the last step of each round. parts: 0",
    "is what pays. ran: the policy whose plan ran, where another was predicted to be no slower or the policy's own",
    "needs more than the memory; policies of one plan have the rounds of all. The error is of the predicted step. The",
    "ends of a figure are from rounds drawn again: the",
    f"least and the most, or 95% where there are {policies.FEWEST} rounds or more.", ""]


def cluster(*arguments):
    run.call([run.ROOT / "scripts/emulate-cluster.sh", *arguments])


class Network:
    """The emulated network that is up."""

    launcher = [run.ROOT / "scripts/emulate-cluster.sh", "run", "--"]

    def __init__(self, lancet, folder):
        self.lancet, self.folder = lancet, folder
        self.hosts = 0

    def set_up(self, hosts):
        if hosts != self.hosts:
            cluster("down")
            cluster("up", "--hosts", hosts, "--rate", f"{FIRST_MBIT}mbit")
            self.hosts = hosts

    def share_at(self, point, mbit):
        """Returns the share of the sequential step that is communication of activations."""
        cluster("rate", f"{mbit}mbit")
        out = self.folder / "rate"
        settings = [f"overlap.profile={self.profile(point)}"]
        policies.compare(self.lancet, self.launcher, point.config, ["sequential"], 2, out,
                         [*point.settings, *settings])
        return overlap_page.share_of(policies.read_round(out))

    def rate_of(self, point):
        """Returns the links' rate in Mbit/s, of those tried, at which the share is closest to the point's."""
        mbit, share, tried = FIRST_MBIT, point.share, []
        for _ in range(MOST_TRIES):
            found = self.share_at(point, mbit)
            run.log(f"{mbit} Mbit/s: {share.words()}, found {found:.3f}")
            tried.append((abs(found / share.value - 1), mbit))
            if tried[-1][0] < CLOSE:
                break
            mbit = round(mbit * share.over_rest(found) / share.over_rest(share.value))
        return min(tried)[1]

    def profile(self, point):
        """The file of measured costs of all points with as many hosts."""
        return self.folder / f"profile-{point.hosts}.json"

    def measure_costs(self, point):
        run.call([*self.launcher, self.lancet, "profile", point.config, "--out", self.profile(point), "--renew",
                  "communication", *run.sets(point.settings)])


def step_of(point):
    """Returns what decides the sequential step of a point, and so its rate."""
    settings = [each for each in point.settings if not each.startswith("overlap.")]
    return point.config, point.hosts, point.share, settings


def rate_known(results, point):
    """Returns the rate that was found for another point of the same sequential step, at any commit, or None. So points
    that differ in the planner's settings alone have one rate, also where they were measured at different times."""
    return next((about["mbit"] for other, about, _ in results.all().values() if step_of(other) == step_of(point)), None)


def measure(name, network, results, effort):
    point = results.points[name]
    _, about = results.begin(name, effort.steps, run.program_commit())
    if len(results.rounds(name)) >= effort.rounds:
        return
    network.set_up(point.hosts)
    if "mbit" not in about:
        about["mbit"] = rate_known(results, point) or network.rate_of(point)
        about["rate"] = f"{about['mbit']}mbit"
        results.note(name, about)
    cluster("rate", about["rate"])
    network.measure_costs(point)
    policies.run_rounds(results, name, network.lancet, network.launcher, effort,
                        [f"overlap.profile={network.profile(point)}"])


def add_arguments(parser):
    overlap_page.add_arguments(parser, POINTS, "overlap", "overlap", rounds=3, steps=1)


def main(options):
    names, lancet = run.chosen("--points", options.points, POINTS), run.program(options)
    os.environ["LANCET_CLUSTER"] = "bench"
    options.folder.mkdir(parents=True, exist_ok=True)
    results, network = policies.Results(options.folder, POINTS), Network(lancet, options.folder)
    try:
        for name in names:
            measure(name, network, results, Effort(options.rounds, options.steps))
            overlap_page.write(results, HEAD, options.out / "overlap")
    finally:
        cluster("down")
