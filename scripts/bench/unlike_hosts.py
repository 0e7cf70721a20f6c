"""Runs placements on two hosts of unlike speed that compute, and compares their steps with the prediction.

It needs root, since hosts are network namespaces (scripts/emulate-cluster.sh), and takes a quarter of an hour of a quiet
machine. One host has a core of this machine, the other a part of one and a slower link. First each host trains the
whole model alone. The file HARDWARE, with its rates of arithmetic and memory multiplied such that this step is
predicted as it ran, is then the host's in a cluster file; the rates of the links are those that the cluster is given.
`lancet place --stages` answers for that cluster. What it answers and even stages run in turns under each schedule.
The tables go to docs/results/unlike_hosts.md.
"""
import json
import re
import shutil
import statistics
from pathlib import Path
from typing import NamedTuple

from bench import policies, run
from bench.table import markdown, number, signed_percent

HARDWARE = "ethernet-10g-cpu"
SPEEDS = ("device.fp32_tflops", "device.vector_tflops", "device.memory_gb_per_s")
LATENCY_US = 100  # of HARDWARE
SCHEDULES = ("1f1b", "zero_bubble")
LAYERS = 8
MODEL = {"model.n_layer": LAYERS, "model.n_embd": 256, "model.n_head": 8, "model.vocab_size": 2048,
         "train.seq_len": 256, "train.micro_batch_size": 4, "train.gradient_accumulation_steps": 8,
         "train.dtype": "fp32", "overlap.policy": "sequential"}
DENSE = {**MODEL, "model.moe_layer_freq": 0}


class Host(NamedTuple):
    cores: float
    mbit: int
    alone_ms: float = 0  # a step of the dense model
    hardware: str = ""


HOSTS = {"fast": Host(1, 400), "slow": Host(0.5, 200)}


class Ran(NamedTuple):
    name: str
    split: str
    predicted_ms: float
    step_ms: list  # of the rounds


def words(fields):
    return [f"{field}={value}" for field, value in fields.items()]


def step_ms(options, hosts, fields, out):
    """Returns the median step of a run on these hosts, the first of which has rank 0."""
    shutil.rmtree(out, ignore_errors=True)
    rates = ",".join(f"{host.mbit}mbit" for host in hosts)
    cores = ",".join(f"{host.cores:g}" for host in hosts)
    with policies.Cluster("unlike", "--hosts", len(hosts), "--rate", rates, run=["--cores", cores]) as launcher:
        settings = words({**fields, "data.synthetic": "true", "train.save_minutes": 0, "train.sample_tokens": 0})
        records, _ = run.train(options.lancet, policies.CONFIG, out, options.steps + 1, settings, launcher)
    return run.median(records[1:], "step_ms")


def planned_ms(options, fields, *words_of_plan):
    done = run.call([options.lancet, "plan", policies.CONFIG, *words_of_plan, *run.sets(words(fields))])
    return float(re.search(r"^sequential \* +([\d.]+) ", done.out, re.MULTILINE)[1])


def calibrated(options):
    """Returns the hosts with the hardware that predicts what they take alone."""
    declared = planned_ms(options, DENSE, "--ranks", 1, "--on", HARDWARE)
    found = {}
    for name, host in HOSTS.items():
        alone = step_ms(options, [host], DENSE, options.folder / f"alone-{name}")
        run.log(f"{name}: {alone:.0f} ms alone")
        changes = ",".join(f"{field}=x{declared / alone:.4f}" for field in SPEEDS)
        found[name] = host._replace(alone_ms=alone, hardware=f"{HARDWARE}:{changes}")
    return found


def write_cluster(path, hosts):
    source = "step alone measured, rate set, latency declared by HARDWARE"
    devices = [{"name": name, "hardware": host.hardware, "up_gbit_per_s": host.mbit / 1e3,
                "down_gbit_per_s": host.mbit / 1e3, "latency_us": LATENCY_US, "source": source}
               for name, host in hosts.items()]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"what": "two hosts of unlike speed", "devices": devices}))


def in_stages(options, hosts):
    """Returns for each schedule the answer of the placement and even stages, both run."""
    cluster = options.folder / "unlike.json"
    write_cluster(cluster, hosts)
    found = []
    for schedule in SCHEDULES:
        fields = {**DENSE, "train.pipeline_schedule": schedule}
        answer = json.loads(run.call([options.lancet, "place", policies.CONFIG, "--on", cluster, "--stages", "--json",
                                      *run.sets(words(fields))]).out)
        placed = [(each["device"], each["blocks"]) for each in answer["assignment"]]
        even = [(name, LAYERS // len(hosts)) for name in hosts]
        sides = {}
        splits = {"placed": placed, "even": even} if answer["even_ms"] else {"placed": placed}
        for name, split in splits.items():
            here = {**fields, "mesh.expert": 1, "mesh.stage": len(split),
                    "mesh.stage_blocks": str([blocks for _, blocks in split])}
            sides[name] = lambda here=here, split=split, name=name: step_ms(
                options, [hosts[device] for device, _ in split], here, options.folder / f"{schedule}-{name}")
        ran = run.in_turns(options.rounds, sides)
        for name, split in splits.items():
            predicted = answer["makespan_ms"] if name == "placed" else answer["even_ms"]
            shown = ", ".join(f"{device} {blocks}" for device, blocks in split)
            found.append(Ran(f"{schedule}, {name}", shown, predicted, ran[name]))
            run.log(f"{found[-1]}")
    return found


def rows_of(rans):
    return [[ran.name, ran.split, number(ran.predicted_ms), number(statistics.median(ran.step_ms)),
             f"{number(min(ran.step_ms))} to {number(max(ran.step_ms))}",
             signed_percent(ran.predicted_ms / statistics.median(ran.step_ms) - 1)] for ran in rans]


def page(options, hosts, stages):
    about = [[name, f"{host.cores:g}", host.mbit, number(host.alone_ms)] for name, host in hosts.items()]
    header = ["predicted", "run", "all rounds", "error"]
    return "\n".join([
        "# Placements on hosts of unlike speed that compute", "",
        f"`python3 scripts/bench unlike_hosts` on {run.cpu()}, commit {run.program_commit()}.",
        "Hosts are network namespaces with a part of this machine's cores and links of limited speed; they compute. Times",
        f"are ms of a step: of a run the median, the least and the largest of {options.rounds} rounds of {options.steps}",
        f"steps after one. Predictions are of `{HARDWARE}`, with rates of arithmetic and memory multiplied such",
        "that each host's step alone is right. error: predicted over run, less 1.", "",
        *markdown(["host", "cores", "link Mbit/s", "the dense model alone"], about), "",
        f"GPT-2 of {LAYERS} blocks of width {DENSE['model.n_embd']}, {DENSE['train.gradient_accumulation_steps']} micro "
        f"batches of {DENSE['train.micro_batch_size'] * DENSE['train.seq_len']} tokens. `lancet place --stages` chose "
        "`placed`:", "",
        *markdown(["schedule", "stages: blocks", *header], rows_of(stages)), ""])


def add_arguments(parser):
    parser.add_argument("--rounds", type=run.at_least(1), default=3, help="default: %(default)s")
    parser.add_argument("--steps", type=run.at_least(1), default=3, help="measured steps in a round, after one")
    parser.add_argument("--folder", type=Path, default=run.ROOT / "runs/unlike_hosts", help="of the runs")
    parser.add_argument("--out", type=Path, default=run.ROOT / "docs/results")
    run.add_program(parser)


def main(options):
    options.lancet = run.program(options)
    hosts = calibrated(options)
    stages = in_stages(options, hosts)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "unlike_hosts.md").write_text(page(options, hosts, stages))
    return 0
