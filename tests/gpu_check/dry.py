#!/usr/bin/env python3
"""Runs `bench gpu` without a GPU: its dry mode runs every part, and its output is complete.

    dry.py PROGRAM
"""
import hashlib
import json
import math
import os
import re
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path

from checking import PROGRAM, ROOT, check, expect, read, same, schema, write

sys.path.insert(0, str(ROOT / "scripts"))
from bench import gpu  # noqa: E402

PARTS = [part.name for part in gpu.PARTS]
DRY_PARTS = [part for part in PARTS if part not in ("moe-4k", "overlap-dgx-h100", "moe-large", "racecheck")]
DEVICE_PARTS = ("probe", "tests", "ranks", "ncu", "sass", "memcheck")  # those of DRY_PARTS that run nothing without a GPU


def usage(scratch):
    for words in (("--seconds", "0"), ("--seconds", "1e3"), ("--seconds",), ("--out", ""), ("--frobnicate",), ("x",),
                  ("--only", ""), ("--built", scratch, "--kit", scratch)):
        done = check(*words)
        same(done.returncode, 2, f"exit code of {words}\n{done.stderr}")
    done = check("--dry", "--only", "dense,frobnicate")
    same(done.stderr.splitlines()[-1].partition("argument ")[2],
         f"--only: expected parts of {', '.join(PARTS)}, found 'frobnicate'", "the error of an unknown part")
    if shutil.which("nvidia-smi") is None:
        left = scratch / "left"
        left.mkdir()
        same((check(TMPDIR=left).returncode, list(left.iterdir())), (77, []), "no GPU: the exit code, and what is left")
    for words, error in (
            (("--out", "/proc/self"), r"cannot write into /proc/\d+: .*"),
            (("--kit", scratch),
             f"--kit: expected a folder that scripts/gpu-kit.sh made, found no kit.txt in {scratch}"),
            (("--python", "/bin/true"), "--python: expected a Python with PyTorch, found /bin/true")):
        done = check("--dry", *words)
        expect(done.returncode == 2 and re.fullmatch(f"error: {error}\n", done.stderr), f"{words}: {done.stderr}")
    done = check("--dry", "--python", "no-python")
    same((done.returncode, done.stderr.splitlines()[-1].partition("argument ")[2]),
         (2, "--python: expected a Python, found no program 'no-python'"), "a Python that does not exist")


def built(scratch):
    """A folder for --built without all programs, and one whose program has no permission to run."""
    (scratch / "lancet").touch()
    done = check("--dry", "--out", scratch, "--built", scratch)
    same((done.returncode, done.stdout, done.stderr),
         (2, "", f"error: --built: expected lancet, liblancet_cuda.so, test_cuda in {scratch}, "
                 "found no liblancet_cuda.so, test_cuda\n"), "a folder without all programs")
    (scratch / "liblancet_cuda.so").touch()
    write(scratch / "test_cuda", "")
    done = check("--dry", "--out", scratch, "--built", scratch)
    same((done.returncode, done.stderr),
         (2, f"error: --built: expected a program, found no permission to run {scratch}/lancet\n"), "a copied file")


def earlier_files(scratch):
    """Dry results do not replace those of a GPU; a damaged archive is named before any part runs."""
    (scratch / "gpu-check.json").write_text('{"dry": false}')
    done = check("--dry", "--out", scratch)
    same((done.returncode, done.stderr),
         (2, f"error: --dry: expected a folder without results of a GPU, found some in {scratch}\n"), "real results")
    (scratch / "gpu-check.json").write_text("[]")
    (scratch / "logs.tar").write_text("no archive")
    done = check("--dry", "--out", scratch)
    same(done.returncode, 2, "exit code of a damaged archive")
    expect(done.stderr.startswith(f"error: expected a whole archive at {scratch}/logs.tar, found a damaged one ("),
           done.stderr)


LOSSES = [f"20 losses against the CPU's, {dtype}, {width}" for width in ("narrow", "256 wide, 8 experts")
          for dtype in ("fp32", "bf16")]
ORDERS = ("any order", "deterministic")
FIGURES = [*LOSSES, "two runs of 20 bf16 steps bit-equal",
           "schedules with the gradients of sequential", "losses of schedules against those of sequential",
           "two runs of policy lancet bit-equal",
           *(f"{model} {what}, {order}" for model in ("dense", "moe-32k") for order in ORDERS
             for what in ("tokens/s", "MFU", "step outside kernels")),
           *(f"lancet, mirrored 4 ranks of p4de-a100: {what}"
             for what in ("step over max(compute, network)", "|predicted / measured - 1|"))]
PEER = [f"{model} {what}, {order}" for model in ("dense", "moe-32k") for order in ORDERS
        for what in ("peer tokens/s", "over its peer")]
TARGETS = {"dense MFU, any order": 55, "dense MFU, deterministic": None,
           **{f"dense {what}, {order}": target for order in ORDERS
              for what, target in (("over its peer", 1.1), ("step outside kernels", 3))},
           "moe-32k MFU, any order": None, **{f"moe-32k over its peer, {order}": 1.1 for order in ORDERS},
           "lancet, mirrored 4 ranks of p4de-a100: step over max(compute, network)": 1.1,
           "lancet, mirrored 4 ranks of p4de-a100: |predicted / measured - 1|": 3}


def documented_targets():
    """Compares the targets of docs/gpu.md with those of the table."""
    _, _, section = (ROOT / "docs/gpu.md").read_text().partition("\n## Targets\n")
    rows = dict(re.findall(r"^\| `([\w*-]+)`[^|]* \| (.*) \|$", section, re.MULTILINE))
    for part, name in (("dense", "dense "), ("moe-32k", "moe-32k "), ("overlap-*", "lancet, mirrored ")):
        expected = sorted({target for figure, target in TARGETS.items() if target and figure.startswith(name)})
        same(sorted(map(float, re.findall(r"\d+(?:\.\d+)?", rows[part]))), expected, f"docs/gpu.md about {part}")


def documented_limits():
    """Compares the parts of docs/gpu.md, their order and their time limits with those of the command."""
    _, _, section = (ROOT / "docs/gpu.md").read_text().partition("\n## Check a GPU machine\n")
    rows = re.findall(r"^\| (`[^|]*`) \| (\d+) \|", section.partition("\n## ")[0], re.MULTILINE)
    found = [(name, int(seconds)) for names, seconds in rows for name in re.findall(r"`([\w-]+)`", names)]
    same(found, [(part.name, part.most) for part in gpu.PARTS], "docs/gpu.md's limits")
    expect(f" {sum(part.most for part in gpu.PARTS):,} s " in section, "docs/gpu.md lacks the sum of the limits")


# A Python whose PyTorch trains at 10 tokens/s.
PEER_DOUBLE = """#!/bin/sh
test "$1" != -c || exec echo 'PyTorch without a GPU'
echo 'RESULT {"tokens_per_s": 10, "torch": "of the test", "mode": "default",' \
  '"deterministic": {"tokens_per_s": 5, "mode": "default"}}'
"""


def dry(folder):
    double = write(folder.parent / "peer", PEER_DOUBLE)
    done = check("--dry", "--only", ",".join(DRY_PARTS), "--out", folder, "--seconds", 240,
                 "--python", double)
    result = read(folder / "gpu-check.json")
    details = json.dumps(result["parts"], indent=1) + done.stdout + done.stderr
    same(done.returncode, 0, f"exit code\n{details}")
    expect(result["dry"] is True and result["commit"], "dry and commit")
    same(result["build"], hashlib.sha256(PROGRAM.read_bytes()).hexdigest()[:16], "the build")
    same(result["host"]["cores"], len(os.sched_getaffinity(0)), "cores")
    figures = schema(folder, DRY_PARTS)
    for name in FIGURES + PEER:
        expect(name in figures, f"no figure {name}\n{details}")
        expect(math.isfinite(figures[name]["value"]) and figures[name]["value"] >= 0, f"{name}: {figures[name]}")
        expect(figures[name]["reached"] is None, f"a dry run reaches nothing: {figures[name]}")
        expect(f"WORKS: {name}\n" in done.stdout, f"no line of {name} in the table")
    for name in LOSSES:
        same(figures[name]["value"], 0, "the same device compared with itself")
    same(figures["two runs of 20 bf16 steps bit-equal"]["value"], 1, "two runs")
    same(figures["schedules with the gradients of sequential"]["value"], 6, f"schedules\n{details}")
    expect(figures["losses of schedules against those of sequential"]["value"] < 1e-6, "losses of schedules differ")
    same(figures["two runs of policy lancet bit-equal"]["value"], 1, "two runs of lancet")
    for name, target in TARGETS.items():
        same(figures[name]["target"], target, f"the target of {name}")
    for order, peer in zip(ORDERS, (10, 5)):
        same(figures[f"dense over its peer, {order}"]["value"], figures[f"dense tokens/s, {order}"]["value"] / peer,
             "the ratio to the peer")
    expect(sum(name.startswith("dense lost: ") for name in figures) >= 8, f"the rows of the floors\n{details}")
    for record in result["parts"]:
        status = "not run" if record["part"] in DEVICE_PARTS else "ran"
        same(record["status"], status, f"the status of {record['part']}\n{details}")
        expect(f"\n{status.upper()}: {record['part']}" in done.stdout, f"no line of the part {record['part']}")
    same((folder / "table.txt").read_text(), done.stdout, "table.txt")
    lines = done.stdout.splitlines()
    expect(lines[0].startswith("DRY: "), "the table does not say that it is dry")
    for line in lines:
        if not line.startswith(("WORKS: ", "RAN: ", "NOT RUN: ")):
            continue
        unnamed = line.split(": ", 1)[1]
        for name in sorted([*figures, *DRY_PARTS], key=len, reverse=True):
            unnamed = unnamed.replace(name, "")
        expect(not any(c.isdigit() for c in unnamed), f"a number where nothing is measured: {line}")
    with tarfile.open(folder / "logs.tar") as logs:
        names = logs.getnames()
    expect("dense/dense.log" in names and "repeat/runs/repeat-a/metrics.jsonl" in names, f"logs: {names}")
    expect(not any(name.endswith(".safetensors") for name in names), "checkpoints among the logs")


def earlier_results(folder):
    """A further call adds its parts to those that the folder has, and keeps a result that it has no time to repeat."""
    before = read(folder / "losses.json")
    (folder / "repeat.json").write_text("[]")  # of no call
    done = check("--dry", "--only", "racecheck,losses", "--out", folder, "--seconds", 1)
    same(done.returncode, 3, "exit code of parts without time")
    same(read(folder / "losses.json"), before, "a result of an earlier call")
    parts = [record["part"] for record in read(folder / "gpu-check.json")["parts"]]
    kept = [part for part in DRY_PARTS if part not in (*DEVICE_PARTS, "repeat")]
    same(parts, [*kept, "racecheck"], "all parts")
    rest = f"the rest: python3 scripts/bench gpu --dry --out {folder} --seconds 1 --only losses,racecheck"
    same(done.stderr.splitlines()[-1].strip(), rest, "the command for the rest")
    same((folder / "table.txt").read_text(), f"{done.stdout}{rest}\n", "table.txt")
    expect("\nPOSTPONED: losses: 0 s left, it needs 2; the result of an earlier call is kept\n" in done.stdout and
           "\nPOSTPONED: racecheck: " in done.stdout and "\nRAN: dense (earlier call)" in done.stdout and
           "NOT RUN: " not in done.stdout, f"the lines of parts:\n{done.stdout}")


def uncompiled_peer(folder):
    """PyTorch that compiles nothing is no measure of the target."""
    double = write(folder.parent / "peer", PEER_DOUBLE.replace('"default"', '"eager"', 1))
    done = check("--dry", "--only", "dense", "--out", folder, "--python", os.path.relpath(double))
    same(done.returncode, 0, done.stderr)
    (record,) = read(folder / "gpu-check.json")["parts"]
    same(record["note"], "PyTorch of the test compiles no model: no target against its plain form", "the note")
    same([figure["target"] for figure in record["figures"] if figure["name"].startswith("dense over its peer")],
         [None, 1.1],
         "the target against PyTorch that is not compiled")


with tempfile.TemporaryDirectory() as name:
    scratch = Path(name)
    for case in (usage, built, earlier_files):
        (scratch / case.__name__).mkdir()
        case(scratch / case.__name__)
    documented_targets()
    documented_limits()
    dry(scratch / "dry")
    earlier_results(scratch / "dry")
    uncompiled_peer(scratch / "uncompiled")
print("passed")
