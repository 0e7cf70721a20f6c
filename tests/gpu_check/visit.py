#!/usr/bin/env python3
"""Runs scripts/gpu-visit.sh on doubles of a GPU machine's programs and tools: all parts pass, the command is
killed and resumed on another card, the probe fails.

    visit.py PROGRAM
"""
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

from checking import ROOT, expect, read, same, schema, write

MOST_FILES = 8  # that come back from such a machine
FIRST = ["probe", "losses", "repeat", "tests", "dense"]
SECOND = ["ranks", "schedules", "moe-32k", "overlap-p4de-a100", "ncu", "sass"]
# The trainer: writes the records of a run at once. HANG: words of a command that does not end.
LANCET = """#!/usr/bin/env python3
import json, os, sys, time
from pathlib import Path
words = sys.argv[1:]
if os.environ.get("HANG", "none") in " ".join(words):
    Path(os.environ["HANGS"]).touch()
    time.sleep(100)
if words[:2] == ["bench", "ops"]:
    print(json.dumps({"rows": [
        {"op": "expert_linear", "role": "forward", "calls": 6, "ms": 5.0, "floor_ms": 3.0, "lost_ms": 2.0},
        {"op": "all_to_all", "role": "forward", "calls": 6, "ms": 5.0, "floor_ms": None, "lost_ms": None}]}))
if words[0] != "train":
    sys.exit()
config, run = json.loads(Path(words[1]).read_text()), Path(words[3])
steps = config["train"]["steps"]
saved = run / f"checkpoints/step-{steps:06d}"
saved.mkdir(parents=True)
(saved / "model.safetensors").write_text("weights")
(run / "metrics.jsonl").write_text("".join(json.dumps(
    {"loss": 5 - step / 100, "grad_norm": 1, "tokens_per_s": 4e5, "step_ms": 80, "compute_ms": 79, "mfu": 56,
     "predicted_ms": 81}) + "\\n" for step in range(steps)))
print("mirrored    network declared 10.0 ms of all-to-alls and 5.0 ms of all-reduces\\npolicy      lancet: whole")
"""
TEST_CUDA = """#!/bin/sh
test "$1 $2" != '-w NoTests' || shift 2
case $1 in
--list-test-names-only) printf 'probe: one\\nkernels on a GPU\\ntwo ranks train on one GPU\\n' ;;
probe*) test -z "$NO_PROBE" || { printf 'x.cpp:1: FAILED:\\n  REQUIRE( a == b )\\n\\n'; exit 1; } ;;
two*) test "$CUDA_MODULE_LOADING" = EAGER ;;
esac
"""
PYTHON = f"""#!/bin/sh
case "$1 $2" in
"-c import torch"*) echo 'PyTorch with a GPU' ;;
*gpu_peer.py*) echo 'RESULT {{"tokens_per_s": 320000, "torch": "of the test", "mode": "default", "deterministic":
 {{"tokens_per_s": 200000, "mode": "default"}}}}' | tr -d '\\n' ;;
*) exec {sys.executable} "$@" ;;
esac
"""


def machine(scratch, name="GPU of the test"):
    """Writes the doubles, and returns the environment of a visit."""
    tools, built = scratch / "tools", scratch / "built"
    for folder in (tools, built):
        folder.mkdir()
    write(tools / "nvidia-smi", f"#!/bin/sh\necho '{name}, 1.2'\n")
    write(tools / "python3", PYTHON)
    write(tools / "ncu", "#!/bin/sh\necho '    Duration   us  3'\n")
    write(tools / "cuobjdump", "#!/bin/sh\necho 'code of the test'\n")
    write(tools / "compute-sanitizer", "#!/bin/sh\nshift 2\necho memcheck of the test\nexec \"$@\"\n")
    write(built / "lancet", LANCET)
    write(built / "test_cuda", TEST_CUDA)
    subprocess.run(["cc", "-shared", "-x", "c", "-", "-o", built / "liblancet_cuda.so"], input="", text=True, check=True)
    return {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "BUILT": str(built), "HOME": str(scratch),
            "VISIT": str(scratch / "visit"), "TMPDIR": str(scratch), "OUT": str(scratch / "out"), "HANGS": str(scratch / "hangs")}


def visit(environment, *words):
    return subprocess.run([ROOT / "scripts/gpu-visit.sh", *words], capture_output=True, text=True, env=environment,
                          timeout=200)


def brought(environment):
    """Returns the statuses of the parts that came back, and the table."""
    out = Path(environment["OUT"])
    found = sorted(path.name for path in out.iterdir())
    expect(len(found) <= MOST_FILES and set(found) >= {"gpu-check.json", "table.txt", "visit.tar.gz"}, f"files: {found}")
    parts = read(out / "gpu-check.json")["parts"]
    return {record["part"]: record["status"] for record in parts}, (out / "table.txt").read_text()


def whole(scratch):
    environment = machine(scratch)
    done = visit(environment)
    statuses, table = brought(environment)
    details = done.stdout + done.stderr
    same(statuses, {part: "ran" for part in FIRST + SECOND}, f"statuses\n{details}")
    same(done.returncode, 0, f"exit code\n{details}")
    for part in ("dense", "moe-32k"):
        for order, ratio in (("any order", "1.250"), ("deterministic", "2.000")):
            line = next(line for line in table.splitlines() if line.startswith(f"{part} over its peer, {order}"))
            expect(ratio in line and "reached" in line, line)
        expect(f"{part} lost: expert_linear, forward" in table and "lost: all_to_all" not in table, table)
    with tarfile.open(Path(environment["OUT"]) / "visit.tar.gz") as archive:
        names = archive.getnames()
    expect({"./logs.tar", "./dense.json", "./dmon.txt", "./compile-dense.txt"} <= set(names), f"the archive: {names}")
    expect((Path(environment["OUT"]) / "sass.gz").exists(), "the machine code does not come back")
    again = visit(environment)
    same(again.returncode, 0, f"exit code of a second visit\n{again.stderr}")
    expect(": ran in" not in again.stderr, f"parts that have a result ran again\n{again.stderr}")
    same(brought(environment)[0], statuses, "what a second visit brings")


def killed(scratch):
    """The results of a killed command come back, and a visit to another machine resumes from them."""
    environment = machine(scratch)
    process = subprocess.Popen([ROOT / "scripts/gpu-visit.sh", "1"], env={**environment, "HANG": "dense"},
                               stderr=subprocess.DEVNULL, start_new_session=True)
    for _ in range(600):
        if Path(environment["HANGS"]).exists():
            break
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    same(brought(environment)[0], {part: "ran" for part in FIRST[:-1]}, "what a killed visit brings")
    (scratch / "other").mkdir()
    other = {**machine(scratch / "other", "another GPU"), "BUILT": environment["BUILT"]}
    with tarfile.open(Path(environment["OUT"]) / "visit.tar.gz") as archive:
        archive.extractall(other["VISIT"])
    done = visit(other, "1")
    statuses, table = brought(other)
    same((done.returncode, statuses), (0, {part: "ran" for part in FIRST}), f"the visit that resumes\n{done.stderr}")
    ran = [line.split(":")[0].strip() for line in done.stderr.splitlines() if ": ran in" in line]
    same(ran, ["dense"], "the parts that ran")
    for line in table.splitlines():
        if line.startswith(("probes passed", "20 losses", "two runs")):
            expect(line.endswith(", on GPU of the test"), line)
        if line.startswith("dense "):
            expect("GPU of the test" not in line, line)


def failed_probe(scratch):
    """A failed probe runs again under memcheck, and the other parts follow."""
    environment = {**machine(scratch), "NO_PROBE": "1"}
    done = visit(environment, "1")
    statuses, table = brought(environment)
    same((done.returncode, statuses), (1, {part: "failed" if part == "probe" else "ran" for part in FIRST}),
         f"a failed probe\n{done.stderr}")
    expect("FAILED: probe (earlier call): REQUIRE( a == b ) (probe: one)" in table, table)
    with tarfile.open(Path(environment["VISIT"]) / "logs.tar") as logs:
        same(logs.extractfile("probe/why-1.log").read().decode().splitlines()[1], "memcheck of the test", "the second run")


def unwritable_copy(scratch):
    """The parts go on where their results cannot be copied; a folder inside that of the results is refused."""
    environment = machine(scratch)
    (scratch / "out/table.txt").mkdir(parents=True)
    done = visit(environment, "1")
    expect(done.returncode == 0 and f"cannot copy results into {scratch}/out: Is a directory" in done.stderr, done.stderr)
    same(sorted(path.stem for path in (scratch / "visit").glob("*.json")), sorted([*FIRST, "gpu-check"]), "the results")
    done = visit({**environment, "OUT": f"{scratch}/visit/home"}, "1")
    same((done.returncode, done.stderr.splitlines()[-1]),
         (2, f"error: --copy: expected a folder outside of --out, found {scratch}/visit/home"), "a copy within the results")


def usage(scratch):
    environment = machine(scratch)
    for words in (("3",), ("1", "2")):
        done = visit(environment, *words)
        same((done.returncode, done.stderr), (1, "error: usage: scripts/gpu-visit.sh [1|2]\n"), f"usage: {words}")
    (Path(environment["BUILT"]) / "test_cuda").unlink()
    done = visit(environment, "1")
    same((done.returncode, done.stderr.splitlines()[-1]),
         (2, f"error: --built: expected lancet, liblancet_cuda.so, test_cuda in {environment['BUILT']}, found no test_cuda"),
         "programs that are missing")


with tempfile.TemporaryDirectory() as name:
    for case in (whole, killed, failed_probe, unwritable_copy, usage):
        folder = Path(name) / case.__name__
        folder.mkdir()
        start = time.monotonic()
        case(folder)
        print(f"passed: {case.__name__}, {time.monotonic() - start:.0f} s", flush=True)
