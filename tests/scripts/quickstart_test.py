#!/usr/bin/env python3
"""scripts/quickstart.sh on a small text and for a few steps, in a temporary project folder whose scripts for
installing packages and building are replaced.

    quickstart_test.py LANCET
"""
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile

from processes import ROOT, processes_with, records, wait_until

LANCET = pathlib.Path(sys.argv[1]).resolve()
BUILD = """#!/bin/sh
echo "$LANCET_TARGETS $*" >>build.log
mkdir -p build && ln -sf %s build/lancet
""" % LANCET


def text(words):
    """Enough different syllables for a vocabulary of 8192 tokens."""
    draw = random.Random(1)
    syllables = [a + b + c for a in "bcdfghklmnprstvz" for b in "aeiou" for c in "bdgklmnprstx"]
    lexicon = ["".join(draw.choices(syllables, k=draw.randint(1, 4))) for _ in range(12000)]
    return "\n".join(" ".join(draw.choices(lexicon, k=12)) for _ in range(words // 12))


def write_config(root, steps):
    config = (ROOT / "configs/quickstart.json").read_text()
    config, changed = re.subn(r'"steps": \d+', f'"steps": {steps}', config)
    assert changed == 1
    config = config.replace('"micro_batch_size": 8', '"micro_batch_size": 1')
    config = config.replace('"sample_tokens": 60', '"sample_tokens": 4').replace('"interval": 10', '"interval": 1')
    (root / "configs/quickstart.json").write_text(config)


def make_project(root):
    for folder in ("scripts", "configs", "data/gcide"):
        (root / folder).mkdir(parents=True)
    for script in ("quickstart.sh", "common.sh", "mpirun.sh"):
        shutil.copy(ROOT / "scripts" / script, root / "scripts")
    for name, source in (("install_deps.sh", "#!/bin/sh\n"), ("build.sh", BUILD)):
        (root / "scripts" / name).write_text(source)
        (root / "scripts" / name).chmod(0o755)
    (root / "data/gcide/gcide.txt").write_text(text(150000))
    write_config(root, 4)


def start(root):
    environment = {name: value for name, value in os.environ.items() if name not in ("BUILD_DIR", "LANCET_SANITIZE")}
    return subprocess.Popen([root / "scripts/quickstart.sh"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True, env=environment, start_new_session=True)


def finish(script):
    output, _ = script.communicate(timeout=120)
    return script.returncode, output


def check_end(root, output, steps):
    run = root / "runs/quickstart"
    losses = [record["loss"] for record in records(run) if "loss" in record]
    held_out = [record["held_out_loss"] for record in records(run) if "held_out_loss" in record]
    assert len(losses) == steps, f"{len(losses)} steps\n{output}"
    line = f"loss {losses[0]:.2f} at step 1, {losses[-1]:.2f} at step {steps}, {held_out[-1]:.2f} on held-out text"
    assert line in output, f"no line: {line}\n{output}"
    assert "</html>" in (run / "report.html").read_text()
    gain = re.search(r"overlap would save (\d+)% of a step \(([\d.]+) ms become ([\d.]+), predicted\): build/lancet (.*)",
                     output)
    assert gain, output
    before, after = float(gain[2]), float(gain[3])
    assert 0 < after < before, gain[0]
    assert int(gain[1]) == round(100 * (1 - after / before)), gain[0]
    plan = subprocess.run([LANCET, *gain[4].split()], cwd=root, capture_output=True, text=True, timeout=60)
    assert re.search(rf"^sequential +{before:.1f} ", plan.stdout, re.M), plan
    assert re.search(rf"^\w+ \* +{after:.1f} ", plan.stdout, re.M), plan


def first_run(root):
    code, output = finish(start(root))
    assert code == 0, output
    built = (root / "build.log").read_text()
    assert built in ("lancet --no-tests\n", "program --no-tests\n"), built
    check_end(root, output, 4)


def finished_run(root):
    before = (root / "runs/quickstart/metrics.jsonl").read_text()
    code, output = finish(start(root))
    assert code == 0, output
    assert "runs/quickstart has all 4 steps" in output, output
    assert (root / "runs/quickstart/metrics.jsonl").read_text() == before
    check_end(root, output, 4)


def stopped_run(root):
    run = root / "runs/quickstart"
    shutil.rmtree(run)
    write_config(root, 400)
    script = start(root)
    assert wait_until(lambda: len(records(run)) > 1), finish(script)
    os.killpg(script.pid, signal.SIGINT)  # as a terminal's Ctrl-C
    code, output = finish(script)
    assert code not in (0, 5), output
    assert "saved and stopped after step" in output, output
    assert not processes_with(str(root / "build/lancet"))
    saved = len(records(run))
    assert saved < 400, output
    write_config(root, saved + 2)
    code, output = finish(start(root))
    assert code == 0, output
    assert f"resume     after step {saved} from " in output, output
    check_end(root, output, saved + 2)


with tempfile.TemporaryDirectory() as name:
    root = pathlib.Path(name)
    make_project(root)
    for case in (first_run, finished_run, stopped_run):
        case(root)
        print("passed:", case.__name__, flush=True)
