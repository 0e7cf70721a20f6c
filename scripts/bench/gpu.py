"""Checks and measures a GPU machine in parts, values before speeds, and prints a table. What the machine lacks is at
the table's head; what there was no time for is below it, with the command that runs the rest.

It builds for this GPU first, or takes the programs of --built. On machines without packages and network, --kit names a
folder of dependencies (scripts/gpu-kit.sh). The benchmarks' peer needs PyTorch 2.

Each part writes PART.json into --out; gpu-check.json has those of all parts, with those of earlier calls for the same
build, logs.tar the logs and table.txt the table. Rows of an earlier call on another device name it.

Exit codes: 0 all parts passed (the table marks figures that miss their targets), 1 something failed, 2 usage, 3 nothing
failed, but a part had too little time or lacks something, 77 no GPU; 129, 130, 143 ended by SIGHUP, SIGINT, SIGTERM.
"""
import argparse
import contextlib
import hashlib
import json
import os
import shlex
import shutil
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Callable, NamedTuple

from bench import gpu_machine
from bench import gpu_parts as parts
from bench import run
from bench.gpu_check import Check, Late
from bench.run import Failed


class Part(NamedTuple):
    """needs: seconds that must be left to start it; most: its time limit in seconds."""
    name: str
    needs: int
    most: int
    body: Callable[[Check], str]


def speed(name, most, shape, **targets):
    """A part that compares one shape with its peer, whose compiler takes a minute or more for each mode."""
    return Part(name, 60, most, lambda check: parts.compare_speed(check, name, shape, **targets))


def overlap(network):
    return Part(f"overlap-{network}", 15, 120, lambda check: parts.overlap(check, network))


PARTS = [
    Part("probe", 5, 120, parts.probe),
    Part("losses", 5, 60, parts.follow_the_cpu),
    Part("repeat", 5, 60, parts.repeat_exactly),
    speed("dense", 400, parts.GPT2, ratio=1.1, mfu=55, outside=3),
    Part("tests", 20, 400, parts.tests),
    speed("moe-32k", 500, parts.MOE_32K, ratio=1.1),
    overlap("p4de-a100"),
    Part("ranks", 10, 60, parts.ranks),
    Part("ncu", 15, 90, parts.counters),
    Part("schedules", 15, 120, parts.follow_sequential),
    Part("sass", 10, 60, parts.machine_code),
    overlap("dgx-h100"),
    Part("trace", 10, 60, parts.trace),
    speed("moe-4k", 500, parts.MOE_4K, modes="default,reduce-overhead"),
    speed("moe-large", 500, parts.LARGE_MOE, modes="default,reduce-overhead"),
    Part("memcheck", 30, 300, lambda check: parts.sanitize(check, "memcheck")),
    Part("racecheck", 30, 300, lambda check: parts.sanitize(check, "racecheck")),
]
BUILT = ("lancet", "liblancet_cuda.so", "test_cuda")
SECONDS = 540


def build_options(kit):
    options = ["-DLANCET_CUDA=ON"]
    capability = gpu_machine.output_of(["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"])
    capability = capability.split("\n")[0].replace(".", "")
    if f"compute_{capability}" in gpu_machine.output_of(["nvcc", "--list-gpu-arch"]).split():
        options.append(f"-DCMAKE_CUDA_ARCHITECTURES={capability}-real")  # for this GPU alone
    if kit:
        options.append(f"-DLANCET_KIT={kit}")
    return options


def build(check):
    run.log("build")
    with check.folder("build"):
        try:
            check.run("build", [run.ROOT / "scripts/build.sh", *build_options(check.options.kit)], check.left(),
                      LANCET_TARGETS="lancet test_cuda")
        except Late as error:
            raise Late(f"{error}; a second call continues the build") from None
        except Failed as error:
            log = (check.work / "build.log").read_text(errors="replace").splitlines()
            raise Failed("\n".join([str(error), *log[-30:]])) from None


def choose_programs(options):
    """Sets options.lancet, .plugin and .test_cuda, in the build folder or in that of --built."""
    if options.built:
        lacking = [name for name in BUILT if not (options.built / name).is_file()]
        if lacking:
            raise Failed(f"--built: expected {', '.join(BUILT)} in {options.built}, found no {', '.join(lacking)}")
        for name in ("lancet", "test_cuda"):
            if not os.access(options.built / name, os.X_OK):
                raise Failed(f"--built: expected a program, found no permission to run {options.built / name}")
    if options.kit and not (options.kit / "kit.txt").is_file():
        raise Failed(f"--kit: expected a folder that scripts/gpu-kit.sh made, found no kit.txt in {options.kit}")
    options.lancet, options.plugin = ((options.built or run.BUILD) / name for name in BUILT[:2])
    options.test_cuda = options.built / "test_cuda" if options.built else run.BUILD / "tests/test_cuda"
    if options.dry:
        run.program(options)


def open_results(options):
    """Makes the folder of results, whose earlier results must be whole and, in a dry run, dry."""
    if not options.out:
        options.out = Path(tempfile.mkdtemp())
    if options.copy and options.copy.is_relative_to(options.out):
        raise Failed(f"--copy: expected a folder outside of --out, found {options.copy}")
    for place in filter(None, (options.out, options.copy)):
        try:
            place.mkdir(parents=True, exist_ok=True)
            tempfile.NamedTemporaryFile(dir=place).close()
        except OSError as error:
            raise Failed(f"cannot write into {place}: {error.strerror}") from None
    logs = options.out / "logs.tar"
    try:
        if logs.exists():
            tarfile.open(logs, "a").close()
    except (tarfile.TarError, OSError) as error:
        raise Failed(f"expected a whole archive at {logs}, found a damaged one ({error}): move it away") from None
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        if options.dry and not json.loads((options.out / "gpu-check.json").read_text())["dry"]:
            raise Failed(f"--dry: expected a folder without results of a GPU, found some in {options.out}")


def identity(files):
    """Returns a hash of the programs, since a machine without the repository knows no commit."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def find_libraries(check):
    """Notes the libraries that the plugin will load, and what this machine lacks."""
    options, facts = check.options, check.facts
    if options.dry:
        return
    libraries = gpu_machine.Libraries(options.plugin, gpu_machine.pythons(options.python))
    libraries.require_all()
    check.environment = libraries.environment()
    with check.folder("start"):
        check.run("lancet", [options.lancet, "--version"], 30)
    facts["libraries"] = libraries.facts()
    facts["missing"] += libraries.missing
    if not parts.find_tool("compute-sanitizer"):
        facts["missing"].append("compute-sanitizer: memcheck and racecheck do not run")


def shown(figure, dry, other_device):
    if dry:
        return f"WORKS: {figure['name']}"
    value, target = figure["value"], figure["target"]
    goal = "" if target is None else f"{figure['target_is']} {target:g}"
    verdict = {None: "", True: "reached", False: "MISSED"}[figure["reached"]]
    number = f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3f}" if abs(value) >= 1 else f"{value:.3g}"
    return f"{figure['name']:<58} {number:>12}  {goal:<16} {verdict:<8} {figure['unit']}" + (
        f", on {other_device}" if other_device else "")


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
    names = [part.name for part in PARTS if part.name in check.results]
    lines += [shown(figure, facts["dry"], check.other_device(check.results[name]))
              for name in names for figure in check.results[name]["figures"]]
    return "\n".join([*lines, *filter(None, (status_line(check, name) for name in names))])


def status_line(check, name):
    """Returns the line of a part's status in this call or, for a part that it did not have, in an earlier one."""
    result = check.results[name]
    record = check.called.get(name, result)
    if record["status"] == "ran" and not record["note"] and not check.facts["dry"]:
        return None
    other = check.other_device(record)
    when = f" (earlier call{f', on {other}' if other else ''})" if name not in check.called else ""
    kept = "" if record is result else "; the result of an earlier call is kept"
    return f"{record['status'].upper()}: {name}{when}{': ' if record['note'] else ''}{record['note']}{kept}"


def rest(check):
    """Returns the parts that this call did not get to the end of, for want of time or since a signal ended it."""
    unfinished = [name for name, record in check.called.items() if record["status"] in ("late", "postponed")]
    return [name for name in check.options.only if name not in check.called or name in unfinished]


def command_for(check, names):
    options = check.options
    given = {"--out": options.out, "--copy": options.copy, "--built": options.built, "--kit": options.kit,
             "--python": options.python, "--seconds": options.seconds if options.seconds != SECONDS else None,
             "--only": ",".join(names)}
    words = [str(word) for option, value in given.items() if value for word in (option, value)]
    return "python3 scripts/bench gpu " + shlex.join(["--dry", *words] if options.dry else words)


def keep_table(check):
    """Writes the table and the command for the rest, and returns both."""
    lines = [table(check)]
    if names := rest(check):
        lines.append(f"the rest: {command_for(check, names)}")
    text = "\n".join(lines) + "\n"
    (check.out / "table.txt").write_text(text)
    check.copy(text)
    return lines


def report(check):
    """Prints the table, if a part of it is of this call, and the command for the rest."""
    names = rest(check)
    lines = keep_table(check) if check.called else [f"the rest: {command_for(check, names)}"] if names else []
    if check.called:
        print(lines[0], flush=True)
    if names:
        run.log(lines[-1])


def exit_code(check):
    statuses = {record["status"] for record in check.called.values()}
    if "failed" in statuses:
        return 1
    return 3 if rest(check) or "not run" in statuses and not check.options.dry else 0


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
    return [name for name in known if name in names]


def python_path(text):
    """Returns the absolute path of a program; not that of a link's target, since a virtual environment's is a link."""
    found = shutil.which(text)
    if not found:
        raise argparse.ArgumentTypeError(f"expected a Python, found no program '{text}'")
    return os.path.abspath(found)


def add_arguments(parser):
    parser.add_argument("--out", type=folder, help="folder of the results; default: a new folder")
    parser.add_argument("--copy", type=folder, metavar="DIR",
                        help="copy what was found into DIR after each part: gpu-check.json, table.txt, sass.gz, and "
                             "the whole of --out as visit.tar.gz")
    parser.add_argument("--rest", action="store_true", help="leave out the parts that an earlier call has a result of")
    parser.add_argument("--only", type=part_names, metavar="PART,...", default=[part.name for part in PARTS],
                        help="the parts to run: " + ", ".join(part.name for part in PARTS))
    programs = parser.add_mutually_exclusive_group()
    programs.add_argument("--built", type=folder, metavar="DIR",
                          help=f"take {', '.join(BUILT)} from this folder instead of building")
    programs.add_argument("--kit", type=folder, help="folder of dependencies that replaces packages in the build")
    parser.add_argument("--dry", action="store_true",
                        help="tiny shapes on the CPU with the existing build, to test the command; no figures")
    parser.add_argument("--seconds", type=run.at_least(1), default=SECONDS,
                        help="time limit of all parts and the build; default: %(default)s, for machines that end a "
                             "command after ten minutes")
    parser.add_argument("--python", type=python_path,
                        help="a Python with PyTorch, for the peer; default: the first whose PyTorch uses the GPU")


def run_parts(check):
    options, facts = check.options, check.facts
    if not options.dry and not options.built:
        build(check)
    run.program(options)
    facts["build"] = identity([options.lancet] if options.dry else [options.lancet, options.plugin])
    find_libraries(check)
    check.read_earlier(part.name for part in PARTS)
    for what in facts["missing"]:
        run.log(f"MISSING: {what}")
    run.log(f"parts, into {options.out}")
    if options.rest:
        done = [name for name, record in check.results.items() if record["status"] == "ran"]
        options.only = [name for name in options.only if name not in done]
    for part in PARTS:
        if part.name in options.only:
            check.part(part.name, 2 if options.dry else part.needs, part.most, lambda: part.body(check))
            keep_table(check)


def main(options):
    options.end = time.monotonic() + options.seconds
    facts = {"dry": options.dry, "commit": run.program_commit(), "device": gpu_machine.gpu(),
             "host": gpu_machine.host(), "libraries": {}, "missing": [], "build": ""}
    try:
        choose_programs(options)
        if not facts["device"] and not options.dry:
            print("no GPU: nvidia-smi names none", file=sys.stderr)
            return 77
        if options.python:  # a wrong one is a wrong call; others are looked for where a part needs one: it takes long
            gpu_machine.peer_python(options.python, options.dry)
        open_results(options)
    except Failed as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for line in machine_lines(facts):
        run.log(line)
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as scratch:
        check = Check(options, Path(scratch), facts)
        try:
            run_parts(check)
        except Late as error:  # of the build
            run.log(str(error))
        except OSError as error:  # results that cannot be written
            raise Failed(str(error)) from None
        finally:
            report(check)
    return exit_code(check)
