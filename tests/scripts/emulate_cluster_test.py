#!/usr/bin/env python3
"""scripts/emulate-cluster.sh: missing arguments, links that are cut and restored, and the end of its ranks.

    emulate_cluster_test.py LANCET
"""
import os
import pathlib
import subprocess
import sys
import tempfile

from processes import ROOT, processes_with, records, wait_until, write_config

LANCET = pathlib.Path(sys.argv[1]).resolve()
SCRIPT = ROOT / "scripts/emulate-cluster.sh"
NAME = f"lt{os.getpid()}-"
ENVIRONMENT = {**os.environ, "LANCET_CLUSTER": NAME}


def command(*words):
    return subprocess.run([SCRIPT, *words], capture_output=True, text=True, env=ENVIRONMENT, timeout=60)


def incomplete_command_lines():
    for words, missing in ((("up", "--hosts", "2"), "--rate"), (("up", "--rate", "1gbit"), "--hosts")):
        done = command(*words)
        assert done.returncode == 2, done
        assert done.stderr.startswith(f"error: up needs {missing}"), done.stderr
        assert done.stderr.count("\n") == 1, done.stderr


def links():
    return [line.split("link ")[1].split()[0] for line in command("status").stdout.splitlines()[1:]]


def a_link_that_is_cut_and_restored():
    assert links() == ["up", "up"]
    assert command("cut", "1").returncode == 0
    assert links() == ["up", "cut"]
    assert command("restore", f"{NAME}1").returncode == 0
    assert links() == ["up", "up"]


def ranks_of_a_killed_script():
    with tempfile.TemporaryDirectory() as name:
        run = pathlib.Path(name) / "run"
        train = [LANCET, "train", write_config(pathlib.Path(name)), "--run-dir", run]
        script = subprocess.Popen([SCRIPT, "run", "--", *train], env=ENVIRONMENT, stdin=subprocess.DEVNULL,
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        assert wait_until(lambda: len(records(run)) > 0), "the run did not begin"
        assert len(processes_with(str(run), LANCET)) == 2
        script.kill()
        script.wait()
        assert wait_until(lambda: not processes_with(str(run), LANCET), 10), "ranks live on after the script was killed"


incomplete_command_lines()
up = command("up", "--hosts", "2", "--rate", "1gbit")
if up.returncode == 77:
    print("SKIPPED:", up.stderr.strip())
    sys.exit()
try:
    assert up.returncode == 0, up
    a_link_that_is_cut_and_restored()
    ranks_of_a_killed_script()
finally:
    down = command("down")
assert down.returncode == 0, down
