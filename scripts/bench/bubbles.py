"""Simulates the schedules of pipeline stages, and writes bubbles.md and bubbles.csv.

A case is a model on a declared machine, cut into stages. `lancet plan` makes the plans of its stages under each
schedule, simulates them together, and says what no order of the same instructions goes below. Nothing is measured.
"""
import tempfile
from pathlib import Path

from bench import run
from bench.declared import Case, Plans
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


CASES = {f"{make.__name__}-{stages}": make(stages) for make in (dense, experts) for stages in (4, 8)}


def planned(plans, name, schedule):
    """Returns what `lancet plan` says of a case under a schedule."""
    found = plans.planned(CASES[name], CASES[name].hardware, "sequential",
                          *run.sets([f"train.pipeline_schedule={schedule}"]))["pipeline"]
    stages, step = found["stages"], found["step_ms"]
    return {"case": name, "stages": len(stages), "schedule": schedule, "found": found["schedule"], "step_ms": step,
            "bubble": sum(stage["bubble_ms"] for stage in stages) / (step * len(stages)),
            "bubble_ms": min(stage["bubble_ms"] for stage in stages),
            "arena_mb": max(stage["arena_bytes"] for stage in stages) / 1e6, "least_ms": found["least_ms"],
            "gap": step / found["least_ms"] - 1}


def micro_batches_of(chosen):
    return int(next(setting.split("=")[1] for setting in chosen.settings if "gradient_accumulation" in setting))


def page(rows, command):
    names = list(dict.fromkeys(row["case"] for row in rows))
    return [
        "# Bubbles of pipeline stages", "",
        f"`{command}`, commit {run.program_commit()}. **Simulated**: plans on declared machines, no run.",
        "[What the schedules do](../stages.md#schedules).", "",
        *markdown(["case", "what", "ranks", "hardware", "micro batches"],
                  [[name, CASES[name].what, CASES[name].ranks, CASES[name].hardware,
                    micro_batches_of(CASES[name])] for name in names]), "",
        "`bubble`: the share of a step in which the mean stage is idle. `arena`: of the stage that needs most.",
        "`no order below`: what no order of the same instructions on the same streams goes below;",
        "`gap`: how much longer the step is. An interleaved stage has two runs of blocks, so its instructions,",
        "messages and bound are others.", "",
        *markdown(["case", "schedule", "step ms", "bubble", "arena MB", "no order below ms", "gap"],
                  [[row["case"], row["found"], number(row["step_ms"]), percent(row["bubble"]),
                    number(row["arena_mb"], 0), number(row["least_ms"]), percent(row["gap"])] for row in rows])]


def add_arguments(parser):
    run.add_options(parser, "--cases", CASES)


def main(options):
    names, rows = run.chosen("--cases", options.cases, CASES), []
    with tempfile.TemporaryDirectory() as folder:
        plans = Plans(run.program(options), Path(folder))
        for name in names:
            for schedule in SCHEDULES:
                rows.append(planned(plans, name, schedule))
                run.log(f"{name}, {schedule}: {rows[-1]['step_ms']:.1f} ms, {percent(rows[-1]['gap'])} above the bound")
    write_page(options.out / "bubbles", page(rows, run.command("bubbles", options, cases=",".join(CASES))), rows)
