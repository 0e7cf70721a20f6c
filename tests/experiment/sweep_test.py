#!/usr/bin/env python3
"""Tests `bench sweep` with a double of the program for its runs and records, and with the program for simulated points;
and the changes to hardware files.

    sweep_test.py LANCET
"""
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
from bench import run, sweep  # noqa: E402
from hardware_table import HIGH_IS_SLOW, SECTIONS, changed, read_commented  # noqa: E402

# Notes its words; a plan takes 100 ms, fits unless it is padded, and hangs once the file `hang` is there.
LANCET = """#!/usr/bin/env python3
import json, pathlib, sys, time
words, here = sys.argv[1:], pathlib.Path(__file__).parent
with open(here / "calls", "a") as calls:
    calls.write(" ".join(words) + "\\n")
option = lambda name: words[words.index(name) + 1]
if words[0] == "profile" and (here / "slow").exists():
    time.sleep(60)
if words[0] == "train":
    if (here / "fail").exists():
        sys.exit("error: a rank left")
    run_dir = pathlib.Path(option("--run-dir"))
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps({
        "step_ms": ms, "compute_ms": 8, "a2a_ms": 4, "allreduce_ms": 2, "communication_ms": 5, "exposed_ms": 3,
        "predicted_ms": 19, "load_max_over_mean": 1.5, "tokens_per_s": 1}) + "\\n" for ms in (50, 10, 30, 20)))
while words[0] == "plan" and (here / "hang").exists() and "model.router=switch" in words:
    time.sleep(0.05)
times = {f"{name}_ms": 100 for name in ("step", "compute", "all_to_all", "all_reduce", "communication", "exposed")}
print(json.dumps({"build": "0123456789abcdef", "chosen": "lancet", "policies": [
    {"policy": "sequential", **times, "parts": 1, "arena_bytes": 0},
    {"policy": "lancet", **times, "step_ms": 90, "parts": 2, "arena_bytes": 2**30}][-1 if "--plan" in words else 0:],
    "bound_ms": 80, "memory_bytes": 2**31, "fits": "--padded" not in words, "forward_ms": 30, "experts_ms": 40,
    "planning_ms": 5, "kept": 0.75}))
"""


def expect(found, wanted, what):
    if found != wanted:
        sys.exit(f"{what}: expected {wanted!r}, found {found!r}")


class Folder:
    """A folder with a double of the program and an experiment of one model."""

    def __init__(self, **changes):
        self.temporary = tempfile.TemporaryDirectory()
        self.path = Path(self.temporary.name)
        self.lancet = self.path / "lancet"
        self.lancet.write_text(LANCET)
        self.lancet.chmod(0o755)
        (self.path / "small.json").write_text('{"train": {"micro_batch_size": 4, "lr": 1e-3}}  // a model')
        self.write(**changes)

    def write(self, **changes):
        root = {key: changes.pop(key) for key in ("warmup", "steps", "time_planning") if key in changes}
        policies = {"whole": {"set": ["overlap.policy=sequential"]}, "Lancet": {"set": ["overlap.policy=lancet"]},
                    "padded": {"set": [], "padded": True}}
        grid = {"on": "p3dn-v100", "models": ["small"], "gates": ["switch"], "ranks": [8, 16], "policies": ["Lancet"],
                **changes}
        (self.path / "test.json").write_text(json.dumps({
            "title": "a test", "settings": {"models": {"small": {"config": "small.json"}}, "policies": policies},
            "grids": [grid], "warmup": 1, "steps": 3, **root}))

    def words(self, *more, lancet=None):
        return [sys.executable, ROOT / "scripts/bench", "sweep", "./test.json", "--lancet", lancet or self.lancet,
                "--jobs", "2", *more]

    def sweep(self, *more, lancet=None):
        return subprocess.run(self.words(*more, lancet=lancet), cwd=self.path, capture_output=True, text=True,
                              env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})

    def records(self, folder="test"):
        path = self.path / f"runs/sweeps/{folder}/points.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()]

    def points(self, **changes):
        self.write(**changes)
        return self.read("build")

    def read(self, build):
        with tempfile.TemporaryDirectory() as machines:
            return sweep.Reader(str(self.path / "test.json"), "", build, Path(machines)).read().points

    def refused(self, said, *more, **changes):
        self.write(**changes)
        done = self.sweep(*more)
        expect(done.returncode, 1, f"exit code of {changes} {more}: {done.stderr}")
        expect(said in done.stderr and "Traceback" not in done.stderr, True, f"the error of {changes}: {done.stderr}")


def simulated():
    folder = Folder(policies=["Lancet", "padded"], routing={"imbalance": 2}, set=["train.micro_batch_size=16"],
                    hardware=["", "slow"])
    done = folder.sweep()
    expect(done.returncode, 0, done.stderr)
    records = folder.records()
    expect([(r["variation"] if "variation" in r else "", r["ranks"], r["policy"]) for r in records],
           [(v, n, p) for v in ("", "slow") for n in (8, 16) for p in ("Lancet", "padded")], "the order of the records")
    first, padded = records[:2]
    expect({key: first[key] for key in ("network", "hardware", "hosts", "batch", "status", "runs", "k", "step_ms",
                                        "bound_ms", "forward_ms", "memory_gib", "imbalance", "padded")},
           {"network": "simulated", "hardware": "p3dn-v100", "hosts": 1, "batch": 16, "status": "ok", "runs": "lancet",
            "k": 2, "step_ms": 90, "bound_ms": 80, "forward_ms": 30, "memory_gib": 2, "imbalance": 2, "padded": False},
           "a record")
    expect("75.0% of the tokens fit" in first["routing"] and "planning_ms" not in first, True, f"its routing: {first}")
    expect((padded["status"], "step_ms" in padded), ("out of memory", False), "a point that does not fit")
    expect("step, ms" in done.stdout and "out of memory" in done.stdout and "4 out of memory" in done.stdout, True,
           done.stdout)
    calls = (folder.path / "calls").read_text()
    expect(calls.count("--imbalance 2"), 8, "calls with the imbalance")
    expect(calls.count("--padded"), 4, "calls with padding")
    again = folder.sweep()
    expect((again.returncode, "8 recorded before" in again.stdout), (0, True), again.stdout + again.stderr)
    expect(len((folder.path / "calls").read_text().splitlines()), 10, "calls, two for the program's build")
    folder.write(ranks=[8])
    expect(folder.sweep().returncode, 0, "another experiment")
    expect((len(folder.records()), (folder.path / "runs/sweeps/test/points.jsonl.1").is_file()), (1, True),
           "records of other points are set aside")


def ids():
    folder = Folder()
    (first, second), path = folder.points(), folder.path / "small.json"
    expect(first.id != second.id and len(first.id) == 16, True, "two points")
    expect(folder.points(ranks=[8])[0].id, first.id, "the same point in a shorter list")
    for changes in ({"label": "x"}, {"hardware": ["network.latency_us=105"]}, {"routing": {"imbalance": 2}},
                    {"set": ["train.lr=2"]}, {"time_planning": True}, {"on": "p4de-a100"}):
        expect(folder.points(**changes)[0].id != first.id, True, f"the id with {changes}")
    folder.write()
    expect(folder.read("another")[0].id != first.id, True, "another build")
    path.write_text('{"train": {"lr": 0.001, "micro_batch_size": 4}}')
    expect(folder.points()[0].id, first.id, "equal settings in other words")
    measured = folder.points(on="this")[0].id
    expect(folder.points(on="this", steps=4)[0].id != measured, True, "other steps of a run")


def measured():
    folder = Folder(on="this", ranks=[1], set=["threads=1"])
    (folder.path / "fail").touch()
    done = folder.sweep()
    expect((done.returncode, folder.records()[0]["status"]), (1, "failed"), done.stderr)
    expect("exit code 1: error: a rank left" in folder.records()[0]["why"], True, folder.records()[0]["why"])
    (folder.path / "fail").unlink()
    (folder.path / "slow").touch()
    done = folder.sweep("--timeout", "1")
    expect((done.returncode, folder.records()[0]["why"][:26]), (1, "killed after 1 s (--timeou"), done.stderr)
    (folder.path / "slow").unlink()
    done = folder.sweep()
    expect(done.returncode, 0, done.stderr)
    record, = folder.records()
    expect({key: record[key] for key in ("network", "runs", "k", "step_ms", "least_step_ms", "most_step_ms",
                                         "predicted_ms", "predicted_compute_ms", "memory_gib", "imbalance", "steps")},
           {"network": "measured", "runs": "lancet", "k": 2, "step_ms": 20, "least_step_ms": 10, "most_step_ms": 30,
            "predicted_ms": 19, "predicted_compute_ms": 100, "memory_gib": 1, "imbalance": 1.5, "steps": 3}, "a run")
    calls = (folder.path / "calls").read_text()
    expect("train.steps=4" in calls and "overlap.profile=" in calls and "train.save_minutes=0" in calls, True, calls)


def interrupted():
    folder = Folder(gates=["batch_prioritized", "switch"], ranks=[8])
    hang = folder.path / "hang"
    hang.touch()
    # The double plans no quick start with this gate, so that the sweep begins.
    process = subprocess.Popen(folder.words(), cwd=folder.path, stderr=subprocess.PIPE, text=True)
    records = folder.path / "runs/sweeps/test/points.jsonl"
    for _ in range(200):
        if records.is_file() and records.read_text().count("\n") == 1:
            break
        time.sleep(0.05)
    second = folder.sweep()
    expect("no other sweep writes to" in second.stderr, True, f"a second sweep: {second.stderr}")
    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=60)[1]
    expect((process.returncode, "stopped: 1 of 2 points" in said), (sweep.INTERRUPTED, True), said)
    hang.unlink()
    records.write_text(records.read_text() + '{"id": "cut')
    done = folder.sweep()
    expect((done.returncode, len(folder.records())), (0, 2), done.stderr)
    expect("points.jsonl:2: an interruption cut this record short" in done.stderr, True, done.stderr)
    records.write_text("broken\n" + records.read_text())
    expect("points.jsonl:1: expected a record of a sweep" in folder.sweep().stderr, True, "a broken line")
    expect(folder.sweep("--fresh").returncode, 0, "--fresh")
    expect(len(folder.records()), 2, "all points again")


def errors():
    folder = Folder()
    folder.refused("grids[0].models: expected some of small, found 'none'", models=["none"])
    folder.refused("grids[0].ranks: expected a list of integers, found ['8']", ranks=["8"])
    folder.refused('grids[0].routing: expected "even" or', routing="odd")
    folder.refused("expected the fields on, label", colour="red")
    folder.refused("expected changes like slow, device=fast", hardware=["quick"])
    folder.refused("expected a hardware file or one of dgx-h100, ", on="pdp-11")
    folder.refused("where points are run, found this:slow", on="this", hardware=["slow"])
    folder.refused("padded", on="this", policies=["padded"])


def with_the_program():
    lancet = Path(sys.argv[1]).resolve()
    folder = Folder(ranks=[2], policies=["whole", "Lancet"], on="ethernet-10g-cpu", time_planning=True)
    (folder.path / "small.json").write_text((ROOT / "configs/quickstart.json").read_text())
    done = folder.sweep(lancet=lancet)
    expect(done.returncode, 0, done.stderr)
    whole, ours = folder.records()
    expect(ours["step_ms"] <= whole["step_ms"] and ours["bound_ms"] <= ours["step_ms"], True, f"{whole} {ours}")
    expect((whole["runs"], whole["k"], whole["hosts"], ours["planning_ms"] > 0), ("sequential", 1, 2, True), "a point")
    faster = folder.sweep("--on", "ethernet-10g-cpu:network.nic_gbit_per_s=x4", lancet=lancet)
    expect(faster.returncode, 0, faster.stderr)
    record = folder.records("test-on-ethernet-10g-cpu-network.nic_gbit_per_s=x4")[0]
    expect((record["variation"], record["step_ms"] < whole["step_ms"]), ("network.nic_gbit_per_s=x4", True),
           "a faster NIC")
    # A plan of one's own takes what its policy was predicted to take.
    plan = folder.path / "plan.ir"
    run.call([lancet, "plan", folder.path / "small.json", "--on", "ethernet-10g-cpu", "--ranks", 2, "--out", plan,
              *run.sets(["overlap.policy=lancet"])])
    root = json.loads((folder.path / "test.json").read_text())
    root["settings"]["policies"]["whole"] = {"plan": "plan.ir"}
    (folder.path / "test.json").write_text(json.dumps(root))
    expect(folder.sweep("--out", "own", lancet=lancet).returncode, 0, "a plan of one's own")
    own = json.loads((folder.path / "own/points.jsonl").read_text().splitlines()[0])
    expect((own["step_ms"], own["runs"]), (ours["step_ms"], "a plan file"), "its step")


def changes():
    machine = read_commented(ROOT / "configs/hardware/p3dn-v100.json")

    def value(text, section="network", field="latency_us"):
        found = changed(machine, text)[section][field]
        return found.get("value", found.get("points"))

    expect([value(text) for text in ("", "slow", "fast", "network=slow", "device=slow",
                                     "fast,network.latency_us=slow")],
           [105, 118, 100, 118, 105, 118], "the ends of a number")
    expect([value(text, "device", "fp32_tflops") for text in ("slow", "device.fp32_tflops=x2")], [15.7, 31.4],
           "a number without ends, and a factor")
    expect(value("slow", "device", "memory_efficiency"), 0.6, "the slow end of an efficiency")
    expect(value("fast,device=slow", "device", "launch_us"), 10, "a later change goes first")
    expect(value("network.all_to_all_efficiency=0.3", field="all_to_all_efficiency"),
           [[2, 70, 0.3], [8, 70, 0.3], [32, 70, 0.3]], "every share of a table")
    expect(value("slow,network.all_to_all_efficiency=x0.5", field="all_to_all_efficiency"),
           [[2, 70, 0.255], [8, 70, 0.25]], "numbers go after ends")
    expect(machine["network"]["latency_us"]["value"], 105, "the file's own numbers stay")
    for wrong in ("quick", "device=3", "device.fp32_tflops=", "device.tflops=2", "memory.latency_us=2", "=1"):
        try:
            changed(machine, wrong)
        except ValueError:
            continue
        sys.exit(f"{wrong}: expected ValueError, found none")


def shipped_bands():
    """In every hardware file the nominal value of a number is between its ends, if it has ends."""
    for path in sorted((ROOT / "configs/hardware").glob("*.json")):
        machine = read_commented(path)
        for section in SECTIONS:
            for name, field in machine[section].items():
                expect("low" in field, "high" in field, f"both ends, {path.name}, {section}.{name}")
                if "low" in field and "value" in field:
                    expect(sorted((field["value"], field["low"], field["high"]), key=float),
                           [field["low"], field["value"], field["high"]], f"{path.name}, {section}.{name}")
        for name in HIGH_IS_SLOW:
            expect(any(name in machine[section] for section in SECTIONS), True, f"{name} is a field")


if __name__ == "__main__":
    for test in (simulated, ids, measured, interrupted, errors, with_the_program, changes, shipped_bands):
        test()
        print(f"{test.__name__}: as expected")
