"""Builds on a GPU machine, runs every test that needs a GPU and the benchmarks, all in under 9 minutes, and prints a
table, which also lists the parts that had no time. On machines without packages and network, --kit names a folder of
dependencies (scripts/gpu-kit.sh), without MPI and oneDNN. The benchmarks' peer needs PyTorch 2.

Exit codes: 0 all passed (the table marks figures that miss their targets), 1 something failed, 2 usage, 77 no GPU.
"""
import argparse
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from bench import gpu_parts as parts
from bench import run
from bench.gpu_check import Check, Late
from bench.run import Failed


def compile_peer(check):
    """Starts compiling the peer's models, so that they are in the compiler's cache when they are timed."""
    shapes = [parts.GPT2, parts.SMALL_MOE] + ([] if check.options.quick else [parts.LARGE_MOE])
    commands = [["timeout", "--foreground", "60", "nice", check.options.python, str(parts.PEER), "--compile-only",
                 *parts.peer_words(shape)] for shape in shapes]
    with open(check.out / "peer-compile.log", "w") as log:
        return subprocess.Popen(["sh", "-c", "; ".join(map(shlex.join, commands))], stdout=log, stderr=subprocess.STDOUT,
                                start_new_session=True)


def end(process, seconds):
    """Waits for a process at most this many seconds, then ends it."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()


def output_of(command):
    """Returns a command's output; empty if the program is missing or fails."""
    try:
        return subprocess.run(shlex.split(command), capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""


def build_options(kit):
    options = ["-DLANCET_CUDA=ON"]
    capability = output_of("nvidia-smi --query-gpu=compute_cap --format=csv,noheader").split("\n")[0].replace(".", "")
    if f"compute_{capability}" in output_of("nvcc --list-gpu-arch").split():
        options.append(f"-DCMAKE_CUDA_ARCHITECTURES={capability}-real")  # for this GPU alone
    if kit:
        options += [f"-DLANCET_KIT={kit}", "-DLANCET_MPI=OFF", "-DLANCET_ONEDNN=OFF"]
    return options


def build(check):
    run.log("build")
    compiling, patience = compile_peer(check) if check.options.python else None, 0
    try:
        check.run("build", [run.ROOT / "scripts/build.sh", *build_options(check.options.kit)], check.left(),
                  LANCET_TARGETS="lancet test_cuda")
        patience = 20
    except Failed as error:
        log = (check.out / "build.log").read_text(errors="replace").splitlines()
        raise Failed("\n".join([str(error), *log[-30:]])) from None
    finally:
        if compiling:
            end(compiling, patience)


def run_tests(check):
    """Runs the tests that need a GPU and returns their number by result; tests.log has their output."""
    run.log("tests")
    log, late = check.out / "tests.log", 0
    log.unlink(missing_ok=True)
    try:
        check.run("tests", ["ctest", "--test-dir", run.BUILD, "-L", "gpu", "--output-on-failure"], min(120, check.left()))
    except Late as error:
        run.log(str(error))
        late = 1
    except Failed:  # the counts say so
        pass
    text = log.read_text(errors="replace") if log.exists() else ""
    count = {name: len(re.findall(pattern, text)) for name, pattern in (
        ("passed", " Passed "), ("skipped", r"\*\*\*Skipped"), ("failed", r"\*\*\*(?:Failed|Timeout|Exception)"),
        ("not_run", r"\*\*\*Not Run"))}
    count["failed"] += late
    for line in [line for line in text.splitlines() if re.search(r"\*\*\*|FAILED|error", line)][:20] if count["failed"] else []:
        run.log(line)
    return count


def shown(figure):
    if figure["dry"]:
        return f"WORKS: {figure['name']}"
    value, target = figure["value"], figure["target"]
    goal = "" if target is None else f"{figure['target_is']} {target:g}"
    verdict = {None: "", True: "reached", False: "MISSED"}[figure["reached"]]
    number = f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3f}" if abs(value) >= 1 else f"{value:.3g}"
    return f"{figure['name']:<58} {number:>12}  {goal:<16} {verdict:<8} {figure['unit']}"


def table(check):
    dry, gpu, facts = check.options.dry, check.before, check.facts
    lines = ["DRY: tiny shapes on the CPU, no speeds"] if dry else []
    lines.append(f"device {gpu.get('name', 'none')}, driver {gpu.get('driver_version', 'none')}, "
                 f"SM clock {gpu.get('clocks.sm', 'n/a')} of {gpu.get('clocks.max.sm', 'n/a')}, commit {facts['commit']}")
    lines.append(f"build {facts['build_s']} s; tests " +
                 ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in facts["tests"].items()))
    lines += [shown(figure) for figure in check.figures]
    lines += [f"{part['status'].upper()}: {part['name']}{': ' if part['note'] else ''}{part['note']}" for part in check.parts
              if dry or part["status"] != "ran" or part["note"]]
    return "\n".join(lines)


def run_parts(check):
    check.part("losses", 5, 60, lambda: parts.follow_the_cpu(check))
    check.part("repeat", 5, 40, lambda: parts.repeat_exactly(check))
    check.part("schedules", 15, 75, lambda: parts.follow_sequential(check))
    check.part("gpt2", 20, 110, lambda: parts.compare_speed(check, "gpt2", parts.GPT2, 1.15, 50))
    check.part("gpt2-s-moe", 20, 100, lambda: parts.compare_speed(check, "gpt2-s-moe", parts.SMALL_MOE, 1.5, 40))
    for network in ("p3dn-v100", "p4de-a100"):
        check.part(f"overlap {network}", 15, 60, lambda: parts.overlap(check, network))
    check.part("nccl", 5, 60, lambda: parts.two_ranks(check))
    check.part("memcheck", 10, 45, lambda: parts.sanitize(check, "memcheck"))
    check.part("memcheck of kernels", 10, 60, lambda: parts.sanitize_kernels(check, "memcheck"))
    if not check.options.quick:
        check.part("gpt2-l-moe", 25, 130, lambda: parts.compare_speed(check, "gpt2-l-moe", parts.LARGE_MOE, 1.5, 40))
        check.part("racecheck", 10, 60, lambda: parts.sanitize(check, "racecheck"))
        check.part("racecheck of kernels", 10, 60, lambda: parts.sanitize_kernels(check, "racecheck"))


def folder(text):
    if not text:
        raise argparse.ArgumentTypeError("expected a folder, found ''")
    return Path(text).resolve()


def add_arguments(parser):
    parser.add_argument("--out", type=folder, help="folder of gpu-check.json, logs and runs; default: a new folder")
    parser.add_argument("--kit", type=folder, help="folder of dependencies that replaces packages")
    parser.add_argument("--quick", action="store_true", help="without GPT2-L-MoE, the race checker and the peer's slower modes")
    parser.add_argument("--dry", action="store_true",
                        help="tiny shapes on the CPU with the existing build, to test the command; no figures")
    parser.add_argument("--seconds", type=run.at_least(1), default=525, help="time limit; default: %(default)s")
    parser.add_argument("--python", help="a Python with PyTorch, for the peer; default: the first found")
    run.add_program(parser)


def main(options):
    options.out = options.out or Path(tempfile.mkdtemp())
    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        print(f"error: cannot create {options.out}: {error.strerror}", file=sys.stderr)
        return 2
    check = Check(options)
    if not check.before and not options.dry:
        print("no GPU: nvidia-smi names none", file=sys.stderr)
        return 77
    options.python = options.python or run.python_with("torch")
    if not options.dry:
        build(check)
    options.lancet = run.program(options)
    check.facts = {"commit": run.commit(), "cuda": "".join(re.findall(r"release ([\d.]+)", output_of("nvcc --version"))[:1]),
                   "build_s": round(options.seconds - check.left()), "tests": run_tests(check)}
    run.log(f"benchmarks, into {options.out}")
    run_parts(check)
    print(table(check))
    failed = any(part["status"] == "failed" for part in check.parts)
    # In a dry run the tests may belong to another build.
    return 1 if failed or (check.facts["tests"]["failed"] and not options.dry) else 0
