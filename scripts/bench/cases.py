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

GPT2_S, GPT2_L, WIDTHS = (run.ROOT / f"configs/{name}.json" for name in ("gpt2-s-moe", "gpt2-l-moe",
                                                                       "qwen2-moe-widths"))
NO_DROPS = ["model.router=top_k", "model.capacity_factor=null"]
# Widths of others on the blocks of GPT-2: layers, heads, width, experts, choices, width of an expert.
MIXTRAL, PHI, QWEN3 = ([f"model.{field}={value}" for field, value in zip(
    ("n_layer", "n_head", "n_embd", "num_local_experts", "num_experts_per_tok", "moe_intermediate_size"), values)]
    for values in ((32, 32, 4096, 8, 2, 14336), (32, 32, 4096, 16, 2, 6400), (48, 32, 2048, 128, 8, 768)))
CHIPS = {"p3dn-v100": "V100", "p4de-a100": "A100", "dgx-h100": "H100"}
PUBLISHED = [policy for policy in policies.PUBLISHED
             if policy not in ("collective_matmul", "neighbour_microbatches")]  # without work here
POLICIES = ["sequential", *PUBLISHED, "lancet"]
HEADER = ["model", "devices", "no overlap", "best published way", "Lancet", "best / Lancet", "Lancet / bound"]


class Case(NamedTuple):
    model: str
    config: str
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
        yield Case("GPT2-S-MoE, fp32", GPT2_S, "p3dn-v100", ranks, ["train.dtype=fp32"], readme=middle)
        yield Case("GPT2-S-MoE, fp32, top-2, no drops", GPT2_S, "p3dn-v100", ranks, ["train.dtype=fp32", *top(2)],
                   readme=middle)
        yield Case("GPT2-L-MoE", GPT2_L, "p4de-a100", ranks, [], readme=middle)
        yield Case("GPT2-L-MoE, top-2, no drops", GPT2_L, "dgx-h100", ranks, top(2))
        yield Case("GPT2-L-MoE, top-8, no drops", GPT2_L, "dgx-h100", ranks, top(8), readme=middle)


def width_cases():
    """Widths of models of today, no token dropped."""
    yield Case("Qwen2-MoE's widths", WIDTHS, "dgx-h100", 8, [], "node.link_gb_per_s=200", readme=True)
    for ranks in (8, 32, 64):
        yield Case("Qwen2-MoE's widths", WIDTHS, "dgx-h100", ranks, [], readme=ranks == 32)
    yield Case("Qwen2-MoE's widths, gradients travel in bf16", WIDTHS, "dgx-h100", 32, ["train.reduce_dtype=bf16"])
    yield Case("Qwen3-30B-A3B's widths", WIDTHS, "dgx-h100", 32, QWEN3)
    yield Case("Qwen3-30B-A3B's widths", WIDTHS, "dgx-h100", 64, QWEN3)
    yield Case("Phi-3.5-MoE's widths", WIDTHS, "dgx-h100", 64, [*PHI, "mesh.expert=16"])
    yield Case("Mixtral-8x7B's widths, ZeRO", WIDTHS, "dgx-h100", 64, [*MIXTRAL, "mesh.expert=8", "train.zero=1"])


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
            plan = json.loads(run.call([self.lancet, "plan", case.config, "--ranks", case.ranks, "--on",
                                        self.machine(case), "--alone", "--json",
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
    cases = [case for case in (*paper_cases(), *width_cases()) if case.readme or not options.readme]
    with tempfile.TemporaryDirectory() as machines, \
            concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        found = list(pool.map(Plans(run.program(options), Path(machines)).of, cases))
    if options.readme:
        print("\n".join(markdown(HEADER, map(cells_of, found))))
    else:
        write_page(options.out / "cases", page(found), [row for rows in found for row in rows])
