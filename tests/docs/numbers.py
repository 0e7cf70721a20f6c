#!/usr/bin/env python3
"""Compares the simulated rows of README.md with what `scripts/bench cases --readme` predicts.

    numbers.py LANCET

Prints each row that README.md lacks, and exits 1 if there is one.
"""
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def main():
    made = subprocess.run([sys.executable, ROOT / "scripts/bench", "cases", "--readme", "--lancet", sys.argv[1]],
                          stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    lacking = [row for row in made if row not in (ROOT / "README.md").read_text().splitlines()]
    for row in lacking:
        print(f"README.md: expected the row: {row}")
    return 1 if lacking or len(made) < 3 else 0


sys.exit(main())
