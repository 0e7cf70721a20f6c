#!/usr/bin/env python3
"""Compares the simulated rows of README.md's table with what the `lancet plan` below the table predicts.

    numbers.py LANCET

A row's first cell ends with its policy, in backquotes and brackets. Prints each row that differs as the command has it,
and exits 1 if there is one.
"""
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMMAND = re.compile(r"^build/lancet (plan .*)$", re.MULTILINE)
ROW = re.compile(r"^\| (.*\(`(\w+)`\)) \|.*\| simulated \|$", re.MULTILINE)
PREDICTED = re.compile(r"^(\w+)(?: \*)? +([\d.]+) ", re.MULTILINE)


def main():
    readme = (ROOT / "README.md").read_text()
    words = COMMAND.search(readme)[1].split()
    plan = subprocess.run([sys.argv[1], *words], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
    steps = {policy: float(step) for policy, step in PREDICTED.findall(plan)}
    rows = ROW.findall(readme)
    different = [] if rows else ["none is simulated"]
    for what, policy in rows:
        ratio = steps[policy] / steps["lancet"]
        row = f"| {what} | {steps[policy]:.0f} ms | {steps['lancet']:.0f} ms | {ratio:.2f} | simulated |"
        different += [row] if row not in readme.splitlines() else []
    for row in different:
        print(f"README.md: expected the row: {row}")
    return 1 if different else 0


sys.exit(main())
