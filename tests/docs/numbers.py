#!/usr/bin/env python3
"""Compares the table of README.md with the results that it links: simulated steps with docs/results/fig11.csv, emulated
ones with docs/results/overlap.csv and overlap_devices.csv.

    numbers.py

Prints, for each row that differs, the row as the results have it, and exits 1 if there is one.
"""
import csv
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def read(name):
    return list(csv.DictReader((ROOT / f"docs/results/{name}.csv").read_text().splitlines()))


def simulated(schedule):
    """Returns the cell of a step of GPT2-S-MoE on 32 V100, and its nominal milliseconds."""
    row = next(row for row in read("fig11") if (row["model"], row["hardware"], row["ranks"], row["policy"]) ==
               ("GPT2-S-MoE", "p3dn-v100", "32", schedule) and not row["variation"])
    step, low, high = (float(row["step_ms" + end]) for end in ("", "_low", "_high"))
    return f"{step:.0f} ms ({low:.0f}-{high:.0f})", step


def rows_of(page, point):
    return [row for row in read(page) if row["point"] == point]


def emulated(page, policy, point="main"):
    """Returns the cell of the policy's fastest step, and its milliseconds."""
    step = min(float(row["step_ms"]) for row in rows_of(page, point) if row["policy"] == policy)
    return f"{step:.0f} ms", step


def links():
    """Returns the rate of the links: "200 Mbit/s" for 200mbit."""
    return rows_of("overlap", "main")[0]["rate"].replace("mbit", " Mbit/s")


def expected():
    """Returns (what is compared, how, the page, the other, ours) of the rows."""
    network, steps = "[emulated](docs/results/overlap.md)", "[simulated](docs/results/fig11.md)"
    devices, ours = "[devices](docs/results/overlap_devices.md)", emulated("overlap_devices", "lancet")
    return [(f"a step without overlap, 2 hosts, {links()} links", network, emulated("overlap", "sequential"),
             emulated("overlap", "lancet")),
            ("Tutel's schedule, 2 devices", devices, emulated("overlap_devices", "tutel"), ours),
            ("FlowMoE's schedule, 2 devices", devices, emulated("overlap_devices", "flowmoe"), ours),
            ("split products, 2 devices, collective matmul", devices,
             emulated("overlap_devices", "collective_matmul", "tensor"), emulated("overlap_devices", "lancet", "tensor")),
            ("32 V100, DeepSpeed's schedule", steps, simulated("sequential"), simulated("Lancet")),
            ("the same, Tutel's schedule", steps, simulated("Tutel"), simulated("Lancet"))]


def differences(text):
    lines = [f"| {what} | {theirs} | {ours} | {slow / fast:.2f} | {page} |"
             for what, page, (theirs, slow), (ours, fast) in expected()]
    return [line for line in lines if line not in text.splitlines()]


if __name__ == "__main__":
    found = differences((ROOT / "README.md").read_text())
    for line in found:
        print(f"README.md: expected the row: {line}")
    sys.exit(1 if found else 0)
