"""Runs the parts of `bench gpu` with a time limit each and collects their results and figures in gpu-check.json."""
import json
import math
import os
import shlex
import subprocess
import time

from bench import run
from bench.run import Failed


class Late(Failed):
    """A part exceeded its time."""


class Missing(Failed):
    """A part needs something that this machine lacks."""


def last_line(path):
    lines = [line for line in path.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines or ["no output"])[-1][:300]


def device():
    """Returns nvidia-smi's fields of the first GPU; empty if there is none."""
    fields = ["name", "driver_version", "memory.total", "memory.used", "clocks.sm", "clocks.mem", "clocks.max.sm",
              "power.draw", "power.limit", "temperature.gpu"]
    for names in (fields + ["clocks_event_reasons.active"], fields, fields[:2]):  # older drivers lack some fields
        try:
            found = subprocess.run(["nvidia-smi", f"--query-gpu={','.join(names)}", "--format=csv,noheader"],
                                   capture_output=True, text=True, timeout=20)
        except (OSError, subprocess.TimeoutExpired):
            return {}
        lines = found.stdout.splitlines()
        if found.returncode == 0 and lines:
            return dict(zip(names, (word.strip() for word in lines[0].split(","))))
    return {}


class Check:
    """options: those of the command; facts: further fields of gpu-check.json (commit, CUDA, build, tests)."""

    def __init__(self, options):
        self.options, self.out = options, options.out
        self.device = "cpu" if options.dry else "cuda"
        self.started = time.monotonic()
        self.before, self.facts = device(), {}
        self.parts, self.figures = [], []

    def left(self):
        return self.options.seconds - (time.monotonic() - self.started)

    def part(self, name, needs, most, body):
        """Runs body(). needs: seconds that must be left to start it; most: its time limit in seconds."""
        record = {"name": name, "status": "ran", "note": "", "seconds": 0.0}
        self.parts.append(record)
        start = time.monotonic()
        self.until = start + min(most, self.left())
        try:
            if self.left() < needs:
                raise Missing(f"{max(0, self.left()):.0f} s left, it needs {needs}")
            record["note"] = body() or ""
        except Failed as error:
            status = {Late: "late", Missing: "not run"}.get(type(error), "failed")
            record.update(status=status, note=str(error))
        except Exception as error:  # an error of this code or an unexpected file; the other parts still run
            record.update(status="failed", note=f"{type(error).__name__}: {error}")
        record["seconds"] = round(time.monotonic() - start, 1)
        run.log(f"{name}: {record['status']} in {record['seconds']:.0f} s {record['note']}")
        self.write()

    def run(self, name, command, seconds=None, **environment):
        """Runs a command and returns its output, which is also written to NAME.log. seconds: time limit; default: the
        part's rest."""
        log = self.out / f"{name}.log"
        seconds = self.until - time.monotonic() if seconds is None else seconds
        if seconds <= 1:
            raise Late(f"no time was left for {name}")
        with open(log, "w") as file:
            file.write(f"$ {shlex.join(map(str, command))}\n")
            file.flush()
            process = subprocess.Popen(list(map(str, command)), cwd=run.ROOT, stdout=file, stderr=subprocess.STDOUT,
                                       start_new_session=True, env={**os.environ, **environment})
            try:
                code = process.wait(seconds)
            except subprocess.TimeoutExpired:
                raise Late(f"{name} was ended after {seconds:.0f} s, see {log.name}") from None
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, 9)
                    process.wait()
        if code != 0:
            raise Failed(f"{name} ended with {code}: {last_line(log)}")
        return log.read_text(errors="replace")

    def figure(self, name, value, target=None, at_least=True, unit=""):
        """Records a number and its target, both unrounded."""
        if not math.isfinite(value):
            raise Failed(f"{name}: expected a number, found {value}")
        reached = None
        if target is not None and not self.options.dry:
            reached = value >= target if at_least else value <= target
        self.figures.append({"name": name, "value": value, "unit": unit, "target": target,
                             "target_is": None if target is None else "at least" if at_least else "at most",
                             "reached": reached, "dry": self.options.dry})

    def require(self, count):
        """Fails if one of the newest `count` figures missed its target; for figures that every correct program
        reaches."""
        for figure in self.figures[-count:]:
            if figure["reached"] is False:
                raise Failed(f"{figure['name']}: expected {figure['target_is']} {figure['target']}, found {figure['value']}")

    def write(self):
        result = {"dry": self.options.dry, "device": self.before, "device_after": device(), **self.facts,
                  "seconds": round(time.monotonic() - self.started, 1), "parts": self.parts, "figures": self.figures}
        temporary = self.out / "gpu-check.json.tmp"
        temporary.write_text(json.dumps(result, indent=1) + "\n")
        temporary.replace(self.out / "gpu-check.json")
