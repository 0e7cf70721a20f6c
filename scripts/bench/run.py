"""Starts programs, alone or in turns, and reads their records; names the machine."""
import argparse
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("BUILD_DIR", ROOT / "build")).resolve()
NO_TORCH = "expected PyTorch: apt-get install python3-torch libopenblas0-openmp"
WARMUP = 2  # first steps of a run, which medians leave out


class Failed(Exception):
    """An error whose message is shown to the user."""


class Done(NamedTuple):
    out: str
    log: str
    peak_mb: float  # largest resident set of the process and of its waited-for children


def log(text):
    print(f"   {text}", file=sys.stderr, flush=True)


def call(command, cwd=ROOT, env=None):
    """Runs a command to its end."""
    words = [str(word) for word in command]
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(words, cwd=cwd, env=env, stdout=out, stderr=err)
        try:
            _, status, usage = os.wait4(process.pid, 0)
        except BaseException:  # on a signal, the program saves and stops as well
            process.terminate()
            process.wait()
            raise
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        done = Done(out.read(), err.read(), usage.ru_maxrss / 1024)
    if process.returncode != 0:
        raise Failed(f"{shlex.join(words)} ended with {process.returncode}:\n{done.log[-2000:]}")
    return done


def train(lancet, config, run_dir, steps, settings, launcher=(), words=()):
    """Trains; returns the records of its steps and the Done. settings: FIELD=VALUE; launcher: words before it; words:
    further ones."""
    (run_dir / "metrics.jsonl").unlink(missing_ok=True)
    settings = [f"train.steps={steps}", f"log.interval={steps}", *settings]
    done = call([*launcher, lancet, "train", config, "--run-dir", run_dir, *sets(settings), *words])
    return step_records(run_dir, steps), done


def sets(settings):
    return [word for setting in settings for word in ("--set", setting)]


def step_records(run_dir, steps):
    """Returns the records of a run's steps, without those of evaluations, which have no speed."""
    path = run_dir / "metrics.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    records = [record for record in records if record.get("tokens_per_s") is not None]
    if len(records) != steps:
        raise Failed(f"{path}: expected records of {steps} steps, found {len(records)}")
    return records


def median(records, field):
    return statistics.median(record[field] for record in records)


def in_turns(rounds, sides):
    """Runs every side once per round, one after the other, so that drift of the machine affects all alike. sides:
    functions by name. Returns the lists of their results, by name."""
    found = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            found[name].append(side())
    return found


def result_line(text, who):
    """Returns the object of the line `RESULT {...}`."""
    found = re.search(r"^RESULT (\{.*\})$", text, re.MULTILINE)
    if not found:
        raise Failed(f"{who} printed no RESULT line:\n{text[-2000:]}")
    return json.loads(found.group(1))


def pythons():
    """Returns the Pythons in which a machine may have PyTorch, best first; some of them may not exist. A virtual
    environment is often only on the PATH."""
    environments = [os.environ[name] for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if os.environ.get(name)]
    return ["python3", *(f"{environment}/bin/python3" for environment in environments), sys.executable,
            "/opt/venv/bin/python3", "/opt/conda/bin/python3", "/usr/local/bin/python3", "/usr/bin/python3"]


def python_with(library):
    """Returns the first Python 3 of this machine that can import the library, or None."""
    for python in dict.fromkeys(pythons()):
        try:
            if subprocess.run([python, "-c", f"import {library}"], capture_output=True, timeout=60).returncode == 0:
                return python
        except (OSError, subprocess.TimeoutExpired):
            continue
    return None


def program_commit():
    """Returns the commit of the program's sources, in the words of the program's own records."""
    def git(*words):
        return subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--", "src", "include", "configs", "CMakeLists.txt")
        return (git("rev-parse", "--short=10", "HEAD") or "unknown") + (" and changes" if changed else "")
    except OSError:  # no git here
        return "unknown"


def cpu():
    found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return found.group(1) if found else "unknown CPU"


def has_avx512():
    return "avx512f" in Path("/proc/cpuinfo").read_text().split()


def chosen(option, text, known):
    """Returns the names in a text with commas between them, each of which must be among the known ones."""
    names = text.split(",")
    for name in names:
        if name not in known:
            raise Failed(f"{option}: expected some of {', '.join(known)}, found '{name}'")
    return names


def at_least(least):
    """Returns an argument type: whole numbers from `least` to 99999."""
    def parse(text):
        if not text.isdecimal() or not least <= int(text) <= 99999:
            raise argparse.ArgumentTypeError(f"expected {least} to 99999, found '{text}'")
        return int(text)
    return parse


def add_options(parser, option=None, known=(), folder=None, rounds=None, steps=None):
    """Adds the options that most commands have. option: of names among the known ones; folder: in runs; rounds, steps:
    how many by default."""
    if option:
        parser.add_argument(option, default=",".join(known), help="names with commas between; default: %(default)s")
    for name, count in (("rounds", rounds), ("steps", steps)):
        if count:
            what = "measured steps of a policy in a round, after one; " * (name == "steps")
            parser.add_argument(f"--{name}", type=at_least(1), default=count, help=what + "default: %(default)s")
    if folder:
        parser.add_argument("--folder", type=Path, default=ROOT / "runs" / folder, help="of the results of runs")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/results", help="of the page and its CSV file")
    add_program(parser)


def command(name, options, **usual):
    """Returns the words of a command whose options are as they are. usual: the options that it names if they differ."""
    found = {key: getattr(options, key) for key, value in usual.items() if getattr(options, key) != value}
    return f"python3 scripts/bench {name}" + "".join(f" --{key} {value}" for key, value in found.items())


def add_program(parser):
    parser.add_argument("--lancet", type=Path, default=BUILD / "lancet", help="the program; default: the build's")


def program(options):
    if not os.access(options.lancet, os.X_OK):
        raise Failed(f"expected the program at {options.lancet}; build it with scripts/build.sh")
    return options.lancet.resolve()
