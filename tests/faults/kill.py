#!/usr/bin/env python3
"""Kills training runs with SIGKILL at random moments, every other one inside a save, and lets each go on.

  tests/faults/kill.py LANCET [COUNT] [SEED]

Each of COUNT runs is killed once and started again. It must go on from its newest whole checkpoint, load none that is
not, and end with the records and, bit for bit, the weights and optimizer of a run that nobody disturbed. Prints one line
of numbers; exits 1 with a line that says what was wrong.
"""
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STEPS = 30
CONFIG = {
    "model": {"n_layer": 2, "n_head": 2, "n_embd": 64, "n_positions": 16, "vocab_size": 4000, "moe_layer_freq": 2,
              "num_local_experts": 4, "capacity_factor": 4},
    "data": {"synthetic": True},
    "train": {"steps": STEPS, "seq_len": 16, "micro_batch_size": 2, "lr": 1e-3, "clip_grad": 1.0, "save_interval": 2,
              "keep_last": 2},
    "log": {"peak_tflops": 1, "interval": 1000}, "threads": 1}


def fail(text):
    print(text)
    sys.exit(1)


def losses(run):
    """Of whole lines; the last one may have been cut short."""
    values = []
    path = run / "metrics.jsonl"
    for line in path.read_text().splitlines(keepends=True) if path.exists() else []:
        if line.endswith("}\n"):
            record = json.loads(line)
            values.append((record["step"], record["loss"], record["grad_norm"]))
    return values


def final_files(run):
    manifest = json.loads((run / "checkpoints" / f"step-{STEPS:06}" / "manifest.json").read_text())
    return manifest["files"]


def newest(run):
    """The step of the newest folder of a checkpoint's name: the rename makes it, so it has to be whole. 0: none."""
    names = [p.name for p in (run / "checkpoints").glob("step-*")] if (run / "checkpoints").is_dir() else []
    return max([int(n[5:]) for n in names if re.fullmatch(r"step-\d+", n)], default=0)


def saving(run):
    return any(True for _ in (run / "checkpoints").glob("*.tmp"))


class Attack:
    def __init__(self, lancet, folder):
        self.lancet, self.folder = lancet, Path(folder)
        self.config = self.folder / "config.json"
        self.config.write_text(json.dumps(CONFIG))
        self.inside = self.ended = self.lost = 0
        begin = time.monotonic()
        self.finish("undisturbed")
        self.seconds = time.monotonic() - begin
        self.expected = losses(self.folder / "undisturbed")
        self.files = final_files(self.folder / "undisturbed")
        if [s for s, _, _ in self.expected] != list(range(1, STEPS + 1)):
            fail("the undisturbed run has not a record a step")

    def command(self, name):
        return [self.lancet, "train", str(self.config), "--run-dir", str(self.folder / name)]

    def finish(self, name):
        done = subprocess.run(self.command(name), capture_output=True, text=True, timeout=300)
        if done.returncode != 0:
            fail(f"{name}: expected code 0, found {done.returncode}:\n{done.stderr}")
        return done.stderr

    def kill(self, name, rng, in_save):
        run = self.folder / name
        process = subprocess.Popen(self.command(name), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if in_save:  # one of the saves, and a moment in it
            target, begin = 2 * rng.randrange(1, STEPS // 2), time.monotonic()
            while process.poll() is None and time.monotonic() - begin < 120:
                if (run / "checkpoints" / f"step-{target:06}.tmp").exists() or newest(run) >= target:
                    break
            time.sleep(rng.random() * 0.002)
        else:
            time.sleep(rng.random() * self.seconds)
        process.send_signal(signal.SIGKILL)
        process.wait()
        self.ended += process.returncode == 0
        self.inside += saving(run)

    def once(self, index, rng):
        name = f"run-{index}"
        run = self.folder / name
        self.kill(name, rng, index % 2 == 0)
        saved, reached = newest(run), max([s for s, _, _ in losses(run)], default=0)
        log = self.finish(name)
        if "not whole" in log:
            fail(f"{name}: a checkpoint that was there by its name was not whole:\n{log}")
        resumed = re.search(r"resume     after step (\d+)", log)
        found = int(resumed.group(1)) if resumed else 0
        if found != saved:
            fail(f"{name}: expected to go on after step {saved}, found {found}:\n{log}")
        if losses(run) != self.expected:
            fail(f"{name}: expected the records of the undisturbed run, found others")
        if final_files(run) != self.files:
            fail(f"{name}: expected the weights of the undisturbed run, found others")
        if saving(run):
            fail(f"{name}: something temporary is left")
        self.lost = max(self.lost, reached - saved)
        subprocess.run(["rm", "-r", str(run)], check=True)


def main():
    if len(sys.argv) < 2:
        fail(__doc__)
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 10
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="lancet-kill-") as folder:
        attack = Attack(sys.argv[1], folder)
        for index in range(count):
            attack.once(index, rng)
        print(f"{count} runs killed, {attack.inside} of them inside a save, {attack.ended} had just ended: each went on from "
              f"its newest checkpoint, at most {attack.lost} steps back, to the same losses, weights and optimizer")


main()
