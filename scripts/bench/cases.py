"""Models that people train, on declared machines: Lancet beside the best of the published ways to overlap.

Simulated by `lancet plan`, a policy at a time, each in the memory that the device has. cases.md and cases.csv have a row
for each case. --readme prints the rows of the README's table and writes nothing.
"""
import concurrent.futures
import json
import os
import statistics
import tempfile
from pathlib import Path
from typing import NamedTuple

from bench import policies, run
from bench.sweep import HARDWARE
from bench.table import markdown, number, write_page
from hardware_table import changed, read_commented

NO_DROPS = ["model.router=top_k", "model.capacity_factor=null"]
CHIPS = {"p3dn-v100": "V100", "p4de-a100": "A100", "dgx-h100": "H100"}
PUBLISHED = [policy for policy in policies.PUBLISHED
             if policy not in ("collective_matmul", "neighbour_microbatches")]  # without work here
POLICIES = ["sequential", *PUBLISHED, "lancet"]
HEADER = ["model", "devices", "no overlap", "best published way", "Lancet", "best / Lancet", "Lancet / bound"]


class Case(NamedTuple):
    model: str
    config: str  # of configs/
    hardware: str
    ranks: int
    settings: list
    changes: str = ""  # to numbers of the hardware file, as in a sweep
    readme: bool = False

    def devices(self):
        return f"{self.ranks} {CHIPS[self.hardware]}" + (f", {self.changes}" if self.changes else "")


def top(choices):
    return [*NO_DROPS, f"model.num_experts_per_tok={choices}"]


def paper_cases():
    """The paper's models as their config files have them, and without drops."""
    for ranks in (8, 32, 64):
        middle = ranks == 32
        yield Case("GPT2-S-MoE, fp32", "gpt2-s-moe", "p3dn-v100", ranks, ["train.dtype=fp32"], readme=middle)
        yield Case("GPT2-S-MoE, fp32, top-2, no drops", "gpt2-s-moe", "p3dn-v100", ranks,
                   ["train.dtype=fp32", *top(2)], readme=middle)
        yield Case("GPT2-L-MoE", "gpt2-l-moe", "p4de-a100", ranks, [], readme=middle)
        yield Case("GPT2-L-MoE, top-2, no drops", "gpt2-l-moe", "dgx-h100", ranks, top(2))
        yield Case("GPT2-L-MoE, top-8, no drops", "gpt2-l-moe", "dgx-h100", ranks, top(8), readme=middle)


def widths_cases():
    """Qwen2-MoE's widths on blocks of GPT-2, no token dropped: two sequences of 2,048 tokens a rank."""
    name, widths = "Qwen2-MoE's widths", "qwen2-moe-widths"
    yield Case(name, widths, "dgx-h100", 8, [], "node.link_gb_per_s=200", readme=True)
    for ranks in (8, 32, 64):
        yield Case(name, widths, "dgx-h100", ranks, [])
    yield Case(f"{name}, gradients travel in bf16", widths, "dgx-h100", 32, ["train.reduce_dtype=bf16"])


def released_cases():
    """Released models, no token dropped: one sequence of 4,096 tokens a rank."""
    for ranks in (8, 16, 32, 64):
        yield Case("OLMoE-1B-7B", "olmoe-1b-7b", "dgx-h100", ranks, [], readme=ranks == 32)
    for ranks in (8, 32, 64):
        yield Case("Qwen2-MoE-2.7B, 64 experts", "qwen2-moe-2.7b", "dgx-h100", ranks, ["model.num_experts=64"])
    for ranks in (32, 64):
        yield Case("Qwen2-MoE-2.7B, ZeRO", "qwen2-moe-2.7b", "dgx-h100", ranks, ["train.zero=1"])
        yield Case("Qwen3-30B-A3B", "qwen3-30b-a3b", "dgx-h100", ranks, [])
        yield Case("Mixtral 8x7B", "mixtral-8x7b", "dgx-h100", ranks, ["mesh.tensor=2"])
        yield Case("Phi-3.5-MoE's widths", "phi-3.5-moe", "dgx-h100", ranks, [])


class Plans:
    """Plans cases; machines: a folder for hardware files with changed numbers."""

    def __init__(self, lancet, machines):
        self.lancet, self.machines = lancet, machines

    def machine(self, case):
        if not case.changes:
            return case.hardware
        path = self.machines / f"{case.hardware}-{case.changes}.json"
        path.write_text(json.dumps(changed(read_commented(HARDWARE / f"{case.hardware}.json"), case.changes)))
        return path

    def of(self, case):
        """Returns a row for each policy that the devices' memory holds."""
        rows = []
        for policy in POLICIES:
            plan = json.loads(run.call([self.lancet, "plan", run.ROOT / f"configs/{case.config}.json",
                                        "--ranks", case.ranks, "--on", self.machine(case), "--alone", "--json",
                                        *run.sets([*case.settings, f"overlap.policy={policy}"])]).out)
            found = next(row for row in plan["policies"] if row["policy"] == plan["chosen"])
            if plan["fits"]:
                rows.append({"network": "simulated", "case": case.model, "devices": case.devices(), "policy": policy,
                             "step_ms": found["step_ms"], "exposed_ms": found["exposed_ms"],
                             "bound_ms": plan["bound_ms"], "memory_gib": plan["memory_bytes"] / 2**30})
        run.log(f"{case.model}, {case.devices()}")
        return rows


def cells_of(rows):
    """Returns the cells of a case: without overlap, the best published way, ours, and what ours gains."""
    by = {row["policy"]: row for row in rows}
    best = min((by[name] for name in PUBLISHED if name in by), key=lambda row: row["step_ms"])
    step = by["lancet"]["step_ms"]
    return [by["lancet"]["case"], by["lancet"]["devices"], number(by["sequential"]["step_ms"]),
            f"{number(best['step_ms'])} (`{best['policy']}`)", number(step), number(best["step_ms"] / step, 3),
            number(step / by["lancet"]["bound_ms"], 3)]


def page(found):
    gains = [float(cells_of(rows)[5]) for rows in found]
    return ["# Cases", "",
            f"`python3 scripts/bench cases`, commit {run.program_commit()}. Simulated: steps in ms, all policies on this",
            "program's kernels and messages, each in the memory that the device has. The best is of the published ways;",
            "bound: no order of the step's whole operations is shorter.", "",
            *markdown(HEADER, map(cells_of, found)), "",
            f"Best over Lancet: {statistics.mean(gains):.3f} in the mean, {min(gains):.3f} at least."]


def add_arguments(parser):
    parser.add_argument("--readme", action="store_true", help="print the rows of README.md and write nothing")
    run.add_options(parser)


def main(options):
    cases = [case for case in (*paper_cases(), *widths_cases(), *released_cases()) if case.readme or not options.readme]
    with tempfile.TemporaryDirectory() as machines, \
            concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        found = list(pool.map(Plans(run.program(options), Path(machines)).of, cases))
    if options.readme:
        print("\n".join(markdown(HEADER, map(cells_of, found))))
    else:
        write_page(options.out / "cases", page(found), [row for rows in found for row in rows])
