#!/usr/bin/env python3
"""scripts/emulate-cluster.sh: what is missing on its command line; links that are cut and restored
"""
import os
import subprocess
import sys

from processes import ROOT

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


incomplete_command_lines()
up = command("up", "--hosts", "2", "--rate", "1gbit")
if up.returncode == 77:
    print("SKIPPED:", up.stderr.strip())
    sys.exit()
try:
    assert up.returncode == 0, up
    a_link_that_is_cut_and_restored()
finally:
    down = command("down")
assert down.returncode == 0, down
