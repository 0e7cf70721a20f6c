"""Checks and measures a GPU machine in parts, most telling first, and prints a table. What the machine lacks is at the
table's head; what there was no time for is below it, with the command that runs the rest.

It builds for this GPU first, or takes the programs of --built. On machines without packages and network, --kit names a
folder of dependencies (scripts/gpu-kit.sh), without MPI and oneDNN. The benchmarks' peer needs PyTorch 2.

Each part writes PART.json into --out; gpu-check.json has those of all parts, with those of earlier calls for the same
build and device, and logs.tar the logs.

Exit codes: 0 all passed (the table marks figures that miss their targets), 1 something failed, 2 usage, 77 no GPU.
"""
import argparse
import hashlib
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Callable, NamedTuple

from bench import gpu_machine
from bench import gpu_parts as parts
from bench import run
from bench.gpu_check import Check
from bench.run import Failed


class Part(NamedTuple):
    """needs: seconds that must be left to start it; most: its time limit in seconds."""
    name: str
    needs: int
    most: int
    body: Callable[[Check], str]


def speed(name, needs, most, shape, **targets):
    """A part that compares one shape with its peer, whose compiler takes a minute or more for each mode."""
    return Part(name, needs, most, lambda check: parts.compare_speed(check, name, shape, **targets))


def overlap(network):
    return Part(f"overlap-{network}", 15, 90, lambda check: parts.overlap(check, network))


PARTS = [
    Part("probe", 5, 60, parts.probe),
    speed("dense", 150, 400, parts.GPT2, ratio=1.1, mfu=58, outside=3, any_order=True),
    speed("moe-4k", 150, 500, parts.MOE_4K, modes="default,reduce-overhead"),
    speed("moe-32k", 150, 500, parts.MOE_32K, ratio=1.1),
    overlap("p3dn-v100"),
    overlap("p4de-a100"),
    Part("losses", 5, 60, parts.follow_the_cpu),
    Part("repeat", 5, 60, parts.repeat_exactly),
    Part("schedules", 15, 120, parts.follow_sequential),
    Part("tests", 20, 400, parts.tests),
    Part("trace", 10, 60, parts.trace),
    speed("moe-large", 150, 500, parts.LARGE_MOE, modes="default,reduce-overhead"),
    Part("memcheck", 30, 300, lambda check: parts.sanitize(check, "memcheck")),
    Part("racecheck", 30, 300, lambda check: parts.sanitize(check, "racecheck")),
]
BUILT = ("lancet", "liblancet_cuda.so", "test_cuda")


def build_options(kit):
    options = ["-DLANCET_CUDA=ON"]
    capability = gpu_machine.output_of(["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"])
    capability = capability.split("\n")[0].replace(".", "")
    if f"compute_{capability}" in gpu_machine.output_of(["nvcc", "--list-gpu-arch"]).split():
        options.append(f"-DCMAKE_CUDA_ARCHITECTURES={capability}-real")  # for this GPU alone
    if kit:
        options += [f"-DLANCET_KIT={kit}", "-DLANCET_MPI=OFF", "-DLANCET_ONEDNN=OFF"]
    return options


def build(check):
    run.log("build")
    with check.folder("build"):
        try:
            check.run("build", [run.ROOT / "scripts/build.sh", *build_options(check.options.kit)], check.left(),
                      LANCET_TARGETS="lancet test_cuda")
        except Failed as error:
            log = (check.work / "build.log").read_text(errors="replace").splitlines()
            raise Failed("\n".join([str(error), *log[-30:]])) from None


def choose_programs(options):
    """Sets options.lancet, .plugin and .test_cuda, in the build folder or in that of --built."""
    if options.built:
        lacking = [name for name in BUILT if not (options.built / name).is_file()]
        if lacking:
            raise Failed(f"--built: expected {', '.join(BUILT)} in {options.built}, found no {', '.join(lacking)}")
    options.lancet, options.plugin = ((options.built or run.BUILD) / name for name in BUILT[:2])
    options.test_cuda = options.built / "test_cuda" if options.built else run.BUILD / "tests/test_cuda"


def identity(files):
    """Returns a hash of the programs, since a machine without the repository knows no commit."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def find_libraries(check):
    """Notes the libraries that the plugin will load, and what this machine lacks."""
    options, facts = check.options, check.facts
    if not options.python:
        facts["missing"].append("PyTorch: no Python has it, so the speeds have no peer")
    if options.dry:
        return
    libraries = gpu_machine.Libraries(options.plugin, gpu_machine.pythons(options.python))
    check.environment = libraries.environment()
    facts["libraries"] = libraries.facts()
    facts["missing"] += libraries.missing
    if not parts.sanitizer():
        facts["missing"].append("compute-sanitizer: memcheck and racecheck do not run")


def shown(figure, dry):
    if dry:
        return f"WORKS: {figure['name']}"
    value, target = figure["value"], figure["target"]
    goal = "" if target is None else f"{figure['target_is']} {target:g}"
    verdict = {None: "", True: "reached", False: "MISSED"}[figure["reached"]]
    number = f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3f}" if abs(value) >= 1 else f"{value:.3g}"
    return f"{figure['name']:<58} {number:>12}  {goal:<16} {verdict:<8} {figure['unit']}"


def machine_lines(facts):
    gpu, host = facts["device"], facts["host"]
    yield (f"device {gpu.get('name', 'none')}, driver {gpu.get('driver_version', 'none')}, "
           f"SM clock {gpu.get('clocks.sm', 'n/a')} of {gpu.get('clocks.max.sm', 'n/a')}, commit {facts['commit']}")
    if facts["build"]:
        yield f"build {facts['build']}"
    yield f"host {host['cores']} cores, {host['memory_gib']} GiB of memory, {host['available_gib']} GiB of it available"
    for name, found in facts["libraries"].items():
        if found["path"]:
            yield f"{name} {found['version'] or 'of unknown version'}, {found['path']}"


def table(check):
    facts = check.facts
    lines = ["DRY: tiny shapes on the CPU, no speeds"] if facts["dry"] else []
    lines += [f"MISSING: {what}" for what in facts["missing"]]
    lines += machine_lines(facts)
    records = [check.results[part.name] for part in PARTS if part.name in check.results]
    lines += [shown(figure, facts["dry"]) for record in records for figure in record["figures"]]
    lines += [f"{record['status'].upper()}: {record['part']}{': ' if record['note'] else ''}{record['note']}"
              for record in records if facts["dry"] or record["status"] != "ran" or record["note"]]
    return "\n".join(lines)


def rest(check):
    """Returns the command for the parts of this call that had no time, or None."""
    options = check.options
    if not check.postponed:
        return None
    words = ["--out", options.out, *(["--built", options.built] if options.built else []),
             *(["--kit", options.kit] if options.kit else []), "--only", ",".join(check.postponed)]
    return "python3 scripts/bench gpu " + shlex.join(map(str, words))


def folder(text):
    if not text:
        raise argparse.ArgumentTypeError("expected a folder, found ''")
    return Path(text).resolve()


def part_names(text):
    known = [part.name for part in PARTS]
    names = text.split(",")
    for name in names:
        if name not in known:
            raise argparse.ArgumentTypeError(f"expected parts of {', '.join(known)}, found '{name}'")
    return names


def add_arguments(parser):
    parser.add_argument("--out", type=folder, help="folder of the results; default: a new folder")
    parser.add_argument("--only", type=part_names, metavar="PART,...", default=[part.name for part in PARTS],
                        help="the parts to run: " + ", ".join(part.name for part in PARTS))
    programs = parser.add_mutually_exclusive_group()
    programs.add_argument("--built", type=folder, metavar="DIR",
                          help=f"take {', '.join(BUILT)} from this folder instead of building")
    programs.add_argument("--kit", type=folder, help="folder of dependencies that replaces packages in the build")
    parser.add_argument("--dry", action="store_true",
                        help="tiny shapes on the CPU with the existing build, to test the command; no figures")
    parser.add_argument("--seconds", type=run.at_least(1), default=540,
                        help="time limit of all parts and the build; default: %(default)s, for machines that end a "
                             "command after ten minutes")
    parser.add_argument("--python", help="a Python with PyTorch, for the peer; default: the first found")


def main(options):
    options.out = options.out or Path(tempfile.mkdtemp())
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        choose_programs(options)
    except OSError as error:
        print(f"error: cannot create {options.out}: {error.strerror}", file=sys.stderr)
        return 2
    except Failed as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    facts = {"dry": options.dry, "commit": run.commit(), "device": gpu_machine.gpu(), "host": gpu_machine.host(),
             "libraries": {}, "missing": [], "build": ""}
    if not facts["device"] and not options.dry:
        print("no GPU: nvidia-smi names none", file=sys.stderr)
        return 77
    for line in machine_lines(facts):
        run.log(line)
    options.python = options.python or run.python_with("torch")
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as scratch:
        check = Check(options, Path(scratch), facts)
        if not options.dry and not options.built:
            build(check)
        run.program(options)
        facts["build"] = identity([options.lancet] if options.dry else [options.lancet, options.plugin])
        find_libraries(check)
        check.read_earlier(part.name for part in PARTS)
        for what in facts["missing"]:
            run.log(f"MISSING: {what}")
        run.log(f"parts, into {options.out}")
        for part in PARTS:
            if part.name in options.only:
                check.part(part.name, 2 if options.dry else part.needs, part.most, lambda: part.body(check))
    print(table(check))
    if command := rest(check):
        run.log(f"the rest: {command}")
    return 1 if any(check.results[name]["status"] == "failed" for name in check.ran) else 0
