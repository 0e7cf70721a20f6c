"""Step time and gain over sequential by the imbalance of the routing: imbalance.md and imbalance.csv.

Simulated: `lancet plan` on emulated clusters, for even routing, zipf:S with several S, and the counts of recorded runs
(FOLDER/NAME.jsonl), with a capacity that drops tokens and with one that never does. For each routing, the
plan that was made for even routing is predicted under it, too: the difference to the plan made for this routing is what
overlap.replan can gain.

The recorded runs are trained where there are none (2 ranks, the data of scripts/quickstart.sh), and again by --record.
--emulate runs some of the points on an emulated cluster, which needs root, and a run whose routing shifts halfway with
overlap.replan and without; its results stay in runs/imbalance and are on the page of every later call. Those of the
same settings, rounds and commit of the program are not run again.
"""
import json
import statistics

from bench import policies, run
from bench.emulated import is_late, rows_of
from bench.policies import CONFIG, MOST_LATE
from bench.table import markdown, number, percent, signed_percent, write_page

EXPERTS = 16
MODEL = {"model.n_layer": 4, "train.micro_batch_size": 8, "train.seq_len": 512}
CLUSTERS = {"p3dn-v100": (8, 8), "p4de-a100": (16, 4)}  # hardware: ranks, hosts
CAPACITIES = {1.25: "capacity factor 1.25", EXPERTS: "no token dropped"}
# Of those that `lancet plan` predicts side by side, the ones that imbalance changes.
POLICIES = policies.without("collective_matmul", "neighbour_microbatches", "dw", "partition", "auto")
ZIPF = ["even", "zipf:0.25", "zipf:0.5", "zipf:0.75", "zipf:1", "zipf:1.25", "zipf:1.5"]
# name: settings of the recorded run
RUNS = {"balanced": ["model.router_aux_loss_coef=0.01"], "unbalanced": ["model.router_aux_loss_coef=0"]}
RECORDED_STEPS = 100
EMULATED = {"hosts": 4, "hardware": "p3dn-v100", "scale": 100, "dilation": 12}
EMULATED_ROUTINGS = ["even", "zipf:1"]
EMULATED_POLICIES = ["sequential", "lancet"]
EMULATED_STEPS = 2  # of a policy in a round
FIELDS = ["network", "hardware", "ranks", "capacity_factor", "routing", "fullest", "dropped_pct", "policy", "step_ms",
          "speed_up", "even_plan_ms", "replan_gain_pct", "late_pct", "commit"]
SHIFT = {"steps": 12, "interval": 2}  # of the run whose routing shifts after half of its steps


def settings_on(hardware, ranks, routing, capacity, scale=100, dilation=12):
    """Returns settings of a config. Scale and dilation change nothing where a step is only planned."""
    return policies.settings_of({**MODEL, **policies.fields_of(hardware, scale, dilation, routing),
                                 "model.experts_per_rank": EXPERTS // ranks, "model.capacity_factor": capacity})


def recorded(folder, name):
    """The counts of a recorded run."""
    return folder.resolve() / f"{name}.jsonl"


def planned(lancet, hardware, routing, capacity, *options):
    """Returns the fullest rank's load, the dropped share, and the predicted milliseconds by policy."""
    ranks, hosts = CLUSTERS[hardware]
    plan = json.loads(run.call([lancet, "plan", CONFIG, "--ranks", ranks, "--hosts", hosts, "--json", *run.sets(
        [*settings_on(hardware, ranks, routing, capacity), "overlap.policy=lancet"]), *options]).out)
    return plan["fullest"], 100 * max(0, 1 - plan["kept"]), {row["policy"]: row["step_ms"] for row in plan["policies"]}


def simulated_rows(lancet, hardware, folder):
    """A row for each routing, capacity and policy."""
    rows, even = [], {capacity: folder / f"{hardware}-{capacity}.ir" for capacity in CAPACITIES}
    for name, routing in {**{text: text for text in ZIPF}, **{run: f"trace:{recorded(folder, run)}" for run in RUNS}}.items():
        run.log(f"{hardware}, {name}")
        found = {capacity: planned(lancet, hardware, routing, capacity, *(["--out", path] if name == "even" else []))
                 for capacity, path in even.items()}
        for capacity, (_, dropped, steps) in found.items():
            kept_plan = planned(lancet, hardware, routing, capacity, "--plan", even[capacity])[2]["lancet"]
            for policy in POLICIES:
                row = {"network": "simulated", "hardware": hardware, "ranks": CLUSTERS[hardware][0],
                       "capacity_factor": capacity, "routing": name, "fullest": found[EXPERTS][0], "dropped_pct": dropped,
                       "policy": policy, "step_ms": steps[policy], "speed_up": steps["sequential"] / steps[policy]}
                if policy == "lancet":
                    row |= {"even_plan_ms": kept_plan, "replan_gain_pct": 100 * (1 - steps[policy] / kept_plan)}
                rows.append(row)
    return rows


def record(lancet, folder):
    """Trains the recorded runs and keeps the counts of their steps."""
    for name, settings in RUNS.items():
        run.log(f"recording {name}")
        records, _ = run.train(
            lancet, run.ROOT / "configs/quickstart.json", folder / name, RECORDED_STEPS,
            [f"model.experts_per_rank={EXPERTS // 2}", "train.eval_interval=0", "train.sample_tokens=0",
             "train.save_interval=0", "train.save_minutes=0", *settings], [run.ROOT / "scripts/mpirun.sh", 2])
        lines = [json.dumps({"step": each["step"], "layer_expert_tokens": each["layer_expert_tokens"]}) for each in records]
        recorded(folder, name).write_text("\n".join(lines) + "\n")


# On an emulated cluster

def emulated_settings(routing, capacity):
    return settings_on(EMULATED["hardware"], EMULATED["hosts"], routing, capacity, EMULATED["scale"], EMULATED["dilation"])


CASES = {f"emulated-{capacity}-{routing.replace(':', '-')}": (capacity, routing)
         for capacity in CAPACITIES for routing in EMULATED_ROUTINGS}
POINTS = {name: policies.Point(name, str(CONFIG), emulated_settings(routing, capacity), EMULATED["hosts"],
                               EMULATED_POLICIES) for name, (capacity, routing) in CASES.items()}


def emulate(lancet, folder, rounds):
    """Runs what has no result of these rounds and this commit."""
    commit, effort, results = run.program_commit(), policies.Effort(rounds, EMULATED_STEPS), policies.Results(folder, POINTS)
    names = [name for name in POINTS if results.start(name, effort)]
    shifted = is_shift_done(folder, rounds, commit)
    if not names and shifted:
        return
    with policies.Cluster("imbalance", *policies.links(**EMULATED)) as launcher:
        for name in names:
            policies.run_rounds(results, name, lancet, launcher, effort)
        if not shifted:
            shift(lancet, folder, launcher, rounds, commit)


def shift_of(folder):
    """Returns the result of the run whose routing shifts, or None."""
    path = folder / "shift.json"
    found = json.loads(path.read_text()) if path.is_file() else {}
    return found if found.get("settings") == {**EMULATED, **SHIFT} else None


def is_shift_done(folder, rounds, commit):
    found = shift_of(folder)
    return found is not None and (len(found["kept"]), found["commit"]) == (rounds, commit)


def shift(lancet, folder, launcher, rounds, commit):
    """Runs in turns with overlap.replan and without: first most tokens go to one host, then all have as many."""
    half, interval = SHIFT["steps"] // 2, SHIFT["interval"]
    skewed = [1000 // (i + 1) for i in range(EXPERTS)]
    lines = [json.dumps({"layer_expert_tokens": [counts] * 2}) for counts in [skewed] * half + [[1000] * EXPERTS] * half]
    trace = folder / "shift.jsonl"
    trace.write_text("\n".join(lines) + "\n")

    def side(replan):
        run.log(f"emulated, the routing shifts, overlap.replan={replan}, {EMULATED['hosts']} ranks")
        return run.train(lancet, CONFIG, folder / f"shift-{replan}", SHIFT["steps"], [
            *emulated_settings(f"trace:{trace}", EXPERTS), "overlap.policy=lancet", f"overlap.replan={replan}"],
            launcher)[0]

    found = run.in_turns(rounds, {0: lambda: side(0), interval: lambda: side(interval)})
    (folder / "shift.json").write_text(json.dumps({"commit": commit, "settings": {**EMULATED, **SHIFT},
                                                   "kept": found[0], "replanned": found[interval]}))


def emulated_rows(folder):
    rows = []
    for name, (_, about, rounds) in policies.Results(folder, POINTS).all().items():
        capacity, routing = CASES[name]
        shared = {"network": "emulated", "hardware": EMULATED["hardware"], "ranks": EMULATED["hosts"],
                  "capacity_factor": capacity, "routing": routing}
        rows += [{**row, **shared} for row in rows_of(name, about, policies.medians(rounds))]
    return rows


# The page

def shift_table(shifted):
    """Lines of the page on the run whose routing shifts: medians of the steps of each half, all rounds together."""
    half = SHIFT["steps"] // 2

    def median(rounds, first, last):
        return statistics.median(step["step_ms"] for steps in rounds for step in steps[first:last])

    settled = SHIFT["interval"]  # by then the new plan runs
    rows = []
    for what, first, last in (("skewed", settled, half), ("even", half + settled, SHIFT["steps"])):
        kept, new = median(shifted["kept"], first, last), median(shifted["replanned"], first, last)
        rows.append([what, number(kept), number(new), signed_percent(new / kept - 1)])
    notes = [f"after step {step['step']}: {step['replan']['from_ms']:.1f} ms predicted with the old plan, "
             f"{step['replan']['to_ms']:.1f} ms with the new one"
             for step in shifted["replanned"][0] if step["replan"]]
    late = max(step["late_pct"] for side in ("kept", "replanned") for steps in shifted[side] for step in steps)
    return [*markdown(["routing", "plan kept, ms", "overlap.replan, ms", ""], rows), "",
            f"Planned again {'; '.join(notes) or 'never'}. Messages were late by at most {late:.1f}% of a step."]


def emulated_cells(row):
    return [row["capacity_factor"], row["routing"], row["policy"], number(row["step_ms"]), number(row["predicted_ms"]),
            number(row["speed_up"], 3), number(row["predicted_speed_up"], 3),
            number(row["late_pct"]) + (", too late" if is_late(row) else ""), row["commit"]]


def simulated_table(rows):
    cells = []
    for name in [*ZIPF, *RUNS]:
        here = {row["policy"]: row for row in rows if row["routing"] == name}
        ours = here["lancet"]
        cells.append([name, number(ours["fullest"], 2), percent(ours["dropped_pct"] / 100),
                      *(number(here[policy]["step_ms"]) for policy in POLICIES), number(ours["speed_up"], 3),
                      number(ours["even_plan_ms"]), f"{round(ours['replan_gain_pct'], 1) + 0:.1f}%"])
    return markdown(["routing", "fullest", "dropped", *(f"`{policy}`" for policy in POLICIES), "speed-up", "planned for even",
                     "gain"], cells)


def page(simulated, emulated, shifted):
    """Returns the lines of imbalance.md."""
    lines = [
        "# Imbalance", "",
        f"`python3 scripts/bench imbalance`, commit {run.commit()}. GPT2-S-MoE of 4 layers, two of them MoE layers of "
        f"{EXPERTS}", "experts. `fullest`: the tokens of the rank with the fullest experts relative to the mean, if no token",
        "were dropped. Routing is synthetic (even and zipf:S) or the counts of two recorded runs of",
        f"{RECORDED_STEPS} steps: `balanced` with the balancing loss of configs/quickstart.json, `unbalanced` without.", "",
        "Simulated. `planned for even` is the prediction, under the routing of the row, of the `lancet` plan that was made",
        "for even routing, and `gain` by how much a plan for this routing is shorter.", ""]
    for hardware, (ranks, _) in CLUSTERS.items():
        for capacity, what in CAPACITIES.items():
            lines += [f"## {hardware}, {ranks} ranks, {what}", "", *simulated_table(
                [row for row in simulated if (row["hardware"], row["capacity_factor"]) == (hardware, capacity)]), ""]
    if emulated:
        lines += ["## Emulated", "",
                  f"{EMULATED['hosts']} hosts, {EMULATED['hardware']}, scale {EMULATED['scale']}, dilation "
                  f"{EMULATED['dilation']}, on {run.cpu()}; ms of the device's own time, medians of rounds. Rows whose messages",
                  f"were late by more than {MOST_LATE}% of a step are marked: the machine did not keep up.", "",
                  *markdown(["capacity factor", "routing", "policy", "step", "predicted", "speed-up", "predicted", "late %",
                             "commit"], map(emulated_cells, emulated)), ""]
    if shifted:
        lines += ["## A routing that shifts", "",
                  f"Emulated, the same cluster, nothing dropped: {SHIFT['steps'] // 2} steps in which the experts are chosen in",
                  f"proportion to 1/i, then as many of even routing, `lancet`, with `overlap.replan={SHIFT['interval']}` and",
                  "without. The first plan is made for the mean of both. Medians of the steps after the first comparison in each",
                  f"half, in ms of the device's own time, commit {shifted['commit']}.", "", *shift_table(shifted), ""]
    return lines


def add_arguments(parser):
    parser.add_argument("--record", action="store_true", help="train the recorded runs again")
    parser.add_argument("--emulate", action="store_true", help="also run points on an emulated cluster; needs root")
    run.add_options(parser, folder="imbalance", rounds=3)


def main(options):
    lancet, folder = run.program(options), options.folder
    folder.mkdir(parents=True, exist_ok=True)
    if options.record or not all(recorded(folder, name).is_file() for name in RUNS):
        record(lancet, folder)
    if options.emulate:
        emulate(lancet, folder, options.rounds)
    simulated, emulated = [row for hardware in CLUSTERS for row in simulated_rows(lancet, hardware, folder)], emulated_rows(folder)
    write_page(options.out / "imbalance", page(simulated, emulated, shift_of(folder)), simulated + emulated, FIELDS)
