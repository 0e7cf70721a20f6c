#!/usr/bin/env python3
"""Runs `bench gpu` without a GPU: its dry mode runs every part, and its output is complete. Doubles of nvidia-smi, of
the program and of the plugin's tests play a GPU machine on which parts fail and libraries are missing.

    dry.py PROGRAM
"""
import hashlib
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PROGRAM = Path(sys.argv[1]).resolve()
PARTS = ["probe", "dense", "moe-4k", "moe-32k", "overlap-p3dn-v100", "overlap-p4de-a100", "losses", "repeat",
         "schedules", "tests", "trace", "moe-large", "memcheck", "racecheck"]
DRY_PARTS = [part for part in PARTS if part not in ("moe-4k", "overlap-p3dn-v100", "moe-large", "racecheck")]
KEYS = {"dry", "commit", "device", "host", "libraries", "missing", "build"}  # of every result
PART_KEYS = {"part", "status", "note", "seconds", "device_after", "figures"}
FIGURE_KEYS = {"name", "value", "unit", "target", "target_is", "reached"}


def check(*words, **environment):
    # A home folder of its own, so that measurements are not kept.
    with tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, "BUILD_DIR": str(PROGRAM.parent), "HOME": home, **environment}
        return subprocess.run([sys.executable, ROOT / "scripts/bench", "gpu", *map(str, words)], capture_output=True,
                              text=True, env=environment, timeout=280)


def expect(condition, what):
    if not condition:
        sys.exit(f"FAILED: {what}")


def same(found, expected, what):
    expect(found == expected, f"{what}: expected {expected!r}, found {found!r}")


def has_torch():
    return any(subprocess.run([python, "-c", "import torch"], capture_output=True).returncode == 0
               for python in ("python3", "/usr/bin/python3"))


def write(path, text):
    path.write_text(text)
    path.chmod(0o755)
    return path


def read(path):
    return json.loads(path.read_text())


def usage(scratch):
    for words in (("--seconds", "0"), ("--seconds", "1e3"), ("--seconds",), ("--out", ""), ("--frobnicate",), ("x",),
                  ("--only", ""), ("--built", scratch, "--kit", scratch)):
        done = check(*words)
        same(done.returncode, 2, f"exit code of {words}\n{done.stderr}")
    done = check("--dry", "--only", "dense,frobnicate")
    same(done.stderr.splitlines()[-1].partition("argument ")[2],
         f"--only: expected parts of {', '.join(PARTS)}, found 'frobnicate'", "the error of an unknown part")
    if shutil.which("nvidia-smi") is None:
        done = check("--out", os.devnull + "x")
        expect(done.returncode in (2, 77), f"no GPU: exit code {done.returncode}")
    (scratch / "lancet").touch()
    done = check("--dry", "--out", scratch, "--built", scratch)
    same((done.returncode, done.stdout, done.stderr),
         (2, "", f"error: --built: expected lancet, liblancet_cuda.so, test_cuda in {scratch}, "
                 "found no liblancet_cuda.so, test_cuda\n"), "a folder without all programs")


FIGURES = ["20 losses against the CPU's, fp32", "20 losses against the CPU's, bf16", "two runs bit-equal",
           "schedules with the gradients of sequential", "losses of schedules against those of sequential",
           "two runs of policy lancet bit-equal",
           *(f"{model} {what}" for model in ("dense", "moe-32k")
             for what in ("tokens/s", "MFU", "step outside kernels")),
           "dense with train.deterministic=false",
           *(f"lancet, mirrored 4 ranks of p4de-a100: {what}"
             for what in ("step over max(compute, network)", "|predicted / measured - 1|"))]
NO_TORCH = "MISSING: PyTorch: no Python has it, so the speeds have no peer"
PEER = ["dense peer tokens/s", "dense over its peer", "moe-32k peer tokens/s", "moe-32k over its peer"]
TARGETS = {"dense MFU": 58, "dense over its peer": 1.1, "dense step outside kernels": 3, "moe-32k MFU": None,
           "moe-32k over its peer": 1.1, "lancet, mirrored 4 ranks of p4de-a100: step over max(compute, network)": 1.1,
           "lancet, mirrored 4 ranks of p4de-a100: |predicted / measured - 1|": 3}


def schema(folder, parts):
    """Checks the result files and returns the figures by name."""
    same(sorted(path.name for path in folder.iterdir()),
         sorted(["gpu-check.json", "logs.tar", *(f"{part}.json" for part in parts)]), "the files of --out")
    whole = read(folder / "gpu-check.json")
    same(set(whole), KEYS | {"parts"}, "the keys of gpu-check.json")
    same([record["part"] for record in whole["parts"]], parts, "the parts of gpu-check.json")
    figures = {}
    for record in whole["parts"]:
        own = read(folder / f"{record['part']}.json")
        same(set(own), KEYS | PART_KEYS, f"the keys of {record['part']}.json")
        same({key: own[key] for key in PART_KEYS}, record, f"gpu-check.json about {record['part']}")
        same({key: own[key] for key in KEYS}, {key: whole[key] for key in KEYS}, f"{record['part']}.json's facts")
        for figure in record["figures"]:
            same(set(figure), FIGURE_KEYS, "the keys of a figure")
            figures[figure["name"]] = figure
    return figures


def documented_targets():
    """Compares the targets of docs/gpu.md with those of the table."""
    _, _, section = (ROOT / "docs/gpu.md").read_text().partition("\n## Targets\n")
    rows = dict(re.findall(r"^\| `([\w*-]+)`[^|]* \| (.*) \|$", section, re.MULTILINE))
    for part, name in (("dense", "dense "), ("moe-32k", "moe-32k "), ("overlap-*", "lancet, mirrored ")):
        expected = sorted(target for figure, target in TARGETS.items() if target and figure.startswith(name))
        same(sorted(map(float, re.findall(r"\d+(?:\.\d+)?", rows[part]))), expected, f"docs/gpu.md about {part}")


# A Python whose PyTorch trains at 10 tokens/s, where no other has PyTorch.
PEER_DOUBLE = """#!/bin/sh
echo 'RESULT {"tokens_per_s": 10, "torch": "of the test", "mode": "default"}'
"""


def dry(folder):
    double = write(folder.parent / "peer", PEER_DOUBLE)
    done = check("--dry", "--only", ",".join(DRY_PARTS), "--out", folder, "--seconds", 240,
                 *([] if has_torch() else ["--python", double]))
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
    for dtype in ("fp32", "bf16"):  # the CPU compared with itself
        same(figures[f"20 losses against the CPU's, {dtype}"]["value"], 0, "the same device compared with itself")
    same(figures["two runs bit-equal"]["value"], 1, "two runs")
    same(figures["schedules with the gradients of sequential"]["value"], 5, f"schedules\n{details}")
    expect(figures["losses of schedules against those of sequential"]["value"] < 1e-6, "losses of schedules differ")
    same(figures["two runs of policy lancet bit-equal"]["value"], 1, "two runs of lancet")
    for name, target in TARGETS.items():
        same(figures[name]["target"], target, f"the target of {name}")
    if not has_torch():
        same(figures["dense over its peer"]["value"], figures["dense tokens/s"]["value"] / 10, "the ratio to the peer")
    for record in result["parts"]:
        same(record["status"], "ran", f"the status of {record['part']}\n{details}")
        expect(f"RAN: {record['part']}" in done.stdout, f"no line of the part {record['part']}")
    lines = done.stdout.splitlines()
    expect(lines[0].startswith("DRY: "), "the table does not say that it is dry")
    for line in lines:
        if not line.startswith(("WORKS: ", "RAN: ")):
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
    done = check("--dry", "--only", "racecheck,losses", "--out", folder, "--seconds", 1)
    same(read(folder / "losses.json"), before, "a result of an earlier call")
    parts = [record["part"] for record in read(folder / "gpu-check.json")["parts"]]
    same(parts, [*DRY_PARTS, "racecheck"], "all parts")
    same(done.stderr.splitlines()[-1].strip(),
         f"the rest: python3 scripts/bench gpu --out {folder} --only losses,racecheck", "the command for the rest")
    expect("NOT RUN: racecheck: " in done.stdout, f"the table does not say what did not run:\n{done.stdout}")


TEST_CUDA = """#!/bin/sh
test "$1 $2" != '-w NoTests' || shift 2
case $1 in
--list-test-names-only) printf 'probe: one\\nprobe: two, with a comma\\nthree\\n'; exit 3 ;;
'probe: two\\, with a comma') printf 'x.cpp:1: FAILED:\\nexplicitly with message:\\n  the streams hang\\n'; exit 1 ;;
three) echo 'SKIPPED: too few GPUs' ;;
esac
"""


def with_failures(scratch):
    """A GPU machine whose training fails, and whose build has no cuDNN and no NCCL."""
    built, out = scratch / "built", scratch / "out"
    built.mkdir()
    write(scratch / "nvidia-smi", "#!/bin/sh\necho 'GPU of the test, 1.2'\n")
    write(built / "lancet", "#!/bin/sh\necho 'error: a disk of the test is full' >&2\nexit 1\n")
    write(built / "test_cuda", TEST_CUDA)
    shutil.copy(PROGRAM, built / "liblancet_cuda.so")  # a file with libraries, none of them cuDNN or NCCL
    done = check("--built", built, "--out", out, "--only", "losses,tests,probe",
                 PATH=f"{scratch}:{os.environ['PATH']}")
    details = done.stdout + done.stderr
    same(done.returncode, 1, f"exit code\n{details}")
    figures = schema(out, ["probe", "losses", "tests"])
    records = {name: read(out / f"{name}.json") for name in ("probe", "losses", "tests")}
    same({name: record["status"] for name, record in records.items()},
         {"probe": "failed", "losses": "failed", "tests": "failed"}, f"statuses\n{details}")
    same(records["losses"]["note"], "losses-fp32-cpu0 ended with 1: error: a disk of the test is full", "why it failed")
    for name in ("probe", "tests"):
        same(records[name]["note"], "probe: two, with a comma: the streams hang", f"why {name} failed")
    for name, unit in (("probes passed", "of 2, 0 skipped"), ("tests on the GPU passed", "of 3, 1 skipped")):
        same((figures[name]["value"], figures[name]["unit"]), (1, unit), name)
    same(records["probe"]["device"], {"name": "GPU of the test", "driver_version": "1.2"}, "the device")
    missing = ["attention on the tree's own kernels: cuDNN not found at the build",
               "messages between GPUs through the host's memory: NCCL not found at the build"]
    head = [] if has_torch() else [NO_TORCH]
    head += [f"MISSING: {line}" for line in missing]
    if not shutil.which("compute-sanitizer", path=os.environ["PATH"] + ":/usr/local/cuda/bin"):
        head.append("MISSING: compute-sanitizer: memcheck and racecheck do not run")
    lines = done.stdout.splitlines()
    same(lines[:len(head)], head, "the head of the table")
    expect(lines[len(head)].startswith("device GPU of the test, driver 1.2, "), f"the line of the device: {lines}")
    expect("FAILED: losses: losses-fp32-cpu0 ended with 1" in done.stdout, f"no line of the failed part\n{details}")


with tempfile.TemporaryDirectory() as name:
    scratch = Path(name)
    usage(scratch)
    documented_targets()
    dry(scratch / "dry")
    earlier_results(scratch / "dry")
    (scratch / "machine").mkdir()
    with_failures(scratch / "machine")
print("passed")
