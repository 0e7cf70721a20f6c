"""Runs the overlap policies on emulated devices, in turns, and writes overlap_devices.md and overlap_devices.csv.

It needs root, since hosts are network namespaces (scripts/emulate-cluster.sh). The points are those of
`python3 scripts/bench overlap` on 2 devices, and cases of `python3 scripts/bench bounds`: one MoE layer on 4 and 8
devices, whose all-to-alls are 0.3, 0.6 and 1.0 of the experts' computation, and products that are split over 4 and 8
devices. The planner finds the rate of the network that gives the share; links and devices have it, divided by a scale
of bytes and a dilation of time. Ops take declared times and messages are real. Rounds that are in the folder are not
run again, as long as the program's commit is the same.
"""
from pathlib import Path
from typing import NamedTuple

from bench import overlap, overlap_page, policies, run
from bench.bounds import CASES, CPU, Case, Plans
from bench.policies import Effort, Point, applying

SCALE = 16
# By devices: more of them need more of this machine's time; so do the many messages of products split over ranks.
DILATION = {"experts": {2: 2, 4: 3, 8: 6}, "products": {2: 3, 4: 6, 8: 16}}


def point_of(case: Case):
    figures = overlap_page.layer_figures if case.share.of == "experts" else overlap_page.tensor_figures
    return Point(case.what, case.config, case.settings, case.ranks,
                 ["sequential", *applying(case.settings), *overlap_page.OURS], case.share, figures)


def case_of(point):
    return Case(point.what, point.config, point.settings, point.hosts, CPU, point.share)


# The share at which Comet publishes its own comes first.
NAMES = [*(f"layer-{ranks}-{ratio}" for ratio in (0.6, 0.3, 1.0) for ranks in (4, 8)), "tensor-4", "tensor-8"]
POINTS = {**overlap.POINTS, **{name: point_of(CASES[name]) for name in NAMES}}
HEAD = [
    "# Overlap policies on emulated devices", "",
    f"`python3 scripts/bench overlap_devices` on {run.cpu()}. Emulated devices on emulated links: messages, planner,",
    "executor and transport are real, ops take the times that `ethernet-10g-cpu` declares, with the rate of the",
    "network that gives a share of communication, without the time that messages take of a processor. Times are the",
    "device's own, medians over rounds of medians over steps; each point names its scale and dilation.",
    "hidden: the share of the time of all-to-alls, gathers and scatters with computation beside it, in the last step",
    "of each round on rank 0, forward and backward apart; a message's time holds its wait for the other ranks, and what",
    "stays on a rank is no message. This is the metric of Comet's section 5.3, where 86.5% of the forward pass's is",
    "hidden on NVLink. The other columns are those of [overlap.md](overlap.md).", ""]


def dilation_of(case):
    return DILATION["products" if "model.moe_layer_freq=0" in case.settings else "experts"][case.ranks]


def words_of(case):
    """Returns the scale and dilation of a case's devices, for its page."""
    return f"scale {SCALE}, dilation {dilation_of(case)}"


class Device(NamedTuple):
    """A declared machine that stands for the devices of a case."""
    hardware: Path
    case: Case

    @property
    def dilation(self):
        return dilation_of(self.case)

    def fields(self):
        return policies.settings_of(policies.fields_of(self.hardware, SCALE, self.dilation))

    def links(self):
        return policies.links(self.case.ranks, self.hardware, SCALE, self.dilation)


class DevicePlans(Plans):
    """Plans of emulated devices, on which messages go by MPI and take none of the computation's time: at the rates of
    split products a processor would do nothing but move bytes."""
    changes = {"overlap": {"core_ms_per_mb": 0}}

    def target(self, case, hardware):
        return ["--ranks", case.ranks, "--hosts", case.ranks, *run.sets(Device(hardware, case).fields())]


def measure(name, lancet, results, effort):
    point = results.points[name]
    folder, about = results.begin(name, effort.steps, run.program_commit())
    if len(results.rounds(name)) >= effort.rounds:
        return
    plans, case = DevicePlans(lancet, folder), case_of(point)
    if "gbit" not in about:
        about["gbit"] = plans.rate_of(case)
        about |= {"rate": f"{about['gbit']:.3g} Gbit/s", "device": words_of(case)}
        results.note(name, about)
    device = Device(plans.hardware_at(case, about["gbit"]), case)
    with policies.Cluster("overlap", *device.links()) as launcher:
        policies.run_rounds(results, name, lancet, launcher, effort, device.fields())


def add_arguments(parser):
    overlap_page.add_arguments(parser, POINTS, "overlap-devices", "overlap_devices", rounds=3, steps=1)


def main(options):
    names, lancet = run.chosen("--points", options.points, POINTS), run.program(options)
    options.folder.mkdir(parents=True, exist_ok=True)
    results = policies.Results(options.folder, POINTS)
    for name in names:
        measure(name, lancet, results, Effort(options.rounds, options.steps))
        overlap_page.write(results, HEAD, options.out / "overlap_devices")
