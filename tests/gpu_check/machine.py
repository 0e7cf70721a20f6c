#!/usr/bin/env python3
"""Runs `bench gpu` on doubles of a GPU machine (nvidia-smi, the program, the plugin's tests, CMake): parts fail or take
too long, libraries are missing, signals end the check.

    machine.py PROGRAM
"""
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

from checking import PROGRAM, ROOT, check, command, expect, read, same, schema, write

sys.path.insert(0, str(ROOT / "scripts"))
from bench import gpu, gpu_machine, gpu_parts, run  # noqa: E402
from bench.gpu_check import Check, Late, Missing  # noqa: E402

REST = "the rest: python3 scripts/bench gpu"
TEST_CUDA = """#!/bin/sh
test "$1 $2" != '-w NoTests' || shift 2
case $1 in
--list-test-names-only) printf 'probe: one\\nprobe: two, with a comma\\nthree\\nfour, with a comma\\nfive\\n'; exit 5 ;;
*'\\, with a comma')
  printf 'x.cpp:1: FAILED:\\nexplicitly with message:\\n  the streams\\n  hang\\n\\n=====\\n'; exit 1 ;;
three) echo 'SKIPPED: too few GPUs' ;;
esac
"""
NO_DRIVER = """#!/bin/sh
test "$1" != --list-test-names-only || exec printf 'probe: one\\nprobe: two\\n'
echo 'SKIPPED: device: expected an NVIDIA driver, found none'
"""
FAILING = "#!/bin/sh\necho 'error: a disk of the test is full' >&2\nexit 1\n"
STARTS = "#!/bin/sh\ntest \"$1\" != --version || exit 0\n"  # the head of a program that fails later


def library(path, *words, source=""):
    subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-", "-x", "none", "-Wl,--no-as-needed", *words, "-o", path],
                   input=source, text=True, check=True)


def machine(scratch, lancet=FAILING.replace("#!/bin/sh\n", STARTS), test_cuda=TEST_CUDA):
    """Writes the doubles. Returns the folder for --built and a PATH that names a GPU."""
    built = scratch / "built"
    built.mkdir()
    write(scratch / "nvidia-smi", "#!/bin/sh\necho 'GPU of the test, 1.2'\n")
    write(built / "lancet", lancet)
    write(built / "test_cuda", test_cuda)
    library(built / "liblancet_cuda.so")  # neither cuDNN nor NCCL is among its libraries
    return built, f"{scratch}:{os.environ['PATH']}"


def failures(scratch):
    """Training fails, and the build has no cuDNN and no NCCL."""
    out = scratch / "out"
    built, path = machine(scratch)
    done = check("--built", built, "--out", out, "--only", "losses,tests,probe", PATH=path)
    details = done.stdout + done.stderr
    same(done.returncode, 1, f"exit code\n{details}")
    figures = schema(out, ["probe", "losses", "tests"])
    records = {name: read(out / f"{name}.json") for name in ("probe", "losses", "tests")}
    same({name: record["status"] for name, record in records.items()},
         {"probe": "failed", "losses": "failed", "tests": "failed"}, f"statuses\n{details}")
    same(records["losses"]["note"], "losses-1-fp32-cpu ended with 1: error: a disk of the test is full", "why it failed")
    for name, case in (("probe", "probe: two"), ("tests", "four")):
        same(records[name]["note"], f"the streams hang ({case}, with a comma)", f"why {name} failed")
    for name, unit in (("probes passed", "of 2, 0 skipped"), ("tests on the GPU passed", "of 3, 1 skipped")):
        same((figures[name]["value"], figures[name]["unit"]), (1, unit), name)
    same(records["probe"]["device"], {"name": "GPU of the test", "driver_version": "1.2"}, "the device")
    missing = ["cuDNN: not found at the build, so attention runs on the tree's own kernels",
               "NCCL: not found at the build, so messages go through the host's memory"]
    head = [f"MISSING: {line}" for line in missing]
    if not gpu_parts.find_tool("compute-sanitizer"):
        head.append("MISSING: compute-sanitizer: memcheck and racecheck do not run")
    lines = done.stdout.splitlines()
    same(lines[:len(head)], head, "the head of the table")
    expect(lines[len(head)].startswith("device GPU of the test, driver 1.2, "), f"the line of the device: {lines}")
    expect("FAILED: losses: losses-1-fp32-cpu ended with 1" in done.stdout, f"no line of the failed part\n{details}")


def no_driver(scratch):
    """A probe whose cases are all skipped is a failure."""
    built, path = machine(scratch, test_cuda=NO_DRIVER)
    done = check("--built", built, "--out", scratch / "out", "--only", "probe", PATH=path)
    same(done.returncode, 1, f"exit code\n{done.stdout}{done.stderr}")
    expect("\nFAILED: probe: all skipped: device: expected an NVIDIA driver, found none (probe: one, probe: two)\n" in
           done.stdout, done.stdout)


def no_library(scratch):
    """A plugin that does not load, or a program that does not start, ends the check before its parts."""
    built, path = machine(scratch)
    plugin = built / "liblancet_cuda.so"
    library(scratch / "libgone.so", "-Wl,-soname,libgone.so")
    library(plugin, scratch / "libgone.so")
    (scratch / "libgone.so").unlink()
    done = check("--built", built, "--out", scratch / "out", "--only", "probe", PATH=path)
    same((done.returncode, done.stdout, done.stderr.splitlines()[-1]),
         (1, "", f"error: {plugin} does not load: found no libgone.so in the toolkit, the system and Python's wheels"),
         "a plugin without its library")
    same(list((scratch / "out").iterdir()), [], "the results")
    library(plugin, source="void gone(); void call() { gone(); }")
    done = check("--built", built, "--out", scratch / "out", "--only", "probe", PATH=path)
    same((done.returncode, done.stdout, done.stderr.splitlines()[-1]),
         (1, "", f"error: {plugin} does not load: {plugin}: undefined symbol: gone"), "a plugin without a symbol")
    library(plugin)
    write(built / "lancet", FAILING)
    done = check("--built", built, "--out", scratch / "out", "--only", "probe", PATH=path)
    same((done.returncode, done.stdout, done.stderr.splitlines()[-1]),
         (1, "", "error: lancet ended with 1: error: a disk of the test is full"), "a program that does not start")


def long_build(scratch):
    """A build that exceeds its time."""
    _, path = machine(scratch)
    write(scratch / "cmake", "#!/bin/sh\nexec sleep 100\n")
    double = write(scratch / "python", "#!/bin/sh\necho 'PyTorch without a GPU'\n")
    done = check("--only", "probe", "--out", scratch / "out", "--seconds", 3, "--python", double, PATH=path,
                 BUILD_DIR=scratch / "build")
    same(done.returncode, 3, f"exit code\n{done.stderr}")
    lines = [line.strip() for line in done.stderr.splitlines()[-2:]]
    expect(lines[0].startswith("build was ended after ") and lines[0].endswith("; a second call continues the build"),
           lines[0])
    same(lines[1], f"{REST} --out {scratch}/out --python {double} --seconds 3 --only probe", "the rest")


def wait_for(condition, what):
    for _ in range(200):
        if condition():
            return
        time.sleep(0.1)
    sys.exit(f"FAILED: {what}")


def alive(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def no_signal_ignored():
    """Shells ignore some signals for programs in the background."""
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)


def signals(scratch):
    """A signal ends the running program; all but SIGKILL lead to the command for the rest and an empty folder /tmp."""
    pid_file, temporary = scratch / "pid", scratch / "tmp"
    built, path = machine(scratch, lancet=f"{STARTS}echo $$ >{pid_file}.new; mv {pid_file}.new {pid_file}\n"
                                          "exec sleep 100\n")
    temporary.mkdir()
    words = command("--built", built, "--out", scratch / "out", "--only", "losses,repeat")
    for number, code in ((signal.SIGHUP, 129), (signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)):
        pid_file.unlink(missing_ok=True)
        process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, preexec_fn=no_signal_ignored,
                                   env={**os.environ, "PATH": path, "TMPDIR": str(temporary)})
        wait_for(pid_file.exists, "the program of a part does not start")
        pid = int(pid_file.read_text())
        process.send_signal(number)
        log = process.communicate()[1]
        same(process.returncode, code, f"exit code after {number.name}\n{log}")
        wait_for(lambda: not alive(pid), f"{number.name} leaves the program running")
        if number != signal.SIGKILL:
            same(log.splitlines()[-1].strip(), f"{REST} --out {scratch}/out --built {built} --only losses,repeat",
                 f"the rest after {number.name}")
            same(list(temporary.iterdir()), [], f"what {number.name} leaves")


def raiser(error):
    def body():
        raise error
    return body


def kept_results(scratch):
    """A result replaces one of an earlier call that is no better."""
    options = SimpleNamespace(out=scratch, dry=False, end=time.monotonic() + 100, only=["losses"])
    facts = {"dry": False, "build": "b", "device": {}}
    bodies = {"late": raiser(Late("slow")), "failed": raiser(run.Failed("wrong")), "ran": lambda: "",
              "not run": raiser(Missing("no tool"))}

    def status_after(*calls):
        (scratch / "losses.json").unlink(missing_ok=True)
        for number, call in enumerate(calls):
            (scratch / str(number)).mkdir(exist_ok=True)
            one = Check(options, scratch / str(number), facts)
            one.read_earlier(["losses"])
            one.part("losses", 0, 10, bodies[call])
        return read(scratch / "losses.json")["status"], gpu.exit_code(one)

    same(status_after("ran", "failed"), ("ran", 1), "a good result, then a failure")
    same(status_after("ran", "late"), ("ran", 3), "a good result, then too little time")
    same(status_after("failed", "late"), ("failed", 3), "a failure, then too little time")
    same(status_after("late", "failed"), ("failed", 1), "too little time, then a failure")
    same(status_after("failed", "ran"), ("ran", 0), "a failure, then a good result")
    same(status_after("not run"), ("not run", 3), "a tool that is missing")


def peers(scratch):
    """A PyTorch without a GPU does not hide one that uses it."""
    cpu, cuda, none = (write(scratch / name, f"#!/bin/sh\n{line}\n") for name, line in (
        ("cpu", "echo PyTorch without a GPU"), ("cuda", "echo PyTorch with a GPU"), ("none", "exit 1")))
    all_pythons, run.pythons = run.pythons, lambda: found
    found = [none, cpu, cuda]
    same(gpu_machine.peer_python(None, dry=False), (cuda, ""), "the Python of the peer")
    same(gpu_machine.peer_python(None, dry=True), (cpu, ""), "the Python of a dry run")
    found = [none, cpu]
    same(gpu_machine.peer_python(None, dry=False),
         (None, f"PyTorch: the one of {cpu} uses no GPU (torch.cuda.is_available()), so the speeds have no peer"),
         "a PyTorch without a GPU")
    found = [none]
    same(gpu_machine.peer_python(None, dry=False),
         (None, "PyTorch: no Python has it, so the speeds have no peer"), "no PyTorch")
    run.pythons = all_pythons


def reasons(_):
    """Each reason is named once, and a message is whole where Catch2 wraps it."""
    same(gpu_parts.by_reason([(f"case {i}", "no GPU") for i in range(1, 6)] + [("other", "slow")]),
         "no GPU (case 1, case 2, case 3 and 2 more); slow (other)", "reasons")
    text = "a.cpp:3: FAILED:\n  REQUIRE( a == b )\nwith expansion:\n  1 == 2\n\nb.cpp:1: FAILED:\n  CHECK( c )\n"
    same(gpu_parts.why_failed(text), "REQUIRE( a == b )", "the reason of an expression")
    same(gpu_parts.why_failed("a.cpp:3: FAILED:\nexplicitly with message:\n  first words\n  and the rest\n\nmore\n"),
         "first words and the rest", "the reason of a message")


with tempfile.TemporaryDirectory() as name:
    for case in (failures, no_driver, no_library, long_build, signals, kept_results, peers, reasons):
        folder = Path(name) / case.__name__
        folder.mkdir()
        case(folder)
        print("passed:", case.__name__, flush=True)
