"""Runs the overlap policies on an emulated cluster and writes one table, overlap.md and overlap.csv.

It needs root, since hosts are network namespaces (scripts/emulate-cluster.sh), and takes about 40 minutes for all
points. A point is a model, a number of hosts and a link rate. At each, `lancet profile` measures communication and new
ops, then the policies run in turns, in several rounds, so that the machine's drift meets all of them. Numbers are
medians over the steps of all rounds, without the first two steps of each run. The main point's rate is near the one at
which the all-to-alls take 40% of the sequential step; a run of its own finds it, unless --rate gives it.
"""
import json
import os
import shutil
import statistics
import tempfile
from pathlib import Path

from bench import run
from bench.table import markdown, number, percent, rounded, signed_percent, write_csv

CONFIG = run.ROOT / "configs/bench-overlap.json"
FIRST_MBIT = 280  # the links' rate before a point sets its own
# Tutel is expert_pipeline with each number of parts; the fastest measured one is the baseline.
PIPELINES = [("expert_pipeline", parts) for parts in (2, 4, 8)]
ALL = [("sequential", 0), *PIPELINES, ("dw", 0), ("partition", 0), ("lancet", 0)]
FEW = [("sequential", 0), *PIPELINES, ("lancet", 0)]
# name: (hosts, rate relative to the main point, settings, policies, description)
POINTS = {
    "main": (2, 1.0, [], ALL, "fp32, the main point"),
    "slow": (2, 0.7, [], FEW, "fp32, slower link"),
    "fast": (2, 2.0, [], FEW, "fp32, faster link"),
    "bf16": (2, 1.0, ["train.dtype=bf16"], FEW, "bf16"),
    "wide": (2, 1.0, ["model.n_layer=4", "model.n_embd=384", "model.n_head=6", "train.micro_batch_size=16"], FEW,
             "fp32, 4 layers of n_embd 384, 4,096 tokens a rank"),
    "4hosts": (4, 1.0, ["train.micro_batch_size=16"], FEW, "fp32, 4 hosts on 2 cores, 4,096 tokens a rank"),
}


def cluster(*arguments):
    run.call([run.ROOT / "scripts/emulate-cluster.sh", *arguments])


def start_cluster(hosts):
    cluster("down")
    cluster("up", "--hosts", hosts, "--rate", f"{FIRST_MBIT}mbit")


class Bench:
    """Runs on the cluster that is up. folder: for the runs and the profile."""

    launcher = [run.ROOT / "scripts/emulate-cluster.sh", "run", "--"]

    def __init__(self, lancet, folder, steps, rounds):
        self.lancet, self.folder, self.steps, self.rounds = lancet, folder, steps, rounds
        self.hosts = 2

    @property
    def profile(self):
        """The file of costs on the cluster that is up."""
        return self.folder / f"profile-{self.hosts}.json"

    def train(self, policy, parts, settings, steps):
        """Returns the records of the steps, and the arena's bytes."""
        run_dir = self.folder / "run"
        records, _ = run.train(self.lancet, CONFIG, run_dir, steps, [
            f"overlap.policy={policy}", f"overlap.parts={parts}", f"overlap.profile={self.profile}", *settings], self.launcher)
        steps_timed = records[run.WARMUP:]
        run.log(f"{policy} {parts}: {run.median(steps_timed, 'step_ms'):.0f} ms")
        arena = (run_dir / "plan.ir").read_text().split("\n", 2)[1]
        return steps_timed, int(arena.split()[1])

    def point(self, name, main_mbit):
        """Measures a point; returns a row for each policy."""
        hosts, factor, settings, policies, what = POINTS[name]
        self.hosts = hosts
        rate = f"{round(main_mbit * factor / 10) * 10}mbit"
        run.log(f"{name}: {hosts} hosts, {rate}")
        cluster("rate", rate)
        run.call([*self.launcher, self.lancet, "profile", CONFIG, "--out", self.profile, "--renew", "communication",
                  *run.sets(settings)])
        rounds = run.in_turns(self.rounds, {
            (policy, parts): lambda policy=policy, parts=parts: self.train(policy, parts, settings, self.steps)
            for policy, parts in policies})
        return [{"point": name, "what": what, "rate": rate, "hosts": hosts, "policy": policy, "parts": parts, **times(found)}
                for (policy, parts), found in rounds.items()]

    def main_mbit(self):
        """Returns the links' rate at which the all-to-alls would take 40% of the sequential step."""
        records, _ = self.train("sequential", 0, [], run.WARMUP + 3)
        rest = statistics.median(record["step_ms"] - record["a2a_ms"] for record in records)
        return FIRST_MBIT * run.median(records, "a2a_ms") / (rest * 0.4 / 0.6)


def times(rounds):
    """Returns medians over the steps of all rounds. rounds: the results of Bench.train."""
    records = [record for steps, _ in rounds for record in steps]
    found = {field: run.median(records, field) for field in ("step_ms", "compute_ms", "a2a_ms", "allreduce_ms")}
    busy = found["a2a_ms"] + found["allreduce_ms"]
    found["communication_ms"] = statistics.median(
        record["exposed_ms"] / (1 - record["hidden_pct"] / 100) if record["hidden_pct"] < 100 else busy for record in records)
    found.update({field: run.median(records, field) for field in ("exposed_ms", "predicted_ms")})
    return {**found, "arena_mb": rounds[-1][1] / 1e6, "steps": len(records)}


def error_of(row):
    return row["predicted_ms"] / row["step_ms"] - 1


def summary(rows):
    """Returns the figures of a point, by name."""
    by = {(row["policy"], row["parts"]): row for row in rows}
    best = min((row for row in rows if row["policy"] == "expert_pipeline"), key=lambda row: row["step_ms"])
    sequential, ours = by[("sequential", 0)], by[("lancet", 0)]
    return {
        "all-to-all / step, sequential": sequential["a2a_ms"] / sequential["step_ms"],
        "sequential / lancet, step": sequential["step_ms"] / ours["step_ms"],
        "best expert_pipeline / lancet, step": best["step_ms"] / ours["step_ms"],
        "lancet / best expert_pipeline, exposed": ours["exposed_ms"] / best["exposed_ms"],
        "lancet step / max(compute, communication)": ours["step_ms"] / max(ours["compute_ms"], ours["communication_ms"]),
        "mean error of predicted steps": statistics.mean(abs(error_of(row)) for row in rows),
        "arena, lancet / sequential": ours["arena_mb"] / sequential["arena_mb"],
    }


def page(results):
    """Returns the text of overlap.md."""
    lines = [
        "# Overlap policies on an emulated cluster", "",
        f"`python3 scripts/bench overlap`, commit {run.commit()}, {run.cpu()}, hosts of one core each on one machine,",
        "links of network namespaces limited by `tc tbf`: real ranks and messages, an emulated network. Milliseconds are medians",
        "over steps.",
        "communication: a communication stream was busy. exposed: and the compute stream was not. parts: 0 is what pays.",
        "Emulated; the error is of the predicted step against the measured one.", ""]
    fields = ("step_ms", "compute_ms", "a2a_ms", "allreduce_ms", "exposed_ms", "predicted_ms")
    for name in dict.fromkeys(row["point"] for row in results):
        rows = [row for row in results if row["point"] == name]
        lines += [f"## {name}: {rows[0]['what']}", "", f"{rows[0]['hosts']} hosts, {rows[0]['rate']}", "", *markdown(
            ["policy", "parts", "step", "compute", "all-to-all", "all-reduce", "exposed", "predicted", "error", "arena MB"],
            [[row["policy"], row["parts"], *(number(row[field], 0) for field in fields), signed_percent(error_of(row)),
              number(row["arena_mb"], 0)] for row in rows])]
        lines += ["", *markdown(["figure", ""], [[what, number(value, 3)] for what, value in summary(rows).items()]), ""]
    mean = statistics.mean(abs(error_of(row)) for row in results)
    return "\n".join([*lines, f"Mean error of the predicted step over all rows: {percent(mean)}."]) + "\n"


def write(results, out):
    out.mkdir(parents=True, exist_ok=True)
    write_csv(out / "overlap.csv", list(results[0]), map(rounded, results))
    (out / "overlap.md").write_text(page(results))


def add_arguments(parser):
    parser.add_argument("--points", default=",".join(POINTS), help="points, separated by commas; default: %(default)s")
    parser.add_argument("--steps", type=run.at_least(run.WARMUP + 1), default=7,
                        help="steps of a run, including two of warm-up")
    parser.add_argument("--rounds", type=run.at_least(1), default=2)
    parser.add_argument("--rate", type=float, help="rate of the main point's links in Mbit/s")
    parser.add_argument("--profile", type=Path, help="existing op times (lancet profile --out FILE)")
    parser.add_argument("--out", type=Path, default=run.ROOT / "docs/results")
    run.add_program(parser)


def main(options):
    points, lancet = run.chosen("--points", options.points, POINTS), run.program(options)
    os.environ["LANCET_CLUSTER"] = "bench"
    try:
        with tempfile.TemporaryDirectory() as folder:
            measure(points, Bench(lancet, Path(folder), options.steps, options.rounds), options)
    finally:
        cluster("down")


def measure(points, bench, options):
    if options.profile:
        shutil.copy(options.profile, bench.folder / f"profile-{json.loads(options.profile.read_text())['hosts']}.json")
    rate, hosts_up, results = options.rate, 0, []
    if rate is None:
        start_cluster(2)
        rate, hosts_up = bench.main_mbit(), 2
        run.log(f"main rate: {rate:.0f} Mbit/s")
    for name in points:
        if POINTS[name][0] != hosts_up:
            hosts_up = POINTS[name][0]
            start_cluster(hosts_up)
        results += bench.point(name, rate)
        write(results, options.out)
    print(page(results))
