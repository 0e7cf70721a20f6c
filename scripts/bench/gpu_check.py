#!/usr/bin/env python3
"""The benchmarks of scripts/gpu-check.sh: runs them in turn within the time that is left, writes gpu-check.json, prints
the table. --dry runs the same with tiny shapes on the CPU: it prints which parts ran and whether what makes each figure works,
and no figure; in the file they are labelled dry.
"""
import argparse
import filecmp
import json
import math
import os
import re
import shlex
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TINY = {"model.n_layer": 2, "model.n_head": 2, "model.n_embd": 32, "model.n_positions": 16, "model.vocab_size": 300,
        "model.moe_layer_freq": 2, "train.seq_len": 16, "train.micro_batch_size": 4}
GPT2 = {"model.n_layer": 12, "model.n_head": 12, "model.n_embd": 768, "model.n_positions": 1024,
        "model.vocab_size": 50257, "model.moe_layer_freq": 0, "train.seq_len": 1024, "train.micro_batch_size": 16}
SMALL_MOE = {**GPT2, "model.n_positions": 512, "model.moe_layer_freq": 2, "model.experts_per_rank": 2,
             "train.seq_len": 512, "train.micro_batch_size": 8}
LARGE_MOE = {**SMALL_MOE, "model.n_layer": 24, "model.n_head": 16, "model.n_embd": 1024, "train.micro_batch_size": 4}
COMMON = {"data.synthetic": "true", "train.optimizer": "adamw", "train.lr": 6e-4, "train.weight_decay": 0.1,
          "train.adam_beta2": 0.95, "train.clip_grad": 1.0, "train.eval_interval": 0, "train.sample_tokens": 0}


class Failed(Exception):
    """A part that did not give what it should; the message is a line."""


class Late(Failed):
    """A part that its time did not suffice for."""


class Missing(Failed):
    """What a part needs is not on this machine."""


def last_line(path):
    lines = [line for line in path.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines or ["no output"])[-1][:300]


class Check:
    def __init__(self, options):
        self.options = options
        self.out = options.out
        self.started = time.monotonic()
        self.parts, self.figures = [], []

    # ---- time

    def left(self):
        return self.options.seconds - (time.monotonic() - self.started)

    def part(self, name, needs, most, body):
        """Runs body(); needs: seconds under which it is not begun; most: that it may take."""
        record = {"name": name, "status": "ran", "note": "", "seconds": 0.0}
        self.parts.append(record)
        start = time.monotonic()
        self.until = start + min(most, self.left())
        if self.left() < needs:
            record.update(status="not run", note=f"{max(0, self.left()):.0f} s left, it needs {needs}")
        else:
            try:
                record["note"] = body() or ""
            except Late as error:
                record.update(status="late", note=str(error))
            except Missing as error:
                record.update(status="not run", note=str(error))
            except Failed as error:
                record.update(status="failed", note=str(error))
            except Exception as error:  # of this script or of a file that is not as expected: told, and the rest goes on
                record.update(status="failed", note=f"{type(error).__name__}: {error}")
        record["seconds"] = round(time.monotonic() - start, 1)
        print(f"   {name}: {record['status']} in {record['seconds']:.0f} s {record['note']}", file=sys.stderr, flush=True)
        self.write()

    def run(self, name, command):
        """Output of a command; it goes to NAME.log, too."""
        log = self.out / f"{name}.log"
        seconds = self.until - time.monotonic()
        if seconds <= 1:
            raise Late(f"no time was left for {name}")
        with open(log, "w") as file:
            file.write(f"$ {shlex.join(map(str, command))}\n")
            file.flush()
            process = subprocess.Popen(list(map(str, command)), cwd=ROOT, stdout=file, stderr=subprocess.STDOUT,
                                       start_new_session=True)
            try:
                code = process.wait(seconds)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                process.wait()
                raise Late(f"{name} was ended after {seconds:.0f} s, see {log.name}") from None
        if code != 0:
            raise Failed(f"{name} ended with {code}: {last_line(log)}")
        return log.read_text(errors="replace")

    # ---- figures

    def figure(self, name, value, target=None, at_least=True, unit=""):
        """A number as it was found, and what it was to reach; only the table rounds."""
        if not math.isfinite(value):
            raise Failed(f"{name}: expected a number, found {value}")
        reached = None
        if target is not None and not self.options.dry:
            reached = value >= target if at_least else value <= target
        self.figures.append({"name": name, "value": value, "unit": unit, "target": target,
                             "target_is": None if target is None else "at least" if at_least else "at most",
                             "reached": reached, "dry": self.options.dry})

    def require(self, count):
        """Of the newest figures, those that a correct program reaches."""
        for figure in self.figures[-count:]:
            if figure["reached"] is False:
                raise Failed(f"{figure['name']}: expected {figure['target_is']} {figure['target']}, found {figure['value']}")

    def device(self):
        fields = ["name", "driver_version", "memory.total", "memory.used", "clocks.sm", "clocks.mem", "clocks.max.sm",
                  "power.draw", "power.limit", "temperature.gpu"]
        for names in (fields + ["clocks_event_reasons.active"], fields, fields[:2]):  # not every driver knows all
            try:
                found = subprocess.run(["nvidia-smi", f"--query-gpu={','.join(names)}", "--format=csv,noheader"],
                                       capture_output=True, text=True, timeout=20)
            except (OSError, subprocess.TimeoutExpired):
                return {}
            lines = found.stdout.splitlines()
            if found.returncode == 0 and lines:
                return dict(zip(names, (word.strip() for word in lines[0].split(","))))
        return {}

    def write(self):
        o = self.options
        result = {"dry": o.dry, "commit": o.commit, "device": self.before, "device_after": self.device(),
                  "cuda": o.cuda, "build_s": o.build_s, "tests": json.loads(o.tests),
                  "seconds": round(o.build_s + time.monotonic() - self.started, 1),
                  "parts": self.parts, "figures": self.figures}
        text = json.dumps(result, indent=1)
        temporary = self.out / "gpu-check.json.tmp"
        temporary.write_text(text + "\n")
        temporary.replace(self.out / "gpu-check.json")

    # ---- the trainer and its peer

    def config(self, name, shape, steps, device=None, **settings):
        """The file of a run."""
        o = self.options
        values = {**COMMON, **(TINY if o.dry else shape), "device": device or o.device, "train.steps": steps,
                  "log.interval": steps, "train.dtype": "bf16", "overlap.profile": str(self.out / "costs.json"),
                  **{k.replace("__", "."): v for k, v in settings.items()}}
        if o.dry:
            values["threads"] = 1
            values["log.peak_tflops"] = 1
            values["model.moe_layer_freq"] = shape.get("model.moe_layer_freq", 2)
        config = self.out / f"{name}.json"
        nested = {}
        for key, value in values.items():
            at = nested
            *folders, leaf = key.split(".")
            for folder in folders:
                at = at.setdefault(folder, {})
            at[leaf] = json.loads(value) if value in ("true", "false") else value
        config.write_text(json.dumps(nested, indent=1))
        return config

    def train(self, name, shape, steps, device=None, profile=False, **settings):
        """Trains; the records of metrics.jsonl and the run folder. profile: after the ops, the algorithms of products among
        them, are measured into the file that the run reads."""
        config = self.config(name, shape, steps, device, **settings)
        run = self.out / "runs" / name
        if profile:
            self.run(f"{name}-profile", [self.options.lancet, "profile", config])
        text = self.run(name, [self.options.lancet, "train", config, "--run-dir", run])
        records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines() if '"loss"' in line]
        if len(records) != steps:
            raise Failed(f"{name}: expected {steps} records in {run}/metrics.jsonl, found {len(records)}")
        return records, run, text

    def peer(self, name, shape):
        o = self.options
        shape = TINY if o.dry else shape
        padded = -(-shape["model.vocab_size"] // 64) * 64
        words = {"layers": shape["model.n_layer"], "width": shape["model.n_embd"], "heads": shape["model.n_head"],
                 "seq": shape["train.seq_len"], "batch": shape["train.micro_batch_size"], "vocab": padded,
                 "moe-every": shape["model.moe_layer_freq"], "device": "cpu" if o.dry else "cuda",
                 "steps": 3 if o.dry else 20, "warmup": 1 if o.dry else 5}
        if not o.quick and words["moe-every"] > 0:  # small kernels: recorded graphs may win
            words["modes"] = "default,reduce-overhead"
        command = [o.python, ROOT / "scripts/gpu_peer.py"]
        for key, value in words.items():
            command += [f"--{key}", value]
        text = self.run(f"{name}-peer", command)
        found = re.search(r"^RESULT (\{.*\})$", text, re.MULTILINE)
        if not found:
            raise Failed(f"{name}-peer: expected a line RESULT, found none")
        return json.loads(found.group(1))


def settled(records, field):
    """The median after the first steps, which load, choose and record."""
    values = [record[field] for record in records[max(2, len(records) // 4):] if record.get(field) is not None]
    if not values:
        raise Failed(f"expected {field} in metrics.jsonl, found none")
    return statistics.median(values)


def outside_kernels(records):
    """Part of a step that the compute lane spends between its stretches of work, before the first and after the last.
    Every eighth step from the second on is timed, with its stretches launched as recorded (docs of `spans` in
    lancet/runtime/executor.h); compute_ms of other steps is of the last one before them."""
    return statistics.median(1 - record["compute_ms"] / record["step_ms"] for record in records[8::8])


def compare_speed(check, name, shape, ratio, mfu):
    steps = 9 if check.options.dry else 26
    records, _, _ = check.train(name, shape, steps, profile=True)
    tokens = settled(records, "tokens_per_s")
    check.figure(f"{name} tokens/s", tokens)
    check.figure(f"{name} MFU", settled(records, "mfu"), mfu, unit="% of the measured product ceiling")
    check.figure(f"{name} step outside kernels", 100 * max(0.0, outside_kernels(records)),
                 3 if name == "gpt2" else None, at_least=False, unit="% of a timed step")
    try:
        peer = check.peer(name, shape)
    except Failed as error:
        return f"no peer: {error}"
    check.figure(f"{name} peer tokens/s", peer["tokens_per_s"], unit=f"PyTorch {peer['torch']}, {peer['mode']}")
    check.figure(f"{name} over its peer", tokens / peer["tokens_per_s"], ratio, unit="tokens/s over tokens/s")
    return ""


def follow_the_cpu(check):
    for dtype, bound in (("fp32", 1e-4), ("bf16", 1e-2)):
        losses = []
        for device in ("cpu", check.options.device):
            records, _, _ = check.train(f"losses-{dtype}-{device}{len(losses)}", TINY, 20, device, train__dtype=dtype)
            losses.append([record["loss"] for record in records])
        off = max(abs(a - b) / abs(a) for a, b in zip(*losses))
        check.figure(f"20 losses against the CPU's, {dtype}", off, bound, at_least=False, unit="relative")
    check.require(2)


def repeat_exactly(check):
    folders, losses = [], []
    for turn in "ab":
        records, run, _ = check.train(f"repeat-{turn}", TINY, 6, train__save_interval=6, overlap__policy="lancet")
        losses.append([(record["loss"], record["grad_norm"]) for record in records])
        folders.append(run / "checkpoints/step-000006")
    files = sorted(path.name for path in folders[0].glob("*.safetensors"))
    if not files:
        raise Failed(f"expected a checkpoint in {folders[0]}, found none")
    same = losses[0] == losses[1] and all(filecmp.cmp(folders[0] / f, folders[1] / f, shallow=False) for f in files)
    check.figure("two runs bit-equal", int(same), 1, unit="losses, norms, weights and optimizer")
    check.require(1)


SCHEDULES = ("expert_pipeline", "peer_groups", "dw", "partition", "lancet")


def follow_sequential(check):
    """Lanes, flags, copies of counts and exchanges in parts: one rank that takes itself for four, every policy in two
    parts. A loss that is summed by parts may round otherwise, a gradient may not; emulated ranks save nothing, so what
    became of the weights shows in the gradients of the steps behind."""
    def run(name, policy, **more):
        records, _, _ = check.train(f"schedules-{name}", TINY, 6, overlap__policy=policy, overlap__parts=2,
                                    overlap__profile=str(check.out / "costs-schedules.json"), comm__transport="emulated",
                                    comm__network="p4de-a100", comm__emulated_ranks=4, **more)
        return [(record["loss"], record["grad_norm"]) for record in records]

    expected = run("sequential", "sequential", profile=True)
    found = {policy: run(policy, policy) for policy in SCHEDULES}
    others = [p for p in SCHEDULES if [norm for _, norm in found[p]] != [norm for _, norm in expected]]
    off = max(abs(a - b) / abs(a) for p in SCHEDULES for (a, _), (b, _) in zip(expected, found[p]))
    check.figure("schedules with the gradients of sequential", len(SCHEDULES) - len(others), len(SCHEDULES),
                 unit="norms of all steps, to the bit")
    check.figure("losses of schedules against those of sequential", off, 1e-6, at_least=False, unit="relative")
    check.figure("two runs of lancet's lanes bit-equal", int(run("again", "lancet") == found["lancet"]), 1,
                 unit="losses and norms")
    if others:
        print(f"schedules with other gradients than sequential: {', '.join(others)}", flush=True)
    check.require(3)


def overlap(check, network):
    o = check.options
    steps, ranks = (8, 4) if o.dry else (24, 64)
    records, _, text = check.train(f"overlap-{network}", SMALL_MOE, steps, profile=True, overlap__policy="lancet",
                                   overlap__profile=str(check.out / f"costs-{network}.json"),
                                   comm__transport="emulated", comm__network=network, comm__emulated_ranks=ranks)
    declared = re.search(r"^.*emulated +\S+ declared ([\d.]+) ms of all-to-alls and ([\d.]+) ms of all-reduces",
                         text, re.MULTILINE)
    if not declared:
        raise Failed(f"overlap-{network}: expected a line of what the network declares, found none")
    if re.search(r"profile: measured .*communication", text):
        raise Failed(f"overlap-{network}: expected the communication of the profile before it, found it measured anew")
    step, compute = settled(records, "step_ms"), settled(records, "compute_ms")
    wire = max(map(float, declared.groups())) / steps  # the lanes run side by side; spans would hold their delays
    name = f"lancet, emulated {ranks} ranks of {network}"
    check.figure(f"{name}: step over max(compute, wire)", step / max(compute, wire), 1.10, at_least=False)
    predicted = settled(records, "predicted_ms")
    check.figure(f"{name}: |predicted / measured - 1|", 100 * abs(predicted / step - 1), 3, at_least=False, unit="%")
    policy = re.search(r"^.*policy +(\w+):", text, re.MULTILINE)
    chosen = policy.group(1) if policy else "?"
    if o.dry:
        return chosen
    return f"{chosen}: step {step:.2f} ms, compute {compute:.2f}, wire {wire:.2f} (declared)"


def sanitizer():
    found = subprocess.run(["sh", "-c", "command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer"],
                           capture_output=True, text=True).stdout.split()
    if not found:
        raise Missing("expected compute-sanitizer on the PATH or in /usr/local/cuda/bin, found none")
    return found[0]


def summary(text):
    found = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: (.*)", text)
    return found[-1] if found else "no summary"


def sanitize(check, tool):
    if check.options.dry:
        return "dry: no device code runs"
    config, run = check.out / "schedules-lancet.json", check.out / "runs" / f"sanitize-{tool}"
    if not config.exists():
        raise Failed("the small run of lancet's lanes that it repeats did not run")
    sets = ["train.steps=2", "log.peak_tflops=1"]
    return summary(check.run(f"sanitize-{tool}", [
        sanitizer(), "--tool", tool, "--error-exitcode", "86", check.options.lancet, "train", config, "--run-dir", run,
        *(word for s in sets for word in ("--set", s))]))


def sanitize_kernels(check, tool):
    """Every op on its samples; the refused allocation of another case would count as an error."""
    if check.options.dry:
        return "dry: no device code runs"
    program = Path(check.options.build) / "tests/test_cuda"
    if not program.exists():
        raise Missing(f"expected {program}, found none")
    return summary(check.run(f"sanitize-kernels-{tool}", [
        sanitizer(), "--tool", tool, "--error-exitcode", "86", program, "kernels on a GPU*"]))


def two_ranks(check):
    """Of ctest -L gpu; by itself, since whether it works at all is a finding."""
    if check.options.dry:
        return "dry: no device code runs"
    text = check.run("nccl", ["ctest", "--test-dir", check.options.build, "-R", "^cuda: ?two NCCL ranks on one GPU", "-V"])
    if "No tests were found" in text:
        raise Failed("expected the test of two NCCL ranks on one GPU, found none (built without NCCL)")
    skipped = re.search(r"SKIPPED: (.*)", text)
    if skipped:
        raise Missing(skipped.group(1))
    check.figure("two NCCL ranks on one GPU", 1, unit="they exchanged and summed")
    return ""


def shown(figure):
    if figure["dry"]:
        return f"WORKS: {figure['name']}"
    value, target = figure["value"], figure["target"]
    goal = "" if target is None else f"{figure['target_is']} {target:g}"
    verdict = {None: "", True: "reached", False: "MISSED"}[figure["reached"]]
    number = f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3f}" if abs(value) >= 1 else f"{value:.3g}"
    return f"{figure['name']:<58} {number:>12}  {goal:<16} {verdict:<8} {figure['unit']}"


def table(check):
    o = check.options
    lines = ["DRY: tiny shapes on the CPU: what runs, not how fast"] if o.dry else []
    tests = json.loads(o.tests)
    lines.append(f"device {check.before.get('name', 'none')}, driver {check.before.get('driver_version', 'none')}, "
                 f"SM clock {check.before.get('clocks.sm', 'n/a')} of {check.before.get('clocks.max.sm', 'n/a')}, commit {o.commit}")
    lines.append(f"build {o.build_s} s; tests {tests['passed']} passed, {tests['skipped']} skipped, {tests['failed']} failed, "
                 f"{tests['not_run']} not run")
    lines += [shown(figure) for figure in check.figures]
    lines += [f"{part['status'].upper()}: {part['name']}{': ' if part['note'] else ''}{part['note']}" for part in check.parts
              if o.dry or part["status"] != "ran" or part["note"]]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lancet", required=True)
    parser.add_argument("--build", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True, help="that are left")
    parser.add_argument("--build-s", type=float, default=0)
    parser.add_argument("--tests", default='{"passed": 0, "skipped": 0, "failed": 0, "not_run": 0}')
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--cuda", default="")
    parser.add_argument("--python", default=sys.executable, help="with PyTorch, for the peer")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--dry", action="store_true")
    check = Check(parser.parse_args())
    o = check.options
    o.device = "cpu" if o.dry else "cuda"
    o.out.mkdir(parents=True, exist_ok=True)
    check.before = check.device()
    check.write()
    check.part("losses", 5, 60, lambda: follow_the_cpu(check))
    check.part("repeat", 5, 40, lambda: repeat_exactly(check))
    check.part("schedules", 15, 75, lambda: follow_sequential(check))
    check.part("gpt2", 20, 110, lambda: compare_speed(check, "gpt2", GPT2, 1.15, 50))
    check.part("gpt2-s-moe", 20, 100, lambda: compare_speed(check, "gpt2-s-moe", SMALL_MOE, 1.5, 40))
    for network in ("p3dn-v100", "p4de-a100"):
        check.part(f"overlap {network}", 15, 60, lambda: overlap(check, network))
    check.part("nccl", 5, 60, lambda: two_ranks(check))
    check.part("memcheck", 10, 45, lambda: sanitize(check, "memcheck"))
    check.part("memcheck of kernels", 10, 60, lambda: sanitize_kernels(check, "memcheck"))
    if not o.quick:
        check.part("gpt2-l-moe", 25, 130, lambda: compare_speed(check, "gpt2-l-moe", LARGE_MOE, 1.5, 40))
        check.part("racecheck", 10, 60, lambda: sanitize(check, "racecheck"))
        check.part("racecheck of kernels", 10, 60, lambda: sanitize_kernels(check, "racecheck"))
    check.write()
    print(table(check))
    failed = any(part["status"] == "failed" for part in check.parts)
    return 1 if failed or (json.loads(o.tests)["failed"] and not o.dry) else 0  # dry: the tests may be of another build


if __name__ == "__main__":
    sys.exit(main())
