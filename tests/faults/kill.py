#!/usr/bin/env python3
"""Kills training runs with SIGKILL at random moments, every other one inside a save, and resumes each.

    tests/faults/kill.py LANCET [COUNT] [SEED] [INPROC_TRAIN]

The COUNT runs take turns among: one rank; two ranks that are processes, of which one is killed; both and their
launcher; two ranks that are threads (by INPROC_TRAIN, if given). Each run is killed once and started again; a run that
had ended with code 0 before the signal came is not counted, and another one replaces it. The run must resume from its
newest complete checkpoint, load no incomplete one, lose no more steps than came after that checkpoint, and end with the
records and, bit for bit, the weights and optimizer of an undisturbed run. If one rank of several is killed, the
launcher's script must exit with code 5 within 10 seconds. Prints numbers, also if Ctrl-C ends it before all are done
(code 130); exits 1 with a line that names the failure.
"""
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STEPS, INTERVAL = 30, 2
ROOT = Path(__file__).resolve().parent.parent.parent
CONFIG = {
    "model": {"n_layer": 2, "n_head": 2, "n_embd": 64, "n_positions": 16, "vocab_size": 4000, "moe_layer_freq": 2,
              "num_local_experts": 4, "capacity_factor": 4},
    "data": {"synthetic": True},
    "train": {"steps": STEPS, "seq_len": 16, "micro_batch_size": 2, "lr": 1e-3, "clip_grad": 1.0,
              "save_interval": INTERVAL, "keep_last": 2},
    "log": {"peak_tflops": 1, "interval": 1000}, "threads": 1}
SECONDS_TO_LEAVE = 10
MOST_DRAWS = 20  # consecutive runs that end before the signal comes


def fail(text):
    print(text)
    sys.exit(1)


def losses(run):
    """The complete lines of steps; the last line may have been cut short. Held-out losses have lines of their own."""
    values = []
    path = run / "metrics.jsonl"
    for line in path.read_text().splitlines(keepends=True) if path.exists() else []:
        if line.endswith("}\n"):
            record = json.loads(line)
            if "loss" in record:
                values.append((record["step"], record["loss"], record["grad_norm"]))
    return values


def final_files(run):
    manifest = json.loads((run / "checkpoints" / f"step-{STEPS:06}" / "manifest.json").read_text())
    return manifest["files"]


def newest(run):
    """The step of the newest folder with a checkpoint's name; the rename makes it, so it must be complete. 0: none."""
    names = [p.name for p in (run / "checkpoints").glob("step-*")] if (run / "checkpoints").is_dir() else []
    return max([int(n[5:]) for n in names if re.fullmatch(r"step-\d+", n)], default=0)


def saving(run):
    return any(True for _ in (run / "checkpoints").glob("*.tmp"))


def kill(pid):
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # it has just ended


def processes_of(run):
    """The processes of a run in this folder: (process, whether it is a rank), launchers first."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
        except OSError:
            continue  # it has just ended
        if str(run).encode() in words:
            found.append((int(entry.name), b"train" == words[1]))
    return sorted(found, key=lambda process: process[1])


class Kind:
    """A way of running and killing."""

    def __init__(self, name, command, victims, codes):
        self.name, self.command, self.victims, self.codes = name, command, victims, codes
        self.killed = self.inside = self.ended = self.lost = 0
        self.slowest = 0.0

    def numbers(self):
        text = f"{self.name}: {self.killed} killed, {self.inside} inside a save, at most {self.lost} steps lost"
        if self.ended:
            text += f", {self.ended} more had ended before"
        if self.victims == "one":
            text += f", the others left within {self.slowest:.1f} s with code 5"
        return text


class Attack:
    def __init__(self, kind, folder):
        self.kind, self.folder = kind, Path(folder) / kind.name.replace(" ", "-").replace(",", "")
        self.folder.mkdir()
        self.config = self.folder / "config.json"
        self.config.write_text(json.dumps(CONFIG))
        begin = time.monotonic()
        self.finish("undisturbed")
        self.seconds = time.monotonic() - begin
        self.expected = losses(self.folder / "undisturbed")
        self.files = final_files(self.folder / "undisturbed")
        if [s for s, _, _ in self.expected] != list(range(1, STEPS + 1)):
            fail(f"{kind.name}: the undisturbed run lacks a record of some step")

    def command(self, name):
        return self.kind.command(self.config, self.folder / name)

    def finish(self, name):
        done = subprocess.run(self.command(name), capture_output=True, text=True, timeout=300)
        if done.returncode != 0:
            fail(f"{self.kind.name}, {name}: expected code 0, found {done.returncode}:\n{done.stderr}")
        return done.stdout + done.stderr

    def wait_for_moment(self, process, run, rng, in_save):
        if not in_save:
            time.sleep(rng.random() * self.seconds)
            return
        target, begin = INTERVAL * rng.randrange(1, STEPS // INTERVAL), time.monotonic()
        temporary = run / "checkpoints" / f"step-{target:06}.tmp"
        while process.poll() is None and time.monotonic() - begin < 120:
            if temporary.exists() or newest(run) >= target:
                break
            time.sleep(0.0001)
        time.sleep(rng.random() * 0.002)

    def kill(self, name, rng, in_save):
        """True if the run was inside a save; None if it had ended before the signal came."""
        run = self.folder / name
        with tempfile.TemporaryFile("w+") as log:
            process = subprocess.Popen(self.command(name), stdout=log, stderr=log)
            self.wait_for_moment(process, run, rng, in_save)
            found = processes_of(run)
            ranks = [pid for pid, is_rank in found if is_rank]
            victims = [rng.choice(ranks)] if ranks and self.kind.victims == "one" else [pid for pid, _ in found]
            if not ranks:  # no save has begun
                victims = [process.pid] + victims
            for victim in victims:
                kill(victim)
            begin = time.monotonic()
            process.wait(timeout=60)
            took = time.monotonic() - begin
            while processes_of(run) and time.monotonic() - begin < 60:  # ranks whose launcher was killed
                time.sleep(0.01)
            if processes_of(run):
                fail(f"{self.kind.name}, {name}: a rank still runs a minute after its launcher was killed")
            log.seek(0)
            if process.returncode == 0:
                return None
            self.judge(name, process.returncode, took, bool(ranks), log.read())
        return saving(run)

    def judge(self, name, code, took, has_ranks, log):
        if self.kind.victims == "one" and has_ranks:
            self.kind.slowest = max(self.kind.slowest, took)
            if code != 5 or took > SECONDS_TO_LEAVE:
                fail(f"{self.kind.name}, {name}: expected code 5 within {SECONDS_TO_LEAVE} s, found {code} after "
                     f"{took:.1f} s:\n{log}")
        elif code not in self.kind.codes:
            fail(f"{self.kind.name}, {name}: expected an exit code of a kill ({self.kind.codes}), found {code}:\n{log}")

    def kill_one(self, name, rng, in_save):
        """Repeats runs until one is killed before it ends; returns whether that was inside a save."""
        for _ in range(MOST_DRAWS):
            inside = self.kill(name, rng, in_save)
            if inside is not None:
                return inside
            self.kind.ended += 1
            subprocess.run(["rm", "-r", str(self.folder / name)], check=True)
        fail(f"{self.kind.name}, {name}: expected a run that is killed, found {MOST_DRAWS} that had ended before")

    def once(self, index, rng, in_save):
        name = f"run-{index}"
        run = self.folder / name
        inside = self.kill_one(name, rng, in_save)
        saved, reached = newest(run), max([s for s, _, _ in losses(run)], default=0)
        log = self.finish(name)
        where = f"{self.kind.name}, {name}"
        if "not whole" in log:
            fail(f"{where}: a checkpoint with a final name was incomplete:\n{log}")
        resumed = re.search(r"resume     after step (\d+)", log)
        found = int(resumed.group(1)) if resumed else 0
        if found != saved:
            fail(f"{where}: expected to resume after step {saved}, found {found}:\n{log}")
        # A save begins after its step, once the one before is on the disk: that one is two intervals back at most.
        if reached - saved >= 2 * INTERVAL:
            fail(f"{where}: expected to lose fewer than {2 * INTERVAL} steps, lost {reached - saved} of {reached}")
        if losses(run) != self.expected:
            fail(f"{where}: expected the records of the undisturbed run, found others")
        if final_files(run) != self.files:
            fail(f"{where}: expected the weights of the undisturbed run, found others")
        if saving(run):
            fail(f"{where}: temporary files are left")
        self.kind.killed += 1
        self.kind.inside += inside
        self.kind.lost = max(self.kind.lost, reached - saved)
        subprocess.run(["rm", "-r", str(run)], check=True)


def kinds_of(lancet, inproc):
    def ranks(count):
        return lambda config, run: [str(ROOT / "scripts/mpirun.sh"), str(count)] + one_rank(config, run)

    def one_rank(config, run):
        return [lancet, "train", str(config), "--run-dir", str(run)]

    itself = [-signal.SIGKILL]
    launched = itself + [5]  # the script, if its launcher is gone before it
    kinds = [Kind("one rank", one_rank, "all", itself)]
    if shutil.which("mpirun"):
        kinds += [Kind("one of two ranks", ranks(2), "one", launched), Kind("two ranks", ranks(2), "all", launched)]
    if inproc:
        kinds.append(Kind("two ranks as threads", lambda config, run: [inproc, "2", str(config), str(run)], "all", itself))
    return kinds


def report(attacks):
    count, inside = sum(a.kind.killed for a in attacks), sum(a.kind.inside for a in attacks)
    print(f"{count} runs killed, {inside} of them inside a save: each went on from its newest checkpoint, to the same "
          "losses, weights and optimizer")
    for attack in attacks:
        print("  " + attack.kind.numbers())
    return inside


def main():
    if len(sys.argv) < 2:
        fail(__doc__)
    lancet, count, seed, inproc = (sys.argv[1:] + ["12", "1", ""][len(sys.argv) - 2:])[:4]
    count, rng = int(count), random.Random(int(seed))
    with tempfile.TemporaryDirectory(prefix="lancet-kill-") as folder:
        attacks = [Attack(kind, folder) for kind in kinds_of(lancet, inproc)[:count]]
        try:
            for index in range(count):
                attacks[index % len(attacks)].once(index, rng, index // len(attacks) % 2 == 0)
        except KeyboardInterrupt:
            report(attacks)
            sys.exit(130)
        if report(attacks) == 0:
            fail(f"expected some of {count} kills to fall inside a save, found none")


main()
