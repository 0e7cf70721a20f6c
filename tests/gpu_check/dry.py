#!/usr/bin/env python3
"""Runs `bench gpu` without a GPU: its dry mode runs every part, and its output is complete.

    dry.py PROGRAM
"""
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PROGRAM = Path(sys.argv[1]).resolve()


def check(*words):
    # A home folder of its own, so that measurements are not kept.
    with tempfile.TemporaryDirectory() as home:
        return subprocess.run([sys.executable, ROOT / "scripts/bench", "gpu", *map(str, words)], capture_output=True, text=True,
                              env={**os.environ, "BUILD_DIR": str(PROGRAM.parent), "HOME": home}, timeout=280)


def expect(condition, what):
    if not condition:
        sys.exit(f"FAILED: {what}")


def has_torch():
    return any(subprocess.run([python, "-c", "import torch"], capture_output=True).returncode == 0
               for python in ("python3", "/usr/bin/python3"))


def usage():
    for words in (("--seconds", "0"), ("--seconds", "1e3"), ("--seconds",), ("--out", ""), ("--frobnicate",), ("x",)):
        done = check(*words)
        expect(done.returncode == 2, f"{words}: exit code {done.returncode}, expected 2\n{done.stderr}")
    if subprocess.run(["sh", "-c", "nvidia-smi -L"], capture_output=True).returncode != 0:
        done = check("--out", os.devnull + "x")
        expect(done.returncode in (2, 77), f"no GPU: exit code {done.returncode}")


FIGURES = ["20 losses against the CPU's, fp32", "20 losses against the CPU's, bf16", "two runs bit-equal",
           "schedules with the gradients of sequential", "losses of schedules against those of sequential",
           "two runs of policy lancet bit-equal",
           *(f"{model} {what}" for model in ("gpt2", "gpt2-s-moe") for what in ("tokens/s", "MFU", "step outside kernels")),
           *(f"lancet, emulated 4 ranks of {network}: {what}" for network in ("p3dn-v100", "p4de-a100")
             for what in ("step over max(compute, network)", "|predicted / measured - 1|"))]
PEER = ["gpt2 peer tokens/s", "gpt2 over its peer", "gpt2-s-moe peer tokens/s", "gpt2-s-moe over its peer"]


def dry(folder):
    done = check("--dry", "--quick", "--out", folder, "--seconds", 240)
    result = json.loads((folder / "gpu-check.json").read_text())
    details = json.dumps(result["parts"], indent=1) + done.stdout + done.stderr
    expect(done.returncode == 0, f"exit code {done.returncode}\n{details}")
    expect(result["dry"] is True and result["commit"], "dry and commit")
    expect(set(result["tests"]) == {"passed", "skipped", "failed", "not_run"}, "the counts of tests")
    figures = {figure["name"]: figure for figure in result["figures"]}
    for name in FIGURES + (PEER if has_torch() else []):
        expect(name in figures, f"no figure {name}\n{details}")
        expect(math.isfinite(figures[name]["value"]) and figures[name]["value"] >= 0, f"{name}: {figures[name]}")
        expect(figures[name]["reached"] is None, f"a dry run reaches nothing: {figures[name]}")
        expect(figures[name]["dry"] is True, f"a figure that is not labelled dry: {figures[name]}")
        expect(f"WORKS: {name}\n" in done.stdout, f"no line of {name} in the table")
    for dtype in ("fp32", "bf16"):  # the CPU compared with itself
        expect(figures[f"20 losses against the CPU's, {dtype}"]["value"] == 0, "the same device differs from itself")
    expect(figures["two runs bit-equal"]["value"] == 1, "two runs differ")
    expect(figures["schedules with the gradients of sequential"]["value"] == 5, f"schedules differ\n{details}")
    expect(figures["losses of schedules against those of sequential"]["value"] < 1e-6, "losses of schedules differ")
    expect(figures["two runs of policy lancet bit-equal"]["value"] == 1, "two runs of lancet differ")
    expect(figures["gpt2 over its peer"]["target"] == 1.15 if has_torch() else True, "the target of gpt2")
    statuses = {part["name"]: part["status"] for part in result["parts"]}
    for name in ("losses", "repeat", "schedules", "gpt2", "gpt2-s-moe", "overlap p3dn-v100", "overlap p4de-a100", "memcheck",
                 "memcheck of kernels"):
        expect(statuses.get(name) == "ran", f"{name}: {statuses.get(name)}\n{details}")
        expect(f"RAN: {name}" in done.stdout, f"no line of the part {name}")
    expect(done.stdout.startswith("DRY: "), "the table does not say that it is dry")
    for line in done.stdout.splitlines()[3:]:  # after the device and the counts of tests
        unnamed = line.split(": ", 1)[1]
        for name in sorted([*figures, *statuses], key=len, reverse=True):
            unnamed = unnamed.replace(name, "")
        expect(not any(c.isdigit() for c in unnamed), f"a number where nothing is measured: {line}")


def out_of_time(folder):
    done = check("--dry", "--quick", "--out", folder, "--seconds", 1)
    result = json.loads((folder / "gpu-check.json").read_text())
    expect(all(part["status"] in ("not run", "late") for part in result["parts"]), f"parts ran in no time: {result['parts']}")
    expect("NOT RUN: gpt2: " in done.stdout, f"the table does not say what did not run:\n{done.stdout}")


with tempfile.TemporaryDirectory() as scratch:
    usage()
    dry(Path(scratch) / "dry")
    out_of_time(Path(scratch) / "late")
print("passed")
