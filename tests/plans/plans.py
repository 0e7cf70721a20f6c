#!/usr/bin/env python3
"""Holds the program's plans for declared machines against those of expected.json.

    plans.py PROGRAM [--record] [--only WORD] [--jobs N]

A case is a plan's text without the build's id, its number of instructions, and the step that it predicts. Exit code 1:
a case differs; each is named. A change that is meant to change plans records them again and says why.
"""
import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]

POLICIES = ["sequential", "dw", "partition", "tutel", "fastermoe", "comet", "flowmoe", "collective_matmul",
            "lancet_paper", "lancet", "auto"]
MOE, LARGE, SMALL = "configs/gpt2-s-moe.json", "configs/gpt2-l-moe.json", "configs/bench-small.json"


def on(config, hardware, ranks, *settings, options=()):
    """A plan on a declared machine."""
    return [config, "--on", hardware, "--ranks", str(ranks), *options, *(w for s in settings for w in ("--set", s))]


def plan_cases():
    cases = {f"policy {p}": on(MOE, "p3dn-v100", 16, f"overlap.policy={p}", "overlap.max_parts=4") for p in POLICIES}
    lancet = "overlap.policy=lancet"
    cases |= {
        "large on v100": on(LARGE, "p3dn-v100", 16, lancet),
        "large on a100": on(LARGE, "p4de-a100", 32, lancet),
        "on h100": on(MOE, "dgx-h100", 16, "overlap.policy=auto"),
        "top-2, no drops": on(MOE, "p4de-a100", 16, lancet, "model.num_experts_per_tok=2", "model.router=top_k",
                              "model.capacity_factor=null"),
        "top-2, no drops, on v100": on(MOE, "p3dn-v100", 32, lancet, "model.num_experts_per_tok=2",
                                       "model.router=top_k", "model.capacity_factor=null", "train.dtype=fp32"),
        "gshard": on(MOE, "p4de-a100", 8, lancet, "model.num_experts_per_tok=2", "model.router=gshard"),
        "batch prioritized": on(MOE, "p4de-a100", 8, lancet, "model.router=batch_prioritized"),
        "expert choice": on(MOE, "p4de-a100", 8, lancet, "model.router=expert_choice"),
        "sigmoid, shared expert": on(MOE, "p4de-a100", 8, lancet, "model.router=sigmoid",
                                     "model.num_experts_per_tok=2", "model.n_shared_experts=1"),
        "hash": on(MOE, "p3dn-v100", 8, "overlap.policy=fastermoe", "model.router=hash"),
        "memory": on(LARGE, "p3dn-v100", 8, lancet, "overlap.memory_factor=1.3"),
        "recomputation": on(MOE, "p3dn-v100", 8, lancet, "train.memory_limit_mb=3000"),
        "zero": on(MOE, "p3dn-v100", 8, lancet, "train.zero=1", "mesh.expert=4"),
        "tensor": on(MOE, "p3dn-v100", 8, "overlap.policy=collective_matmul", "mesh.tensor=4",
                     "train.sequence_parallel=true"),
        "tensor and experts": on(MOE, "p4de-a100", 16, lancet, "mesh.tensor=2"),
        "accumulation": on(MOE, "p3dn-v100", 8, "overlap.policy=neighbour_microbatches",
                           "train.gradient_accumulation_steps=4"),
        "across steps": on(SMALL, "ethernet-10g-cpu", 4, lancet, "train.clip_grad=0"),
        "stages, 1f1b": on(MOE, "p3dn-v100", 8, "mesh.stage=4", "train.gradient_accumulation_steps=8"),
        "stages, zero bubble": on(MOE, "p3dn-v100", 8, "mesh.stage=4", "train.gradient_accumulation_steps=8",
                                  "train.pipeline_schedule=zero_bubble"),
        "stages, interleaved": on(MOE, "p3dn-v100", 8, "mesh.stage=2", "train.gradient_accumulation_steps=4",
                                  "train.pipeline_schedule=interleaved"),
        "stages, searched": on(MOE, "p3dn-v100", 4, "mesh.stage=4", "train.gradient_accumulation_steps=4",
                               "train.pipeline_schedule=searched"),
        "stages, lancet within a limit": on(MOE, "p3dn-v100", 4, lancet, "mesh.stage=2", "mesh.expert=2",
                                            "train.gradient_accumulation_steps=4",
                                            "train.pipeline_schedule=searched", "overlap.memory_factor=1"),
        "dense": on(MOE, "p3dn-v100", 8, lancet, "model.moe_layer_freq=0"),
        "hosts": on(SMALL, "ethernet-10g-cpu", 8, "overlap.policy=auto", options=("--hosts", "4")),
        "without weight gradients moved": on(MOE, "p3dn-v100", 16, "overlap.policy=dw", options=("--skip", "move_dw")),
    }
    return cases


def call(words):
    environment = {**os.environ, "XDG_CACHE_HOME": "/nonexistent"}
    return subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)


def error_of(done):
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith("error")]
    return {"error": lines[0] if lines else f"ended with {done.returncode}"}


def plan(program, words):
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "plan.ir"
        done = call([program, "plan", *words, "--out", str(file)])
        if done.returncode:
            return error_of(done)
        if not file.exists():  # of stages: a file each
            texts = [f.read_text() for f in sorted(Path(scratch).iterdir())]
        else:
            texts = [file.read_text()]
    text = re.sub(r"(build|profile)=\w+, ", "", "".join(texts))
    found = {"hash": hashlib.sha256(text.encode()).hexdigest()[:16], "instructions": text.count("\n[")}
    for name in ("predicted_ms", "exposed_ms"):
        match = re.search(name + r"=([\d.e+-]+)", text)
        found[name] = float(match.group(1)) if match else None
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    cases = {name: words for name, words in plan_cases().items() if options.only in name}
    with ThreadPoolExecutor(options.jobs) as pool:
        found = dict(zip(cases, pool.map(lambda words: plan(options.program, words), cases.values())))
    file = HERE / "expected.json"
    expected = json.loads(file.read_text())
    if options.record:
        expected = {name: found.get(name, expected.get(name)) for name in plan_cases()}
        file.write_text(json.dumps(expected, indent=1) + "\n")
    worst = 0
    for name, value in found.items():
        if "error" in value:
            worst = 1
            print(f"{name}: {value['error']}")
        elif value != expected.get(name):
            worst = 1
            print(f"{name}: expected {expected.get(name)}, found {value}")
    print(f"{len(found)} cases{'' if worst else ', all as expected'}")
    return worst


if __name__ == "__main__":
    sys.exit(main())
