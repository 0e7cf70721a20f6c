#!/usr/bin/env python3
"""Holds what the program plans and computes against what it did when expected.json was written.

    referee.py PROGRAM [--record] [--only WORD] [--jobs N]

A case of `plans` is a plan for a declared machine: its text without the build's id, the predicted step and the arena. A
case of `losses` trains five steps: losses and gradient norms, bit for bit, on one kind of processor. Exit code 1: a case
differs; each is named.
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

POLICIES = ["sequential", "dw", "tutel", "fastermoe", "comet", "flowmoe", "collective_matmul",
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
        "dense": on(MOE, "p3dn-v100", 8, lancet, "model.moe_layer_freq=0"),
        "hosts": on(SMALL, "ethernet-10g-cpu", 8, "overlap.policy=auto", options=("--hosts", "4")),
        "without weight gradients moved": on(MOE, "p3dn-v100", 16, "overlap.policy=dw", options=("--skip", "move_dw")),
    }
    return cases


TINY = ["model.n_layer=4", "model.n_embd=64", "model.n_head=4", "model.vocab_size=512", "model.n_positions=32",
        "train.micro_batch_size=4", "train.seq_len=32", "train.steps=5", "data.synthetic=true", "log.interval=5",
        "train.dtype=fp32", "threads=1", "overlap.parts=2", "train.clip_grad=0", "train.sample_tokens=0",
        "train.eval_interval=0", "train.save_interval=0", "model.experts_per_rank=null", "model.num_local_experts=4"]


def loss_cases():
    """By name: ranks and settings. A setting "stop at 3" resumes the run after its third step."""
    two = "model.num_experts_per_tok=2"
    return {
        "one rank": (1, ["overlap.policy=sequential"]),
        "lancet": (2, ["overlap.policy=lancet"]),
        "flowmoe, bf16": (2, ["overlap.policy=flowmoe", "train.dtype=bf16"]),
        "flowmoe, top-2, no drops": (2, ["overlap.policy=flowmoe", two, "model.router=top_k",
                                         "model.capacity_factor=null"]),
        "tutel, gshard": (2, ["overlap.policy=tutel", two, "model.router=gshard"]),
        "fastermoe, prioritized": (4, ["overlap.policy=fastermoe", "model.router=batch_prioritized"]),
        "comet, sigmoid": (2, ["overlap.policy=comet", two, "model.router=sigmoid", "model.n_shared_experts=1"]),
        "random": (2, ["overlap.policy=dw", "model.router=random"]),
        "hash": (2, ["overlap.policy=lancet_paper", "model.router=hash"]),
        "expert choice": (2, ["overlap.policy=lancet", "model.router=expert_choice"]),
        "tensor": (2, ["overlap.policy=collective_matmul", "mesh.tensor=2", "train.sequence_parallel=true"]),
        "stages": (2, ["mesh.stage=2", "train.gradient_accumulation_steps=2", "train.pipeline_schedule=zero_bubble"]),
        "zero, resumed": (2, ["overlap.policy=lancet", "train.zero=1", "mesh.data=2", "stop at 3"]),
        "accumulation, recomputation, resumed": (2, ["overlap.policy=neighbour_microbatches", "stop at 3",
                                                     "train.gradient_accumulation_steps=4"]),
        "emulated": (2, ["device=emulated", "emulated.hardware=p3dn-v100", "emulated.dilation=400",
                         "overlap.policy=lancet"]),
    }


def call(words):
    environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                   "XDG_CACHE_HOME": "/nonexistent"}
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


def losses(program, ranks, settings):
    stop = "stop at 3" in settings
    words = [w for s in TINY + [s for s in settings if s != "stop at 3"] for w in ("--set", s)]
    with tempfile.TemporaryDirectory() as scratch:
        run = [program, "train", SMALL, "--run-dir", f"{scratch}/run", *words]
        if ranks > 1:
            run = ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", str(ranks), *run]
        if stop:
            done = call([*run, "--set", "train.stop_after=3"])
            if done.returncode != 75:
                return error_of(done)
        done = call(run)
        if done.returncode:
            return error_of(done)
        records = [json.loads(line) for line in (Path(scratch) / "run/metrics.jsonl").read_text().splitlines()]
    steps = [r for r in records if "loss" in r and "step" in r]
    return {"losses": [r["loss"] for r in steps], "norms": [r.get("grad_norm") for r in steps]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    jobs = {f"plan: {name}": (plan, (options.program, words)) for name, words in plan_cases().items()}
    jobs |= {f"losses: {name}": (losses, (options.program, *case)) for name, case in loss_cases().items()}
    jobs = {name: job for name, job in jobs.items() if options.only in name}
    with ThreadPoolExecutor(options.jobs) as pool:
        found = dict(zip(jobs, pool.map(lambda job: job[0](*job[1]), jobs.values())))
    file = HERE / "expected.json"
    if options.record:
        file.write_text(json.dumps(found, indent=1) + "\n")
    expected = json.loads(file.read_text())
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
