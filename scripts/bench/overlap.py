"""Runs the overlap policies on an emulated network (overlap) or on emulated devices (overlap_devices), in turns, and
writes overlap.md or overlap_devices.md, with a CSV file beside it.

It needs root, since hosts are network namespaces (scripts/emulate-cluster.sh), and takes an hour or two for all points.
A point is a model, a number of hosts and a share of communication. At each, all published policies that have work there
and ours run in turns, in several rounds. Rounds that are in the folder are not run again, as long as the
program's commit is the same, so the command may be interrupted.

overlap: ranks compute. Runs of the sequential step find the rate of the links that gives the share, and `lancet
profile` measures communication and new ops. A rate is kept as long as the folder has rounds of a point
with the same sequential step.

overlap_devices: the same points on 2 devices, and more: one MoE layer on 4 and 8
devices, whose all-to-alls are 0.3, 0.6 and 1.0 of the experts' computation, and products that are split over 4 and 8
devices. The planner finds the rate of the network that gives the share; links and devices have it, divided by a scale
of bytes and a dilation of time. Ops take declared times and messages are real.
"""
import functools
import statistics

from bench import policies, run
from bench.declared import CASES, CPU, Case, Plans
from bench.policies import CLUSTER, OURS, Point, applying, intervals, medians
from bench.table import markdown, number, percent, signed_percent, write_page

FIRST_MBIT = 140  # the links' rate before a point finds its own
CLOSE = 0.02  # of the share, relative; a rate that comes as close is taken
MOST_TRIES = 4
PARTS = {"tutel": [f"tutel:{parts}" for parts in (2, 4, 8)]}  # each number apart
MOE = CASES["fp32"]
SCALE = 16
# By devices: more of them need more of this machine's time; so do the many messages of products split over ranks.
DILATION = {"experts": {2: 2, 4: 3, 8: 6}, "products": {2: 3, 4: 6, 8: 16}}


FIELDS = ["point", "what", "rate", "hosts", "policy", "parts", "ran", "step_ms", "least_ms", "most_ms", "compute_ms",
          "a2a_ms", "allreduce_ms", "communication_ms", "exposed_ms", "hidden_forward_pct", "hidden_backward_pct",
          "predicted_ms", "late_pct", "arena_mb", "steps", "rounds", "commit"]


# The figures of points, from medians by policy

def fastest(rows, names):
    return min((row for name, row in rows.items() if name in names), key=lambda row: row["step_ms"])


def ours_in(rows):
    return [name for name in OURS if name in rows]


def common_figures(rows, names):
    """Returns the figures that every point has of each of our policies. rows: medians by policy."""
    found, sequential = {}, next(iter(rows.values()))
    for ours in names:
        mine = rows[ours]
        found |= {f"sequential / {ours}, step": sequential["step_ms"] / mine["step_ms"],
                  f"{ours}, step / max(compute, communication)":
                      mine["step_ms"] / max(mine["compute_ms"], mine["communication_ms"]),
                  f"{ours} / sequential, arena": mine["arena_mb"] / sequential["arena_mb"]}
    return found


def share_of(rows):
    sequential = rows["sequential"]
    return sequential["a2a_ms"] / sequential["step_ms"]


def expert_figures(rows):
    """Returns the figures of a model with experts."""
    best = fastest(rows, [name for name in rows if name.startswith("tutel")])
    found = {"all-to-all / step, sequential": share_of(rows)}
    for ours in ours_in(rows):
        found |= {f"{ours} / best tutel, exposed": rows[ours]["exposed_ms"] / best["exposed_ms"],
                  f"best tutel / {ours}, step": best["step_ms"] / rows[ours]["step_ms"],
                  **common_figures(rows, [ours])}
    return found


def hidden_figures(rows, name, what):
    """Returns a policy's hidden share of communication in each pass."""
    return {f"{name}, hidden share of {what}, {which}": rows[name][f"hidden_{which}_pct"] / 100
            for which in ("forward", "backward")}


def tensor_figures(rows):
    """Returns the figures of a model whose products are split over the ranks. Ways without rings: all but
    collective_matmul and ours."""
    best = fastest(rows, [name for name in rows if name not in ("collective_matmul", *OURS)])
    found = {"gathers and scatters / step, sequential": share_of(rows)}
    for name in ("collective_matmul", *ours_in(rows)):
        found[f"best without rings / {name}, step"] = best["step_ms"] / rows[name]["step_ms"]
        found |= hidden_figures(rows, name, "gathers and scatters")
    return found | common_figures(rows, ours_in(rows))


def layer_figures(rows):
    """Returns the figures of one MoE layer."""
    found = {"all-to-all / step, sequential": share_of(rows)}
    for name in ("comet", *ours_in(rows)):
        found |= hidden_figures(rows, name, "all-to-alls")
    return found | common_figures(rows, ours_in(rows))


def figures_of(point, rows):
    """Returns the figures of a point. That over the best published way is there only where all of them have run."""
    found = point.figures(rows)
    if point.not_run():
        return found
    best = fastest(rows, [name for name in rows if name not in OURS])
    return found | {f"best single published way / {ours}, step": best["step_ms"] / rows[ours]["step_ms"]
                    for ours in ours_in(rows)}


# Points

def policies_of(settings, parts=PARTS):
    return ["sequential", *(each for policy in applying(settings) for each in parts.get(policy, [policy])),
            *OURS]


def moe(what, settings):
    return Point(what, MOE.config, settings, 2, policies_of(settings), MOE.share, expert_figures)


def point_of(case, what, parts, figures):
    return Point(what, case.config, case.settings, case.ranks, policies_of(case.settings, parts), case.share, figures)


POINTS = {
    "main": moe("fp32, 6 x 256", []),
    "memory": moe("fp32, 1.3 times the memory", ["overlap.memory_factor=1.3"]),
    # Pairs of micro batches do not fit the default factor.
    "micro": moe("fp32, 2 micro batches, 1.3 times the memory",
                 ["train.gradient_accumulation_steps=2", "train.micro_batch_size=16", "overlap.memory_factor=1.3"]),
    "bf16": moe("bf16", CASES["bf16"].settings),
    "tensor": point_of(CASES["tensor-2"], f"{CASES['tensor-2'].what}, fp32", PARTS, tensor_figures),
}
# The share at which Comet publishes its own comes first.
LAYERS = [f"layer-{ranks}-{ratio}" for ratio in (0.6, 0.3, 1.0) for ranks in (4, 8)]
DEVICE_POINTS = {**POINTS, **{name: point_of(CASES[name], CASES[name].what, {}, figures) for names, figures in (
    (LAYERS, layer_figures), (("tensor-4", "tensor-8"), tensor_figures)) for name in names}}
HEAD = [
    "# Overlap policies on an emulated network", "",
    f"`python3 scripts/bench overlap` on {run.cpu()}, hosts of one core each on one machine, links of network",
    "namespaces limited by `tc tbf`: real ranks and messages, an emulated network. Milliseconds are medians over",
    "rounds, in which the policies take turns, of medians over steps; least and most are rounds. all-to-all: with",
    "gathers and scatters. exposed: a communication stream was busy and the compute stream was not. hidden: the share",
    "of the time of all-to-alls, gathers and scatters with computation beside it, in each round's last step. parts: 0",
    "is what pays. ran: the policy whose plan ran, where another was predicted to be no slower or the policy's own",
    "needs more than the memory; policies of one plan have the rounds of all. The error is of the predicted step. The",
    "ends of a figure are from rounds drawn again: the least and the most, or 95% where there are",
    f"{policies.FEWEST} rounds or more.", ""]
DEVICE_HEAD = [
    "# Overlap policies on emulated devices", "",
    f"`python3 scripts/bench overlap_devices` on {run.cpu()}. Emulated devices on emulated links: messages, planner,",
    "executor and transport are real, ops take the times that `ethernet-10g-cpu` declares, with the rate of the",
    "network that gives a share of communication, without the time that messages take of a processor. Times are the",
    "device's own, medians over rounds of medians over steps; each point names its scale and dilation.",
    "hidden: the share of the time of all-to-alls, gathers and scatters with computation beside it, in the last step",
    "of each round on rank 0, forward and backward apart; a message's time holds its wait for other ranks, and what",
    "stays on a rank is no message. This is the metric of Comet's section 5.3, where 86.5% of the forward pass's is",
    "hidden on NVLink. The other columns are those of [overlap.md](overlap.md).", ""]


# The page

def error_of(row):
    return row["predicted_ms"] / row["step_ms"] - 1


def csv_rows(measured):
    found = []
    for name, (point, about, rounds) in measured.items():
        for policy, row in medians(rounds).items():
            base, _, parts = policy.partition("-")
            found.append({"point": name, "what": point.what, "rate": about["rate"], "hosts": point.hosts,
                          "policy": base, "parts": parts or 0, "rounds": len(rounds), "commit": about["commit"], **row})
    return found


def policies_table(rows):
    head = ["policy", "parts", "ran", "step", "least", "most", "compute", "all-to-all", "all-reduce", "exposed",
            "hidden forward", "backward", "predicted", "error", "arena MB"]
    times = ("step_ms", "least_ms", "most_ms", "compute_ms", "a2a_ms", "allreduce_ms", "exposed_ms")
    lines = []
    for policy, row in rows.items():
        base, _, parts = policy.partition("-")
        lines.append([base, parts or 0, "" if row["ran"] in (policy, base) else row["ran"],
                      *(number(row[name], 0) for name in times),
                      *("" if row[f"hidden_{which}_pct"] is None else f"{row[f'hidden_{which}_pct']:.0f}%"
                        for which in ("forward", "backward")),
                      number(row["predicted_ms"], 0), signed_percent(error_of(row)), number(row["arena_mb"], 0)])
    return markdown(head, lines)


def figures_table(point, rounds):
    figures = functools.partial(figures_of, point)
    values, (what, ends) = figures(medians(rounds)), intervals(rounds, figures)
    return markdown(["figure", "", what],
                    [[name, number(value, 3), " to ".join(number(end, 3) for end in ends[name])]
                     for name, value in values.items()])


def point_lines(name, point, about, rounds):
    rows, not_run = medians(rounds), point.not_run()
    late = [row["late_pct"] for row in rows.values() if row.get("late_pct") is not None]
    return [f"## {name}: {point.what}", "",
            f"{point.hosts} hosts, {about['rate']}, chosen for {point.share.words()}. {len(rounds)} rounds of "
            f"{about['steps']} steps,",
            f"{about['device'] + ', ' if 'device' in about else ''}commit {about['commit']}"
            f"{f', messages late by at most {max(late):.1f}% of a step' if late else ''}.",
            *([f"Published ways that did not run here: {', '.join(not_run)}."] if not_run else []), "",
            *policies_table(rows), "", *figures_table(point, rounds), ""]


def write(results, head, path):
    """Writes path.md and path.csv of all points with rounds. head: the first lines."""
    measured = results.all()
    missing, rows = [name for name in results.points if name not in measured], csv_rows(measured)
    lines = [*head, *([f"Not measured: {', '.join(missing)}.", ""] if missing else [])]
    for name, found in measured.items():
        lines += point_lines(name, *found)
    mean = statistics.mean(abs(error_of(row)) for row in rows)
    write_page(path, [*lines, f"Mean error of the predicted step over all rows: {percent(mean)}."], rows, FIELDS)
    run.log(f"{path}.md: {len(measured)} points")


# On an emulated network

def rate_of(share, share_at):
    """Returns the links' rate in Mbit/s, of those tried, at which the share is closest. share_at: that of a rate."""
    mbit, tried = FIRST_MBIT, []
    for _ in range(MOST_TRIES):
        found = share_at(mbit)
        run.log(f"{mbit} Mbit/s: {share.words()}, found {found:.3f}")
        tried.append((abs(found / share.value - 1), mbit))
        if tried[-1][0] < CLOSE:
            break
        mbit = round(mbit * share.over_rest(found) / share.over_rest(share.value))
    return min(tried)[1]


def step_of(point):
    """Returns what decides the sequential step of a point, and so its rate."""
    settings = [each for each in point.settings if not each.startswith("overlap.")]
    return point.config, point.hosts, point.share, settings


def rate_known(results, point):
    """Returns the rate that was found for another point of the same sequential step, at any commit, or None. So points
    that differ in the planner's settings alone have one rate, also where they were measured at different times."""
    return next((about["mbit"] for other, about, _ in results.all().values() if step_of(other) == step_of(point)), None)


def measure(name, about, lancet, results, effort):
    point, profile = results.points[name], results.folder / f"profile-{results.points[name].hosts}.json"
    settings = [f"overlap.profile={profile}"]
    with policies.Cluster("bench", "--hosts", point.hosts, "--rate", f"{FIRST_MBIT}mbit") as launcher:
        def share_at(mbit):
            """Returns the share of the sequential step that is communication of activations."""
            run.call([CLUSTER, "rate", f"{mbit}mbit"])
            policies.compare(lancet, launcher, point.config, ["sequential"], 2, results.folder / "rate",
                             [*point.settings, *settings])
            return share_of(policies.read_round(results.folder / "rate"))

        if "mbit" not in about:
            about["mbit"] = rate_known(results, point) or rate_of(point.share, share_at)
            about["rate"] = f"{about['mbit']}mbit"
            results.note(name, about)
        run.call([CLUSTER, "rate", about["rate"]])
        run.call([*launcher, lancet, "profile", point.config, "--out", profile, "--renew", "communication",
                  *run.sets(point.settings)])
        policies.run_rounds(results, name, lancet, launcher, effort, settings)


# On emulated devices

def dilation_of(case):
    return DILATION["products" if "model.moe_layer_freq=0" in case.settings else "experts"][case.ranks]


def fields_of(case, hardware):
    """Returns the fields of a declared machine that stands for the devices of a case."""
    return policies.settings_of(policies.fields_of(hardware, SCALE, dilation_of(case)))


class DevicePlans(Plans):
    """Plans of emulated devices, on which messages go by MPI and take none of the computation's time: at the rates of
    split products a processor would do nothing but move bytes."""
    changes = {"overlap": {"core_ms_per_mb": 0}}

    def target(self, case, hardware):
        return ["--ranks", case.ranks, "--hosts", case.ranks, *run.sets(fields_of(case, hardware))]


def measure_on_devices(name, about, lancet, results, effort):
    point = results.points[name]
    plans, case = DevicePlans(lancet, results.folder / name), Case(*point[:4], CPU, point.share)
    if "gbit" not in about:
        about["gbit"] = plans.rate_of(case)
        about |= {"rate": f"{about['gbit']:.3g} Gbit/s", "device": f"scale {SCALE}, dilation {dilation_of(case)}"}
        results.note(name, about)
    hardware = plans.hardware_at(case, about["gbit"])
    with policies.Cluster("overlap", *policies.links(case.ranks, hardware, SCALE, dilation_of(case))) as launcher:
        policies.run_rounds(results, name, lancet, launcher, effort, fields_of(case, hardware))


KINDS = {"overlap": (POINTS, HEAD, measure), "overlap_devices": (DEVICE_POINTS, DEVICE_HEAD, measure_on_devices)}


def add_arguments(parser):
    command = parser.get_default("command")
    run.add_options(parser, "--points", KINDS[command][0], folder=command.replace("_", "-"), rounds=3, steps=1)


def main(options):
    points, head, measure_point = KINDS[options.command]
    names, lancet = run.chosen("--points", options.points, points), run.program(options)
    results, effort = policies.Results(options.folder, points), policies.Effort(options.rounds, options.steps)
    for name in names:
        if about := results.start(name, effort):
            measure_point(name, about, lancet, results, effort)
        write(results, head, options.out / options.command)
