"""Compares policies in turns: names them, runs `lancet bench policies`, and reads and pools what it measured.

A round is a call of `lancet bench policies`, which runs every policy once, so that the machine's drift meets all of
them. Its folder holds policies.json, with a hash of the schedule that each policy ran (`plan`) and the communications
of its last step, and a run folder for each policy. Rounds of the same point, commit, steps and rate are not run again.
"""
import json
import os
import random
import shutil
import statistics
from typing import Callable, NamedTuple

from bench import run

# The published ways to overlap, each alone, and ours, which mix ways (docs/planning.md).
PUBLISHED = ("tutel", "fastermoe", "comet", "flowmoe", "collective_matmul", "neighbour_microbatches", "dw", "partition",
             "lancet_paper")
OURS = ("lancet",)
ALL = ("sequential", *PUBLISHED, *OURS)
OF_EXPERTS = ("tutel", "fastermoe", "comet")  # they cut nothing else
CLUSTER = run.ROOT / "scripts/emulate-cluster.sh"
CONFIG = run.ROOT / "configs/gpt2-s-moe.json"
TIMES = ("step_ms", "compute_ms", "a2a_ms", "allreduce_ms", "communication_ms", "exposed_ms", "predicted_ms",
         "late_pct")
DRAWS = 1000
FEWEST = 6  # rounds; 95% of the draws of fewer would be little less than their least and their most
MOST_LATE = 2  # percent of a step; results whose messages are later are of a machine that did not keep up


def without(*names):
    """Returns all policies but these, in their order."""
    return [policy for policy in ALL if policy not in names]


def applying(settings):
    """Returns the published policies that a config with these settings, FIELD=VALUE each, has work for: those of
    experts need MoE layers, micro batches beside one another need a second one."""
    values = dict(setting.split("=", 1) for setting in settings)
    left_out = () if int(values.get("model.moe_layer_freq", 1)) else OF_EXPERTS
    if int(values.get("train.gradient_accumulation_steps", 1)) == 1:
        left_out += ("neighbour_microbatches",)
    return [policy for policy in PUBLISHED if policy not in left_out]


class Effort(NamedTuple):
    rounds: int
    steps: int  # of a policy in a round, after one of warm-up


class Cluster:
    """An emulated cluster while it is up; gives the words that start a rank on each host. up, run: options of `up` and
    `run`."""

    def __init__(self, name, *up, run=()):
        self.name, self.up, self.run = name, up, run

    def __enter__(self):
        os.environ["LANCET_CLUSTER"] = self.name
        run.call([CLUSTER, "down"])  # a cluster of a run that was killed
        run.call([CLUSTER, "up", *self.up])
        return [CLUSTER, "run", *self.run, "--"]

    def __exit__(self, *_):
        run.call([CLUSTER, "down"])


def links(hosts, hardware, scale, dilation, ranks_a_host=1):
    """Returns the options of `up` for links as a hardware file declares them."""
    return ["--hosts", hosts, "--hardware", hardware, "--scale", scale, "--dilation", dilation,
            "--ranks-per-host", ranks_a_host]


def fields_of(hardware, scale, dilation, routing="even"):
    """Returns the fields of a config that describe its emulated devices."""
    return {"device": "emulated", "emulated.hardware": hardware, "emulated.scale": scale,
            "emulated.dilation": dilation, "emulated.routing": routing}


def settings_of(fields):
    """Returns the fields of a config, by name, as FIELD=VALUE."""
    return [f"{field}={value}" for field, value in fields.items()]


def compare(lancet, launcher, config, policies, steps, out, settings):
    """Runs every policy once; the result is in the folder `out`."""
    shutil.rmtree(out, ignore_errors=True)
    run.call([*launcher, lancet, "bench", "policies", config, "--policies", ",".join(policies), "--repeats", 1,
              "--steps", steps, "--out", out, *run.sets(settings)])


class Point(NamedTuple):
    what: str
    config: str
    settings: list  # FIELD=VALUE of all policies
    hosts: int
    policies: list  # POLICY or POLICY:PARTS; the first is the one without overlap
    share: NamedTuple = None  # of communication (declared.Share), which the rate of the links is to give
    figures: Callable = lambda rows: {}  # of the medians by policy, as figures by name

    def not_run(self):
        """Returns the published policies that have work here and that the point does not run."""
        mine = [policy.split(":")[0] for policy in self.policies]
        return [policy for policy in applying(self.settings) if policy not in mine]


def hidden_part(communications, which):
    """Returns the share of the time of all-to-alls, gathers and scatters in a pass during which the compute stream is
    busy: the share of communication latency that Comet's section 5.3 calls hidden. None without communication."""
    here = [each for each in communications if each["stream"] == "expert" and each["pass"] == which]
    total = sum(each["ms"] for each in here)
    return 100 * (1 - sum(each["exposed_ms"] for each in here) / total) if total > 0 else None


def read_round(folder):
    """Returns what a round measured: by policy, medians of its steps by name."""
    found = {}
    for each in json.loads((folder / "policies.json").read_text())["policies"]:
        run_dir = folder / each["policy"]
        records = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
        times = {name: statistics.median(record[name] for record in records)
                 for name in TIMES if records[0].get(name) is not None}
        arena = (run_dir / "plan.ir").read_text().split("\n", 2)[1]
        found[each["policy"]] = {
            **times, "ran": each["ran"], "plan": each["plan"], "arena_mb": int(arena.split()[1]) / 1e6,
            "steps": len(records),
            "hidden_forward_pct": hidden_part(each["communications"], "forward"),
            "hidden_backward_pct": hidden_part(each["communications"], "backward")}
    return found


def medians(rounds):
    """Returns the medians of the rounds, by policy and name, and of a step also its least and its longest round.
    Policies whose plans are the same schedule in a round have that round of all of them."""
    found = {}
    for policy, first in rounds[0].items():
        mine = [each[other] for each in rounds for other in each if each[other]["plan"] == each[policy]["plan"]]
        found[policy] = {name: value if isinstance(value, str) or value is None
                         else statistics.median(each[name] for each in mine) for name, value in first.items()}
        steps = [each["step_ms"] for each in mine]
        found[policy].update(ran=first["ran"], steps=sum(each["steps"] for each in mine), least_ms=min(steps),
                             most_ms=max(steps))
    return found


def intervals(rounds, figures):
    """Returns what the ends of the figures are, in words, and both ends of each: of figures of as many rounds, drawn
    again at random (bootstrap), the same each time."""
    generator = random.Random(1)
    draws = [figures(medians(generator.choices(rounds, k=len(rounds)))) for _ in range(DRAWS)]
    low, high = (0, -1) if len(rounds) < FEWEST else (int(0.025 * DRAWS), int(0.975 * DRAWS))
    values = {name: sorted(each[name] for each in draws) for name in draws[0]}
    return ("least and most" if len(rounds) < FEWEST else "95% of rounds drawn again",
            {name: (each[low], each[high]) for name, each in values.items()})


def described(point):
    """Returns what of a point its rounds depend on, as JSON reads it."""
    return json.loads(json.dumps([point.config, point.settings, point.hosts, point.policies, point.share]))


class Results:
    """The rounds of points in a folder, a folder each with what they are of in point.json."""

    def __init__(self, folder, points):
        self.folder, self.points = folder, points

    def begin(self, name, steps, commit):
        """Returns the folder of a point and what its rounds are of. Rounds of another point, commit or number of steps
        are deleted."""
        point, folder = self.points[name], self.folder / name
        mine = {"point": described(point), "steps": steps, "commit": commit}
        path = folder / "point.json"
        found = json.loads(path.read_text()) if path.is_file() else {}
        if {key: found.get(key) for key in mine} == mine:
            return folder, found
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self.note(name, mine)
        return folder, mine

    def start(self, name, effort):
        """Returns what the point's rounds are of, or None if its folder has them all."""
        _, about = self.begin(name, effort.steps, run.program_commit())
        return about if len(self.rounds(name)) < effort.rounds else None

    def note(self, name, about):
        (self.folder / name / "point.json").write_text(json.dumps(about))

    def rounds(self, name):
        """Returns the rounds of a point that have been run, in their order."""
        folders = sorted((self.folder / name).glob("round-*/policies.json"))
        return [read_round(path.parent) for path in folders]

    def all(self):
        """Returns the points with rounds of them as they are now: (point, what they are of, rounds) by name."""
        found = {}
        for name, point in self.points.items():
            path = self.folder / name / "point.json"
            about = json.loads(path.read_text()) if path.is_file() else {}
            if about.get("point") == described(point) and (rounds := self.rounds(name)):
                found[name] = point, about, rounds
        return found


def run_rounds(results, name, lancet, launcher, effort, settings=()):
    """Runs the rounds of a point that its folder lacks."""
    point, folder = results.points[name], results.folder / name
    for number in range(1, effort.rounds + 1):
        out = folder / f"round-{number:02}"
        if not (out / "policies.json").is_file():
            run.log(f"{name}: round {number} of {effort.rounds}")
            compare(lancet, launcher, point.config, point.policies, effort.steps, out, [*point.settings, *settings])
