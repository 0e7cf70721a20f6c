#!/usr/bin/env python3
"""A build with scripts/gpu-kit.sh's folder starts on a machine that has only the C library.

    kit_test.py PROGRAM           configures it and reads the link lines
    kit_test.py PROGRAM --build   builds it whole (a quarter of an hour), reads what the programs need, adds up what
                                  travels to such a machine, and trains three steps where nothing else is
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CARRIED_MIB = 64  # that may travel: the checkout and the stripped programs
C_LIBRARY = ("libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2")
SYSTEM = r"-l(dl|rt|pthread)$"
CUDA = r"(.*/lib|-l)(cudart|cudadevrt|cublasLt|cudnn|nccl)"
OWN = ("-static-libstdc++", "-static-libgcc")


def expect(condition, what):
    if not condition:
        sys.exit(f"FAILED: {what}")


def run(*words):
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True)
    expect(done.returncode == 0, f"{words} ended with {done.returncode}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done.stdout


def configure(scratch):
    """Returns the build folder, and whether the build has the CUDA plugin."""
    run(ROOT / "scripts/gpu-kit.sh", scratch / "kit")
    build = scratch / "build"
    text = run("cmake", "-S", ROOT, "-B", build, "-G", "Ninja", f"-DLANCET_KIT={scratch / 'kit'}",
               "-DLANCET_ARCH=x86-64-v3", "-DCMAKE_CUDA_ARCHITECTURES=90-real")
    return build, bool(re.search(r"^-- CUDA: \d", text, re.MULTILINE))


def check_link(build, target, output, allowed, own):
    """Reads a link line: the libraries that the build does not make are those of `allowed`."""
    commands = run("ninja", "-C", build, "-t", "commands", target).splitlines()
    words = next(line for line in commands if f" -o {output} " in line).split()
    for word in words:
        library = re.search(r"^-l|\.so(\.\d+)*$|\.a$", word) and word != output
        if library and (os.path.isabs(word) or not word.endswith(".a")):
            expect(any(re.match(each, word) for each in allowed), f"{target} links {word}")
    expect([option in words for option in OWN] == [own] * 2, f"{target}: expected {OWN}: {own}, found {words[:12]}")


def check_links(scratch):
    build, cuda = configure(scratch)
    kit = re.escape(f"{scratch}/kit/lib/libpcre2-8.a")
    check_link(build, "lancet", "lancet", (kit, SYSTEM), True)
    if not cuda:
        print("SKIPPED: no CUDA toolkit, so neither the link line of test_cuda nor that of the plugin was read")
        return
    check_link(build, "test_cuda", "tests/test_cuda", (kit, SYSTEM, CUDA), True)
    check_link(build, "lancet_cuda", "liblancet_cuda.so", (SYSTEM, CUDA), False)


def train_alone(scratch, program):
    """Trains in a root folder that has the program, its config and the C library."""
    root = scratch / "root"
    for file in C_LIBRARY:
        found = re.search(rf"{re.escape(file)}.*?(/\S+)", run("ldconfig", "-p"))
        expect(found, f"no {file} here")
        to = root / ("lib64" if file.startswith("ld-") else "lib/x86_64-linux-gnu") / file
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(found.group(1), to)
    for folder in ("proc", "tmp", "dev"):
        (root / folder).mkdir()
    shutil.copy(program, root / "lancet")
    shutil.copy(ROOT / "configs/quickstart.json", root / "config.json")
    run("chroot", root, "/lancet", "train", "/config.json", "--run-dir", "/tmp/run", "--set", "data.synthetic=true",
        "--set", "train.steps=3", "--set", "train.sample_tokens=0")
    records = [json.loads(line) for line in (root / "tmp/run/metrics.jsonl").read_text().splitlines()]
    losses = [record["loss"] for record in records if record.get("tokens_per_s")]
    expect(len(losses) == 3 and all(0 < loss < 20 for loss in losses), f"losses of three steps: {losses}")


def check_build(scratch):
    build, cuda = configure(scratch)
    run("cmake", "--build", build, "--target", "lancet", *(["lancet_cuda", "test_cuda"] if cuda else []))
    built = scratch / "built"
    built.mkdir()
    for name, allowed in (("lancet", None), ("tests/test_cuda", "libcudart"), ("liblancet_cuda.so", None)):
        if name != "lancet" and not cuda:
            continue
        program = built / Path(name).name
        run("strip", "-o", program, build / name)
        if name.endswith(".so"):
            continue
        for file in re.findall(r"\(NEEDED\).*\[(.*)\]", run("readelf", "-d", program)):
            expect(file in C_LIBRARY or allowed and file.startswith(allowed), f"{name} needs {file}")
    travels = [ROOT / file for file in run("git", "-C", ROOT, "ls-files", "-z").split("\0") if file]
    size = sum(file.lstat().st_size for file in [*travels, *built.iterdir()] if file.exists()) / 2**20
    expect(size < CARRIED_MIB, f"{size:.0f} MiB would travel, at most {CARRIED_MIB} may")
    train_alone(scratch, built / "lancet")
    print(f"{size:.0f} MiB travel" + ("" if cuda else " without the plugin: no CUDA toolkit"))


with tempfile.TemporaryDirectory() as name:
    (check_build if "--build" in sys.argv else check_links)(Path(name))
print("passed")
