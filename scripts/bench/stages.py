"""Runs pipeline stages on emulated devices, like and unlike each other, and compares their steps with the prediction.

It needs root, since hosts are network namespaces (scripts/emulate-cluster.sh). Each case is a cluster of emulated
devices and a cut of the model, or a cluster file and what `lancet place --stages` makes of it; each runs under every
schedule. Ops take the times that the hardware files declare; planner, executor and messages are real. So the errors are
those of the simulator, the executor and the transport. A run of the same commit that is in the folder is not repeated.
The tables go to docs/results/stages.md.
"""
import json
import statistics
from typing import NamedTuple

from bench import policies, run
from bench.table import markdown, number, signed_percent

SCHEDULES = ("1f1b", "zero_bubble", "searched")
MODEL = {"model.vocab_size": 2048, "train.seq_len": 512, "train.micro_batch_size": 4,
         "train.gradient_accumulation_steps": 8}


class Case(NamedTuple):
    hardware: str
    hosts: int
    scale: int
    dilation: int
    fields: dict  # of the config
    ranks_a_host: int = 1

    def placed(self, *_):
        return self


class Placed(NamedTuple):
    """A cluster file that `lancet place --stages` answers for."""
    cluster: str
    scale: int
    dilation: int
    fields: dict

    def placed(self, lancet, schedule):
        settings = policies.settings_of({**MODEL, **self.fields, "train.pipeline_schedule": schedule})
        done = run.call([lancet, "place", policies.CONFIG, "--on", self.cluster, "--stages", "--json",
                         *run.sets(settings)])
        found = dict(setting.split("=", 1) for setting in json.loads(done.out)["set"])
        hardware = found.pop("emulated.hardware")
        return Case(hardware, int(found["mesh.stage"]), self.scale, self.dilation, {**self.fields, **found})


DENSE, EXPERTS = {"model.moe_layer_freq": 0, "model.n_layer": 8}, {"model.n_layer": 8, "model.experts_per_rank": 4}
CASES = {
    "like-2": Case("p3dn-v100", 2, 50, 24, {**DENSE, "mesh.stage": 2}),
    "like-4": Case("p3dn-v100", 4, 50, 24, {**DENSE, "mesh.stage": 4}),
    "like-4-experts": Case("p3dn-v100", 4, 50, 24, {**EXPERTS, "mesh.stage": 4}),
    "unlike-2": Case("p4de-a100;p3dn-v100", 2, 50, 24, {**EXPERTS, "mesh.stage": 2, "mesh.stage_blocks": "[5,3]"}),
    "unlike-4": Case("p3dn-v100;tesla-p100;p3dn-v100;tesla-p100", 4, 50, 24,
                     {**EXPERTS, "mesh.stage": 4, "mesh.stage_blocks": "[3,1,3,1]"}),
    "two-ranks-a-stage": Case("p3dn-v100", 4, 50, 24, {**EXPERTS, "mesh.stage": 2, "mesh.expert": 2}),
    "placed-memory-split": Placed("memory-split", 50, 24, {"model.n_layer": 8, "model.vocab_size": 8192}),
    "placed-moirai-inter": Placed("moirai-inter", 50, 24, EXPERTS),
}


class Ran(NamedTuple):
    case: Case
    predicted_ms: float
    step_ms: float
    late_pct: float

    @property
    def error(self):
        return self.predicted_ms / self.step_ms - 1


def run_case(name, schedule, lancet, folder, steps, commit):
    out = folder / f"{name}-{schedule}"
    stored = out / "result.json"
    if stored.is_file():
        found = json.loads(stored.read_text())
        if found["commit"] == commit and found["steps"] == steps:
            return Ran(Case(**found["case"]), *found["times"])
    run.log(f"case {name}, {schedule}")
    case = CASES[name].placed(lancet, schedule)
    fields = {**MODEL, **case.fields, **policies.fields_of(case.hardware, case.scale, case.dilation),
              "train.pipeline_schedule": schedule, "data.synthetic": "true", "train.save_minutes": 0,
              "train.sample_tokens": 0}
    fields.setdefault("mesh.expert", 1)
    with policies.Cluster("stages", *policies.links(case.hosts, case.hardware, case.scale, case.dilation,
                                                    case.ranks_a_host)) as launcher:
        records, _ = run.train(lancet, policies.CONFIG, out, steps + 1, policies.settings_of(fields), launcher)
    records = records[1:]
    times = [records[0]["predicted_ms"], *(run.median(records, field) for field in ("step_ms", "late_pct"))]
    stored.write_text(json.dumps({"commit": commit, "steps": steps, "case": case._asdict(), "times": times}))
    return Ran(case, *times)


def page(rows, steps, commit):
    errors = [abs(ran.error) for _, _, ran in rows if ran.late_pct <= policies.MOST_LATE]
    table = [[name, schedule, ran.case.fields.get("mesh.stage", 1),
              ran.case.fields.get("mesh.stage_blocks", "balanced"), number(ran.predicted_ms), number(ran.step_ms),
              signed_percent(ran.error), number(ran.late_pct)]
             for name, schedule, ran in rows]
    devices = {name: ", ".join(each.split(":")[0] for each in ran.case.hardware.split(";")) for name, _, ran in rows}
    about = [[name, devices[name], ran.case.scale, ran.case.dilation] for name, schedule, ran in rows
             if schedule == SCHEDULES[0]]
    return [
        "# Pipeline stages on emulated devices", "",
        f"`python3 scripts/bench stages` on {run.cpu()}, commit {commit}. Emulated devices on emulated links:",
        "messages, planner, executor and transport are real, ops take declared times. Times are the device's own",
        f"milliseconds; a step is the median of {steps} after one, and ends with the last stage. error: predicted",
        "over step, less 1; below 0, the step was longer than predicted.", "",
        f"- error: {100 * statistics.fmean(errors):.1f}% in the mean, {100 * max(errors):.1f}% at worst, {len(errors)} "
        "plans" if errors else "- no run was on time",
        f"- left out of these numbers: {len(rows) - len(errors)} plans, since messages were late by more than "
        f"{policies.MOST_LATE}% of a step", "", *markdown(["case", "devices", "scale", "dilation"], about), "",
        *markdown(["case", "schedule", "stages", "blocks", "predicted", "step", "error", "late %"], table)]


def add_arguments(parser):
    parser.add_argument("--schedules", default=",".join(SCHEDULES), help="default: %(default)s")
    run.add_options(parser, "--cases", CASES, "stages", steps=3)


def main(options):
    names = run.chosen("--cases", options.cases, CASES)
    schedules = run.chosen("--schedules", options.schedules, SCHEDULES)
    lancet, commit, rows = run.program(options), run.program_commit(), []
    options.out.mkdir(parents=True, exist_ok=True)
    for name in names:
        for schedule in schedules:
            ran = run_case(name, schedule, lancet, options.folder, options.steps, commit)
            run.log(f"{name}, {schedule}: predicted {ran.predicted_ms:.1f}, ran {ran.step_ms:.1f} ms, "
                    f"{signed_percent(ran.error)}, late {ran.late_pct:.1f}%")
            rows.append((name, schedule, ran))
            (options.out / "stages.md").write_text("\n".join(page(rows, options.steps, commit)) + "\n")
