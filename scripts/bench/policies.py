"""Runs `lancet bench policies` on emulated devices, and says whether a result that is there is still of now.

A result is the folder of a call. Its policies.json holds the program's commit, the rounds and steps, the config and, of
each policy, a hash of the schedule that ran (`plan`) and the times of its rounds.
"""
import json
import os
import shutil
from typing import NamedTuple

from bench import run

# The published ways to overlap, each alone, and ours, which mix ways (docs/planning.md). The steps of the ablation are
# in configs/experiments/settings.json alone.
PUBLISHED = ("expert_pipeline", "peer_groups", "tutel", "fastermoe", "comet", "flowmoe", "collective_matmul",
             "neighbour_microbatches", "dw", "partition", "lancet_paper")
OURS = ("lancet", "auto")
ALL = ("sequential", *PUBLISHED, *OURS)
OF_EXPERTS = ("expert_pipeline", "peer_groups", "tutel", "fastermoe", "comet")  # they cut nothing else
CLUSTER = run.ROOT / "scripts/emulate-cluster.sh"
CONFIG = run.ROOT / "configs/gpt2-s-moe.json"
MOST_LATE = 2  # percent of a step; results whose messages are later are of a machine that did not keep up


def without(*names):
    """Returns all policies but these, in their order."""
    return [policy for policy in ALL if policy not in names]


def applying(settings):
    """Returns the published policies that a config with these settings, FIELD=VALUE each, has work for: those of
    experts need MoE layers, pairs of micro batches need a second one."""
    values = dict(setting.split("=", 1) for setting in settings)
    left_out = () if int(values.get("model.moe_layer_freq", 1)) else OF_EXPERTS
    if int(values.get("train.gradient_accumulation_steps", 1)) == 1:
        left_out += ("neighbour_microbatches",)
    return [policy for policy in PUBLISHED if policy not in left_out]


class Setting(NamedTuple):
    """What a result is of."""
    policies: list
    ranks: int
    fields: dict  # of the config, "SECTION.NAME": value

    def words(self):
        return run.sets(["device=emulated", *(f"{field}={value}" for field, value in self.fields.items())])


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
    return {"emulated.hardware": hardware, "emulated.scale": scale, "emulated.dilation": dilation,
            "emulated.routing": routing}


def run_in_turns(lancet, launcher, config, policies, effort, out, words):
    """Runs the policies in turns; the result is in the folder `out`. words: settings of the config."""
    shutil.rmtree(out, ignore_errors=True)
    run.call([*launcher, lancet, "bench", "policies", config, "--policies", ",".join(policies), "--repeats",
              effort.rounds, "--steps", effort.steps, "--out", out, *words])


def compare(lancet, launcher, setting, effort, out):
    """Runs the policies of a setting in turns; the result is in the folder `out`."""
    run_in_turns(lancet, launcher, CONFIG, setting.policies, effort, out, setting.words())


def has_fields(config, fields):
    """Returns True if the config has these values. config: sections by name."""
    names = {field: field.split(".") for field in fields}
    return {field: config[section][name] for field, (section, name) in names.items()} == fields


def read(out, setting):
    """Returns the policies.json of a folder, or None: there is none, or it is of another setting."""
    path = out / "policies.json"
    if not path.is_file():
        return None
    found = json.loads(path.read_text())
    if "config" not in found:  # of a program that did not write it yet
        return None
    is_of = (found["ranks"] == setting.ranks and [each["policy"] for each in found["policies"]] == setting.policies and
             has_fields(found["config"], setting.fields))
    return found if is_of else None


def is_done(out, setting, effort, commit):
    """Returns True if the folder has a result of this setting, effort and commit of the program."""
    found = read(out, setting)
    return found is not None and (found["rounds"], found["steps"], found["commit"]) == (*effort, commit)
