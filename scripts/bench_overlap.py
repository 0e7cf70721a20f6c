#!/usr/bin/env python3
"""Runs the overlap policies on an emulated cluster and writes one table.

A point is a model, a number of hosts and a link rate. At each, communication and the ops that are new are measured
(`lancet profile`), then the policies run in turn, in several rounds, so that the machine's drift meets all of them.
Numbers are medians over the steps of all rounds, the first two steps of each run left out. The main point's rate is
near the one at which the all-to-alls take 40% of the sequential step; it is found by a run of its own, or given.
"""
import argparse
import csv
import json
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONFIG = ROOT / "configs/bench-overlap.json"
WARMUP = 2
# Tutel's ways are expert_pipeline with each number of parts; the best of them as measured is the baseline.
PIPELINES = [("expert_pipeline", parts) for parts in (2, 4, 8)]
ALL = [("sequential", 0), *PIPELINES, ("dw", 0), ("partition", 0), ("lancet", 0)]
FEW = [("sequential", 0), *PIPELINES, ("lancet", 0)]
# name: (hosts, rate against the main one, overrides, policies, what)
POINTS = {
    "main": (2, 1.0, [], ALL, "fp32, the main point"),
    "slow": (2, 0.7, [], FEW, "fp32, slower link"),
    "fast": (2, 2.0, [], FEW, "fp32, faster link"),
    "bf16": (2, 1.0, ["train.dtype=bf16"], FEW, "bf16"),
    "wide": (2, 1.0, ["model.n_layer=4", "model.n_embd=384", "model.n_head=6", "train.micro_batch_size=16"], FEW,
             "fp32, 4 layers of n_embd 384, 4,096 tokens a rank"),
    "4hosts": (4, 1.0, ["train.micro_batch_size=16"], FEW, "fp32, 4 hosts on 2 cores, 4,096 tokens a rank"),
}


def call(command, **options):
    done = subprocess.run([str(part) for part in command], cwd=ROOT, text=True, capture_output=True, **options)
    if done.returncode != 0:
        sys.exit(f"error: {' '.join(map(str, command))} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


def cluster(*arguments):
    return call([ROOT / "scripts/emulate-cluster.sh", *arguments])


def lancet(program, *arguments):
    return cluster("run", "--", program, *arguments)


def sets(overrides):
    return [part for override in overrides for part in ("--set", override)]


class Bench:
    def __init__(self, program, folder, steps, rounds):
        self.program, self.folder, self.steps, self.rounds = program, Path(folder), steps, rounds
        self.profile = self.folder / "profile.json"

    def train(self, policy, parts, overrides, steps):
        run_dir = self.folder / "run"
        metrics = run_dir / "metrics.jsonl"
        metrics.unlink(missing_ok=True)
        chosen = [f"overlap.policy={policy}", f"overlap.parts={parts}", f"overlap.profile={self.profile}",
                  f"train.steps={steps}", f"log.interval={steps}", *overrides]
        lancet(self.program, "train", CONFIG, "--run-dir", run_dir, *sets(chosen))
        rows = [json.loads(line) for line in metrics.read_text().splitlines()]
        rows = [row for row in rows if row.get("tokens_per_s") is not None]
        arena = (run_dir / "plan.ir").read_text().split("\n", 2)[1]
        return rows[WARMUP:], int(arena.split()[1])

    def point(self, name, rate_mbit):
        hosts, factor, overrides, policies, what = POINTS[name]
        rate = f"{round(rate_mbit * factor / 10) * 10}mbit"
        cluster("rate", rate)
        lancet(self.program, "profile", CONFIG, "--out", self.profile, "--renew", "communication", *sets(overrides))
        found = {key: [] for key in policies}
        arena = {}
        for _ in range(self.rounds):
            for key in policies:
                rows, arena[key] = self.train(*key, overrides, self.steps)
                found[key] += rows
                print(f"{name}: {key[0]} {key[1]}: {statistics.median(r['step_ms'] for r in rows):.0f} ms",
                      file=sys.stderr)
        results = []
        for key in policies:
            rows = found[key]
            middle = lambda field: statistics.median(row[field] for row in rows)  # noqa: E731
            busy = middle("a2a_ms") + middle("allreduce_ms")
            communication = statistics.median(
                row["exposed_ms"] / (1 - row["hidden_pct"] / 100) if row["hidden_pct"] < 100 else busy for row in rows)
            results.append({
                "point": name, "what": what, "rate": rate, "hosts": hosts, "policy": key[0],
                "parts": key[1], "step_ms": middle("step_ms"), "compute_ms": middle("compute_ms"),
                "a2a_ms": middle("a2a_ms"), "allreduce_ms": middle("allreduce_ms"),
                "communication_ms": communication, "exposed_ms": middle("exposed_ms"),
                "predicted_ms": middle("predicted_ms"), "arena_mb": arena[key] / 1e6,
                "steps": len(rows)})
        return results

    def main_rate(self):
        """Megabits a second at which the all-to-alls take 40% of the sequential step."""
        rows, _ = self.train("sequential", 0, [], WARMUP + 3)
        a2a = statistics.median(row["a2a_ms"] for row in rows)
        rest = statistics.median(row["step_ms"] - row["a2a_ms"] for row in rows)
        return 280 * a2a / (rest * 0.4 / 0.6)


def summary(results):
    """The figures of a point, by name."""
    by = {(row["policy"], row["parts"]): row for row in results}
    best = min((by[key] for key in by if key[0] == "expert_pipeline"), key=lambda row: row["step_ms"])
    sequential, ours = by[("sequential", 0)], by[("lancet", 0)]
    floor = max(ours["compute_ms"], ours["communication_ms"])
    errors = [abs(row["predicted_ms"] / row["step_ms"] - 1) for row in results]
    return {
        "all-to-all / step, sequential": sequential["a2a_ms"] / sequential["step_ms"],
        "sequential / lancet, step": sequential["step_ms"] / ours["step_ms"],
        "best expert_pipeline / lancet, step": best["step_ms"] / ours["step_ms"],
        "lancet / best expert_pipeline, exposed": ours["exposed_ms"] / best["exposed_ms"],
        "lancet step / max(compute, communication)": ours["step_ms"] / floor,
        "mean error of predicted steps": statistics.mean(errors),
        "arena, lancet / sequential": ours["arena_mb"] / sequential["arena_mb"],
    }


def cpu():
    for line in open("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def write(results, out):
    out.mkdir(parents=True, exist_ok=True)
    with open(out / "overlap.csv", "w", newline="") as file:
        table = csv.DictWriter(file, fieldnames=list(results[0]))
        table.writeheader()
        for row in results:
            table.writerow({key: f"{value:.3f}" if isinstance(value, float) else value for key, value in row.items()})
    commit = call(["git", "rev-parse", "--short", "HEAD"]).strip()
    lines = [
        "# Overlap policies on an emulated cluster", "",
        f"`scripts/bench-overlap.sh`, commit {commit}, {cpu()}, hosts of one core each on one machine, links of network",
        "namespaces limited by `tc tbf`: real ranks and messages, emulated wire. Milliseconds are medians over steps.",
        "communication: a communication lane was busy. exposed: and the compute lane was not. parts: 0 is what pays.",
        "Emulated; the error is of the predicted step against the measured one.", ""]
    errors = []
    for name in dict.fromkeys(row["point"] for row in results):
        rows = [row for row in results if row["point"] == name]
        lines += [f"## {name}: {rows[0]['what']}", "", f"{rows[0]['hosts']} hosts, {rows[0]['rate']}", "",
                  "| policy | parts | step | compute | all-to-all | all-reduce | exposed | predicted | error | arena MB |",
                  "|---|---|---|---|---|---|---|---|---|---|"]
        for row in rows:
            error = row["predicted_ms"] / row["step_ms"] - 1
            errors.append(abs(error))
            lines.append(f"| {row['policy']} | {row['parts']} | {row['step_ms']:.0f} | {row['compute_ms']:.0f} | "
                         f"{row['a2a_ms']:.0f} | {row['allreduce_ms']:.0f} | {row['exposed_ms']:.0f} | "
                         f"{row['predicted_ms']:.0f} | {100 * error:+.1f}% | {row['arena_mb']:.0f} |")
        lines += ["", "| figure | |", "|---|---|"]
        lines += [f"| {what} | {value:.3f} |" for what, value in summary(rows).items()]
        lines.append("")
    lines.append(f"Mean error of the predicted step over all rows: {100 * statistics.mean(errors):.1f}%.")
    (out / "overlap.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lancet", default=str(ROOT / "build/lancet"))
    parser.add_argument("--points", default=",".join(POINTS), help="comma-separated, of: %(default)s")
    parser.add_argument("--steps", type=int, default=7, help="of a run, the two of warm-up included")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--rate", type=float, help="Mbit/s of the main point, in place of looking for it")
    parser.add_argument("--profile", type=Path, help="op times that are there already: lancet profile --out FILE")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/results")
    options = parser.parse_args()
    points = options.points.split(",")
    for name in points:
        if name not in POINTS:
            sys.exit(f"error: --points: expected some of {', '.join(POINTS)}, found '{name}'")
    results = []
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(options.lancet).resolve(), folder, options.steps, options.rounds)
        if options.profile:
            shutil.copy(options.profile, bench.profile)
        rate, hosts_up = options.rate, 0
        for name in points:
            hosts = POINTS[name][0]
            if hosts != hosts_up:
                cluster("down")
                cluster("up", "--hosts", str(hosts if rate else 2), "--rate", "280mbit")
                hosts_up = hosts
            if rate is None:
                rate = bench.main_rate()
                print(f"main rate: {rate:.0f} Mbit/s", file=sys.stderr)
                if hosts != 2:
                    cluster("down")
                    cluster("up", "--hosts", str(hosts), "--rate", "280mbit")
            results += bench.point(name, rate)
            write(results, options.out)


if __name__ == "__main__":
    main()
