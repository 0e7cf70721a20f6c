"""Losses of the routers at equal time: routers.md, routers.csv and routers.svg.

Trains variants of configs/quickstart.json on 2 ranks, on the data that scripts/quickstart.sh makes. First short runs, in
turns, measure a step's time. Then each variant trains for as many steps as fit the time that the first one takes for
--steps, with a learning rate that falls to its end over these steps, from several seeds.
"""
import statistics

from bench import loss_curves, run
from bench.loss_curves import WINDOW
from bench.table import markdown, number, percent, rounded, write_csv

VARIANTS = {  # name: fields
    "switch": ["model.router=switch"],
    "gshard": ["model.router=gshard", "model.num_experts_per_tok=2"],
    "top-2, dropless": ["model.router=top_k", "model.num_experts_per_tok=2", "model.norm_topk_prob=true",
                        "model.capacity_factor=null"],
    "expert choice *": ["model.router=expert_choice"],
    "shared expert + top-1": ["model.router=switch", "model.n_shared_experts=1"],
}
FIRST = next(iter(VARIANTS))


def steps_in(seconds, step_ms):
    return max(2 * WINDOW, int(1e3 * seconds / step_ms))


def spread(values):
    return f"{number(min(values), 3)} to {number(max(values), 3)}"


def page(curves, held_out, times, options, load):
    """Returns the text of routers.md. curves, held_out: lists by seed of each variant."""
    seconds = curves[FIRST][0][-1]["seconds"]
    cells = []
    for name, runs in curves.items():
        last = [rows[-1]["mean_loss"] for rows in runs]
        quarters = statistics.quantiles(times[name], n=4)
        cells.append([name, " ".join(f"`{field}`" for field in VARIANTS[name]), number(runs[0][0]["step_ms"]),
                      f"{number(quarters[0])} to {number(quarters[2])}", len(runs[0]),
                      percent(statistics.fmean(row["drop_pct"] for rows in runs for row in rows) / 100),
                      number(statistics.fmean(last), 3), spread(last), number(statistics.fmean(held_out[name]), 3),
                      spread(held_out[name])])
    return "\n".join([
        "# Routers at equal time", "",
        f"`python3 scripts/bench routers`, commit {run.commit()}. configs/quickstart.json on 2 ranks with the fields of the table,",
        f"each for {seconds:.0f} s of training: as many steps as fit, at least {2 * WINDOW}, from {options.seeds} seeds, with a",
        f"learning rate that falls to its end over these steps. {loss_curves.machine(load)}",
        f"A step's time is the median of {options.rounds} short runs that took turns, with its quartiles. Losses are means over",
        "the seeds, with the least and the greatest.", "",
        "![Loss by time and by steps for each router](routers.svg)", "",
        *markdown(["router", "fields", "step, ms", "quartiles", "steps", "dropped, mean", f"loss, last {WINDOW} steps",
                   "of the seeds", "held-out loss", "of the seeds"], cells), "",
        "\\* An expert that chooses its tokens looks at all tokens of a group, later ones too, so these losses are not those of a",
        "model that could generate text; they cannot be compared with the others.", "",
        "Differences smaller than the spread of the seeds say nothing. The table would be refuted by the same command with",
        "other seeds (`--first-seed`) that orders the routers otherwise by more than that spread."]) + "\n"


def add_arguments(parser):
    parser.add_argument("--steps", type=run.at_least(2 * WINDOW), default=200, help=f"of {FIRST}, whose time all others get")
    parser.add_argument("--seeds", type=run.at_least(1), default=2, help="runs of each router")
    parser.add_argument("--first-seed", type=run.at_least(0), default=1)
    loss_curves.add_arguments(parser)


def main(options):
    lancet = run.program(options)
    times, load = loss_curves.step_times(lancet, "routers", VARIANTS, options.rounds, options.timed)
    medians = {name: statistics.median(found) for name, found in times.items()}
    seconds = options.steps * medians[FIRST] / 1e3
    curves, held_out = {name: [] for name in VARIANTS}, {name: [] for name in VARIANTS}
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        for number_of, (name, settings) in enumerate(VARIANTS.items()):
            records, loss = loss_curves.curve(lancet, f"routers/{number_of}-{seed}", [*settings, f"train.seed={seed}"],
                                              steps_in(seconds, medians[name]))
            curves[name].append(loss_curves.rows_of(records, medians[name]))
            held_out[name].append(loss)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "routers.md").write_text(page(curves, held_out, times, options, load))
    write_csv(options.out / "routers.csv", ["router", "seed", *loss_curves.FIELDS],
              [rounded({"router": name, "seed": options.first_seed + i, **row}) for name, runs in curves.items()
               for i, rows in enumerate(runs) for row in rows])
    loss_curves.draw({name: runs[0] for name, runs in curves.items()}, options.out / "routers.svg",
                     f"Loss by router, seed {options.first_seed} (measured)")
