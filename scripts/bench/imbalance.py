"""Step time and gain over sequential by the imbalance of the routing: imbalance.md and imbalance.csv.

Simulated: `lancet plan` on emulated clusters, for even routing, zipf:S with several S, and the counts of recorded runs
(FOLDER/NAME.jsonl), with a capacity that drops tokens and with one that never does. For each routing, the
plan that was made for even routing is predicted under it, too: the difference to the plan made for this routing is what
overlap.replan can gain.

The recorded runs are trained where there are none (2 ranks, the data of scripts/quickstart.sh), and again by --record.
"""
import json

from bench import policies, run
from bench.policies import CONFIG
from bench.table import markdown, number, percent, write_page

EXPERTS = 16
MODEL = {"model.n_layer": 4, "train.micro_batch_size": 8, "train.seq_len": 512}
CLUSTERS = {"p3dn-v100": (8, 8), "p4de-a100": (16, 4)}  # hardware: ranks, hosts
CAPACITIES = {1.25: "capacity factor 1.25", EXPERTS: "no token dropped"}
# Of those that `lancet plan` predicts side by side, the ones that imbalance changes.
POLICIES = policies.without("collective_matmul", "neighbour_microbatches", "dw", "partition")
ZIPF = ["even", "zipf:0.25", "zipf:0.5", "zipf:0.75", "zipf:1", "zipf:1.25", "zipf:1.5"]
# name: settings of the recorded run
RUNS = {"balanced": ["model.router_aux_loss_coef=0.01"], "unbalanced": ["model.router_aux_loss_coef=0"]}
RECORDED_STEPS = 100
FIELDS = ["network", "hardware", "ranks", "capacity_factor", "routing", "fullest", "dropped_pct", "policy", "step_ms",
          "speed_up", "even_plan_ms", "replan_gain_pct"]


def recorded(folder, name):
    """The counts of a recorded run."""
    return folder.resolve() / f"{name}.jsonl"


def planned(lancet, hardware, routing, capacity, *options):
    """Returns the fullest rank's load, the dropped share, and the predicted milliseconds by policy."""
    ranks, hosts = CLUSTERS[hardware]
    # Scale and dilation change nothing where a step is only planned.
    settings = policies.settings_of({**MODEL, **policies.fields_of(hardware, 100, 12, routing),
                                     "model.experts_per_rank": EXPERTS // ranks, "model.capacity_factor": capacity})
    plan = json.loads(run.call([lancet, "plan", CONFIG, "--ranks", ranks, "--hosts", hosts, "--json",
                                *run.sets([*settings, "overlap.policy=lancet"]), *options]).out)
    return plan["fullest"], 100 * max(0, 1 - plan["kept"]), {row["policy"]: row["step_ms"] for row in plan["policies"]}


def simulated_rows(lancet, hardware, folder):
    """A row for each routing, capacity and policy."""
    rows, even = [], {capacity: folder / f"{hardware}-{capacity}.ir" for capacity in CAPACITIES}
    for name in [*ZIPF, *RUNS]:
        routing = f"trace:{recorded(folder, name)}" if name in RUNS else name
        run.log(f"{hardware}, {name}")
        found = {capacity: planned(lancet, hardware, routing, capacity, *(["--out", path] if name == "even" else []))
                 for capacity, path in even.items()}
        for capacity, (_, dropped, steps) in found.items():
            kept_plan = planned(lancet, hardware, routing, capacity, "--plan", even[capacity])[2]["lancet"]
            for policy in POLICIES:
                row = {"network": "simulated", "hardware": hardware, "ranks": CLUSTERS[hardware][0],
                       "capacity_factor": capacity, "routing": name, "fullest": found[EXPERTS][0],
                       "dropped_pct": dropped, "policy": policy, "step_ms": steps[policy],
                       "speed_up": steps["sequential"] / steps[policy]}
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
        recorded(folder, name).write_text("".join(
            json.dumps({key: each[key] for key in ("step", "layer_expert_tokens")}) + "\n" for each in records))


def table(rows):
    cells = []
    for name in [*ZIPF, *RUNS]:
        here = {row["policy"]: row for row in rows if row["routing"] == name}
        ours = here["lancet"]
        cells.append([name, number(ours["fullest"], 2), percent(ours["dropped_pct"] / 100),
                      *(number(here[policy]["step_ms"]) for policy in POLICIES), number(ours["speed_up"], 3),
                      number(ours["even_plan_ms"]), f"{round(ours['replan_gain_pct'], 1) + 0:.1f}%"])
    return markdown(["routing", "fullest", "dropped", *(f"`{policy}`" for policy in POLICIES), "speed-up",
                     "planned for even", "gain"], cells)


def page(rows):
    """Returns the lines of imbalance.md."""
    lines = [
        "# Imbalance", "",
        f"`python3 scripts/bench imbalance`, commit {run.program_commit()}. GPT2-S-MoE of 4 layers, two of them MoE",
        f"layers of {EXPERTS} experts. `fullest`: the tokens of the rank with the fullest experts over the mean, if",
        f"no token were dropped. Routing is synthetic (even, zipf:S) or of two recorded runs of {RECORDED_STEPS}",
        "steps: `balanced` with the balancing loss of configs/quickstart.json, `unbalanced` without.", "",
        "Simulated. `planned for even` is the prediction, under the routing of the row, of the `lancet` plan that was",
        "made for even routing, and `gain` by how much a plan for this routing is shorter.", ""]
    for hardware, (ranks, _) in CLUSTERS.items():
        for capacity, what in CAPACITIES.items():
            lines += [f"## {hardware}, {ranks} ranks, {what}", "", *table(
                [row for row in rows if (row["hardware"], row["capacity_factor"]) == (hardware, capacity)]), ""]
    return lines


def add_arguments(parser):
    parser.add_argument("--record", action="store_true", help="train the recorded runs again")
    run.add_options(parser, folder="imbalance")


def main(options):
    lancet, folder = run.program(options), options.folder
    folder.mkdir(parents=True, exist_ok=True)
    if options.record or not all(recorded(folder, name).is_file() for name in RUNS):
        record(lancet, folder)
    rows = [row for hardware in CLUSTERS for row in simulated_rows(lancet, hardware, folder)]
    write_page(options.out / "imbalance", page(rows), rows, FIELDS)
