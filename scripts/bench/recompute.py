"""Simulates what it costs to keep half of the activations, and writes recompute.md and recompute.csv.

A case is a model on a declared machine, with a policy. `lancet plan` makes its step without a memory limit, and then
with the largest limit (train.memory_limit_mb, found by halving an interval) at which a rank keeps at most --share of
its activations for the backward pass. With --run, one rank trains configs/bench-overlap.json on this machine instead,
in turns with and without the limit, and the medians of its steps are printed.
"""
import statistics
import tempfile
from pathlib import Path

from bench import declared, run
from bench.declared import Case, Plans
from bench.table import markdown, number, signed_percent, write_page

HERE = "configs/bench-overlap.json"
CASES = {
    "dense": Case("dense GPT-2, one rank", "configs/bench-gpt2-s.json",
                  ["model.moe_layer_freq=0", "train.micro_batch_size=16"], 1, "p4de-a100"),
    **{name: declared.CASES[name] for name in ("fp32", "tensor-4", "v100-s", "a100-s", "h100-l")},
}
POLICIES = ("sequential", "dw", "lancet")
TRIES = 8  # halvings of the interval of limits


def read_plan(plan):
    """Returns what `lancet plan --json` says of a step within a limit."""
    memory, row = plan["memory"], next(row for row in plan["policies"] if row["policy"] == plan["chosen"])
    return {"mb": memory["bytes"] / 1e6, "all_mb": memory["all_kept_bytes"] / 1e6,
            "kept_mb": memory["activations_kept_bytes"] / 1e6, "activations_mb": memory["activations_bytes"] / 1e6,
            "ran": plan["chosen"], "ms": row["step_ms"], "again_ms": plan["recomputed_ms"],
            "beside_ms": plan["recomputed_beside_ms"]}


def within(plans, case, hardware, policy, limit):
    """Returns the plan within a limit in MB, or None if no plan is that small."""
    try:
        return read_plan(plans.planned(case, hardware, policy, *run.sets([f"train.memory_limit_mb={limit}"])))
    except run.Failed as error:
        if "train.memory_limit_mb: expected at least" in str(error):
            return None
        raise


def measured(plans, case, hardware, policy, share):
    """Returns the step without a limit, and that of the largest limit found that keeps at most a share."""
    free = within(plans, case, hardware, policy, 10**9)
    low, high, best = int(free["mb"] - free["activations_mb"]), int(free["mb"]) + 1, None
    for _ in range(TRIES):
        limit = (low + high) // 2
        found = within(plans, case, hardware, policy, max(1, limit))
        if found and found["kept_mb"] > share * found["activations_mb"]:
            high = limit
        else:
            best, low = {**found, "limit_mb": limit} if found else best, limit
        if high - low <= 1:
            break
    return free, best


def row_of(name, policy, free, found):
    return {"case": name, "policy": policy, "ran": found["ran"], "limit_mb": found["limit_mb"], "mb": found["mb"],
            "without_mb": free["mb"], "kept_share": found["kept_mb"] / found["activations_mb"],
            "activations_mb": found["activations_mb"], "step_ms": found["ms"], "without_ms": free["ms"],
            "added": found["ms"] / free["ms"] - 1, "again_ms": found["again_ms"], "beside_ms": found["beside_ms"]}


def page(rows, command, share):
    cells = [[row["case"], CASES[row["case"]].what, row["policy"], row["ran"], number(row["activations_mb"], 0),
              f"{100 * row['kept_share']:.0f}%", number(row["without_mb"], 0), number(row["mb"], 0),
              number(row["without_ms"]), number(row["step_ms"]), signed_percent(row["added"]),
              number(row["again_ms"]), number(row["beside_ms"])] for row in rows]
    return [
        "# What recomputation costs", "",
        f"`{command}`, commit {run.program_commit()}. **Simulated**: plans on declared machines, no run.",
        "[What a memory limit does](../memory.md).", "",
        f"The limit is the largest found at which a rank keeps at most {100 * share:.0f}% of its activations for the",
        "backward pass. `memory`: parameters, optimizer, inputs and arena of a rank, without a limit and with it.",
        "`again`: time of what is recomputed; `beside`: the part of it while a communication was under way.", "",
        *markdown(["case", "what", "policy", "ran", "activations MB", "kept", "memory MB", "with limit", "step ms",
                   "with limit", "added", "again ms", "beside ms"], cells)]


def simulate(options):
    rows, command = [], run.command("recompute", options, cases=",".join(CASES), share=0.5)
    with tempfile.TemporaryDirectory() as folder:
        plans = Plans(run.program(options), Path(folder))
        for name in run.chosen("--cases", options.cases, CASES):
            case = CASES[name]
            hardware = plans.hardware_at(case, plans.rate_of(case)) if case.share else case.hardware
            for policy in POLICIES if case.ranks > 1 else POLICIES[:1]:
                free, found = measured(plans, case, hardware, policy, options.share)
                if not found:
                    run.log(f"{name}, {policy}: no plan keeps as little")
                    continue
                rows.append(row_of(name, policy, free, found))
                run.log(f"{name}, {policy}: {signed_percent(rows[-1]['added'])} for "
                        f"{100 * rows[-1]['kept_share']:.0f}% of the activations")
                write_page(options.out / "recompute", page(rows, command, options.share), rows)


def measure(options):
    """Trains with and without a limit on this machine, one rank, in turns."""
    lancet, settings = run.program(options), ["overlap.policy=sequential"]
    with tempfile.TemporaryDirectory() as folder:
        case = Case("one rank, here", HERE, [], 1, "ethernet-10g-cpu")
        _, found = measured(Plans(lancet, Path(folder)), case, case.hardware, "sequential", options.share)
        if not found:
            raise run.Failed(f"{HERE}: no plan keeps {options.share} of the activations")
        limits = {"without": 0, "with": found["limit_mb"]}

        def side(limit):
            records, _ = run.train(lancet, HERE, Path(folder), options.steps,
                                   [*settings, f"train.memory_limit_mb={limit}"])
            return run.median(records[run.WARMUP:], "step_ms")

        steps = run.in_turns(options.run, {name: lambda limit=limit: side(limit) for name, limit in limits.items()})
    without, limited = (statistics.median_high(steps[name]) for name in ("without", "with"))
    print(f"{HERE}, one rank on {run.cpu()}: {without:.1f} ms a step; with train.memory_limit_mb={found['limit_mb']} "
          f"({found['kept_mb']:.1f} of {found['activations_mb']:.1f} MB of activations kept) {limited:.1f} ms, "
          f"{signed_percent(limited / without - 1)}")


def add_arguments(parser):
    parser.add_argument("--share", type=float, default=0.5, help="of the activations to keep; default: %(default)s")
    parser.add_argument("--run", type=int, default=0, metavar="ROUNDS", help="measure here, in as many rounds")
    parser.add_argument("--steps", type=int, default=8, help="of a measured run; default: %(default)s")
    run.add_options(parser, "--cases", CASES)


def main(options):
    if options.run > 0:
        measure(options)
    else:
        simulate(options)
