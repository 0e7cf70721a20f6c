"""Simulates the schedules of pipeline stages, and writes bubbles.md and bubbles.csv.

A case is a model on a declared machine, cut into stages. `lancet plan` makes the plans of its stages under each
schedule, simulates them together, and says what no order of the same instructions goes below. In the cases `equal` F, B
and W take about as long, there is no communication to speak of, and bubbles stand beside the formulas. Nothing is
measured.
"""
import tempfile
from pathlib import Path

from bench import run
from bench.bounds import Case, Plans, ops_in
from bench.table import markdown, number, percent, write_page

SCHEDULES = ("1f1b", "zero_bubble", "interleaved", "searched")
MODEL = "configs/gpt2-s-moe.json"


def case(what, hardware, stages, ranks, micro_batches, *settings):
    return Case(what, MODEL, [f"mesh.stage={stages}", f"train.gradient_accumulation_steps={micro_batches}",
                              "train.clip_grad=0", *settings], ranks, hardware)


def dense(stages):
    return case(f"dense, 24 blocks of 768, {stages} stages", "dgx-h100", stages, stages, 16, "model.moe_layer_freq=0",
                "model.n_layer=24")


def experts(stages):
    return case(f"experts in every other block, 24 blocks of 768, {stages} stages of 2 ranks", "p3dn-v100", stages,
                2 * stages, 8, "mesh.expert=2", "model.n_layer=24", "train.micro_batch_size=4")


def equal(stages):
    """Wide blocks of few short sequences, whose products are nearly all of the work."""
    return case(f"F, B and W about equal, 16 blocks of 4096, {stages} stages", "dgx-h100", stages, stages, 16,
                "model.moe_layer_freq=0", "model.n_layer=16", "model.n_embd=4096", "model.n_head=32",
                "model.n_positions=64", "train.seq_len=64", "train.micro_batch_size=64", "model.vocab_size=256",
                "train.dtype=fp32")


CASES = {f"{name}-{stages}": make(stages) for name, make in (("dense", dense), ("experts", experts), ("equal", equal))
         for stages in (4, 8)}
# Changes of the machine in the cases `equal`, so that messages and launches take next to no time.
FREE = {"device": {"launch_us": 0}, "node": {"link_gb_per_s": 1e6, "latency_us": 0}, "overlap": {"signal_us": 0}}
FREE_GBIT_PER_S = 400


def is_equal(name):
    return name.startswith("equal")


def passes_of(plan):
    """Returns the milliseconds of the roles in a stage's plan, and of the weight gradients beside all-to-alls."""
    sums, weights, all_to_alls = {}, [], []
    for stream, role, _, begin, end in ops_in(plan):
        if stream == "compute":
            sums[role] = sums.get(role, 0) + end - begin
        if stream == "expert" or role == "dw" and stream == "compute":
            (all_to_alls if stream == "expert" else weights).append((begin, end))
    beside = sum(max(0, min(end, other_end) - max(begin, other_begin)) for begin, end in weights
                 for other_begin, other_end in all_to_alls)
    return sums, beside


def planned(plans, chosen, hardware, schedule):
    """Returns what `lancet plan` says of a case under a schedule."""
    out = plans.folder / "plan.ir"
    found = plans.planned(chosen, hardware, "sequential", "--out", out,
                          *run.sets([f"train.pipeline_schedule={schedule}"]))["pipeline"]
    stages, step = found["stages"], found["step_ms"]
    files = [out, *(out.with_suffix(f".stage{stage}.ir") for stage in range(1, len(stages)))]
    passes = [passes_of(path.read_text()) for path in files]
    return {"stages": len(stages), "schedule": schedule, "found": found["schedule"], "step_ms": step,
            "bubble": sum(stage["bubble_ms"] for stage in stages) / (step * len(stages)),
            "bubble_ms": min(stage["bubble_ms"] for stage in stages),
            "arena_mb": max(stage["arena_bytes"] for stage in stages) / 1e6,
            "w_ms": sum(sums.get("dw", 0) for sums, _ in passes), "w_beside_ms": sum(beside for _, beside in passes),
            "least_ms": found["least_ms"], "gap": step / found["least_ms"] - 1, "passes": passes}


def formula_of(found, micro_batches):
    """Returns the formula of the schedule's bubble in ms for the mean F, B and W of a stage and micro batch, or None."""
    def mean(role):
        return sum(sums.get(role, 0) for sums, _ in found["passes"]) / (found["stages"] * micro_batches)
    f, b, w, others = mean("forward"), mean("dx"), mean("dw"), found["stages"] - 1
    return {"1f1b": others * (f + b), "zero_bubble": others * (f + b - w), "interleaved": others * (f + b) / 2,
            "searched": others * (f + b - w)}[found["schedule"]]


def micro_batches_of(chosen):
    return int(next(setting.split("=")[1] for setting in chosen.settings if "gradient_accumulation" in setting))


def page(rows, command):
    names = list(dict.fromkeys(row["case"] for row in rows))
    return [
        "# Bubbles of pipeline stages", "",
        f"`{command}`, commit {run.program_commit()}. **Simulated**: plans on declared machines, no run.",
        "[What the schedules do](../stages.md#schedules).", "",
        *markdown(["case", "what", "ranks", "hardware", "micro batches"],
                  [[name, CASES[name].what, CASES[name].ranks, CASES[name].hardware + ", free" * is_equal(name),
                    micro_batches_of(CASES[name])] for name in names]), "",
        "`free`: launches, signals and the latency within a node take no time, its links have 10^6 GB/s, the network's",
        f"interfaces {FREE_GBIT_PER_S} Gbit/s each.", "",
        "`bubble`: the share of the step in which the mean stage computes nothing. `W beside all-to-alls`: the share of",
        "the weight gradients that is computed while an all-to-all of the same stage is under way. `arena`: of the stage",
        "that needs most. `no order below`: what no order of the same instructions on the same streams goes below;",
        "`gap`: how much longer the step is. An interleaved stage has two runs of blocks, so its instructions, messages",
        "and bound are others.", "",
        *markdown(["case", "schedule", "step ms", "bubble", "W beside all-to-alls", "arena MB", "no order below ms", "gap"],
                  [[row["case"], row["found"], number(row["step_ms"]), percent(row["bubble"]),
                    percent(row["w_beside_ms"] / row["w_ms"]), number(row["arena_mb"], 0), number(row["least_ms"]),
                    percent(row["gap"])] for row in rows]), "",
        "## Beside the formulas", "",
        "Bubbles of the stage that waits least, and the formulas for the mean F, B and W of a stage and micro batch:",
        "(p - 1)(F + B) of `1f1b`, half of that with two chunks a stage, (p - 1)(F + B - W) of `zero_bubble` and",
        "`searched`.", "",
        *markdown(["case", "schedule", "formula ms", "found ms", "found / formula"],
                  [[row["case"], row["schedule"], number(row["formula_ms"], 2), number(row["bubble_ms"], 2),
                    number(row["bubble_ms"] / row["formula_ms"], 2)] for row in rows if row["formula_ms"]])]


def add_arguments(parser):
    run.add_options(parser, "--cases", CASES)


def main(options):
    names, rows = run.chosen("--cases", options.cases, CASES), []
    with tempfile.TemporaryDirectory() as folder:
        plans = Plans(run.program(options), Path(folder))
        for name in names:
            chosen = CASES[name]
            plans.changes = FREE if is_equal(name) else {}
            hardware = plans.hardware_at(chosen, FREE_GBIT_PER_S) if is_equal(name) else chosen.hardware
            for schedule in SCHEDULES:
                found = {"case": name, **planned(plans, chosen, hardware, schedule)}
                found["formula_ms"] = formula_of(found, micro_batches_of(chosen)) if is_equal(name) else None
                found.pop("passes")
                rows.append(found)
                run.log(f"{name}, {schedule}: {found['step_ms']:.1f} ms, {percent(found['gap'])} above the bound")
    write_page(options.out / "bubbles", page(rows, run.command("bubbles", options, cases=",".join(CASES))), rows)
