"""Places models on clusters of unlike devices with every solver, and writes placement.md and placement.csv.

A point is a model, a cluster and a task: Moirai's models (Table IV) on its two device sets, for a forward pass and for
a training step, and a cluster where memory forces a split and one where a single device is best. Each solver of
`lancet place` answers it with and without coarsening. Times of ops are declared by hardware files; the seconds of the
solvers are measured on this machine. Answers of the same program are kept in points/placement.jsonl and not asked for
again.
"""
import json
from typing import NamedTuple

from bench import run
from bench.table import markdown, number, write_page

SHOWN = dict(even="even", heft="HEFT", etf="ETF", msct="m-SCT", getf="GETF", search="search", milp="milp")
TIMED = ("search", "milp")  # solvers with a time limit
TASKS = ("forward", "training")
FIELDS = ("point", "task", "coarsened", "solver", "limit_s", "ops", "solved_ops", "makespan_ms", "op_by_op_ms",
          "bound_ms", "seconds", "end", "error", "commit", "cpu")


class Point(NamedTuple):
    cluster: str
    model: str
    settings: list
    task: str

    def words(self):
        return [*run.sets(self.settings), *(["--training"] if self.task == "training" else [])]


def gpt3(layers, width, heads, dtype="fp32"):
    return ["model.moe_layer_freq=0", f"model.n_layer={layers}", f"model.n_embd={width}", f"model.n_head={heads}",
            "model.n_positions=2048", "train.seq_len=2048", "train.micro_batch_size=1", f"train.dtype={dtype}"]


CONFIG = "configs/gpt2-s-moe.json"
MODELS = {"330M": gpt3(24, 1024, 16), "1.3B": gpt3(32, 2048, 32), "2.7B": gpt3(32, 2560, 32),
          "13B": gpt3(40, 5120, 40, "bf16")}
POINTS = {f"{place}-{model}-{task}": Point(f"moirai-{place}", f"GPT-3 {model}", settings, task)
          for task in TASKS for place in ("inter", "intra") for model, settings in MODELS.items()}
POINTS.update({f"{cluster}-{task}": Point(cluster, "GPT2-S-MoE", [], task)
               for cluster in ("memory-split", "one-device") for task in TASKS})
# Of fewer layers: graphs of up to some 80 ops, whose optimum or bound the integer program proves.
POINTS.update({f"{name}-S{layers}-{task}": Point(cluster, "GPT2-S-MoE", [f"model.n_layer={layers}"], task)
               for name, cluster, task, layers in (("memory-split", "memory-split", "forward", 4),
                                                   ("memory-split", "memory-split", "forward", 8),
                                                   ("inter", "moirai-inter", "training", 1),
                                                   ("inter", "moirai-inter", "training", 2))})


class Answers:
    """The answers of `lancet place`, each asked for once a program."""

    def __init__(self, lancet, path):
        self.lancet, self.path, self.commit = lancet, path, run.program_commit()
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        self.rows = [row for row in rows if row["commit"] == self.commit]
        path.write_text("".join(json.dumps(row) + "\n" for row in self.rows))

    def ask(self, name, coarsened, solver, limit):
        key = {"point": name, "task": POINTS[name].task, "coarsened": coarsened, "solver": solver, "limit_s": limit}
        for row in self.rows:
            if all(row[field] == value for field, value in key.items()):
                return row
        row = {**key, **self.answer(POINTS[name], coarsened, solver, limit), "commit": self.commit, "cpu": run.cpu()}
        self.rows.append(row)
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        return row

    def answer(self, point, coarsened, solver, limit):
        words = ["--solver", solver, *([] if coarsened else ["--no-coarsen"]),
                 *([] if limit is None else ["--time-limit", limit])]
        try:
            done = run.call([self.lancet, "place", CONFIG, "--on", point.cluster, "--json", *point.words(), *words])
        except run.Failed as error:
            if "ended with 2:" not in str(error):
                raise
            return {"error": str(error).strip().splitlines()[-1]}
        found = json.loads(done.out)
        return {field: found[field] for field in FIELDS if field in found and field != "task"}


def ask_all(answers, name, options):
    """Returns the answers to a point: by whether it is coarsened and by the solver."""
    limits = {"search": options.search, "milp": options.limit}
    return {(coarsened, solver): answers.ask(name, coarsened, solver, limits.get(solver)) for coarsened in (True, False)
            for solver in SHOWN}


def ms(row, field="makespan_ms"):
    return number(row.get(field)) or "-"


def over_getf(found, solver):
    getf, ours = (found[True, name].get("makespan_ms") for name in ("getf", solver))
    return number(getf / ours, 2) if getf and ours else "-"


def size(found):
    coarse = next((row for (coarsened, _), row in found.items() if coarsened and "ops" in row), {})
    return [coarse.get("ops", "-"), coarse.get("solved_ops", "-")]


def makespans(results, options):
    """Returns a table of the coarsened graphs' makespans."""
    rows = []
    for name, found in results.items():
        milp = found[True, "milp"]
        rows.append([name, *size(found), *(ms(found[True, solver]) for solver in SHOWN), ms(milp, "bound_ms"),
                     milp.get("end", "-"), *(over_getf(found, solver) for solver in TIMED)])
    return markdown(["point", "ops", "coarse", *list(SHOWN.values())[:-1], f"milp, {options.limit} s", "its bound",
                     "ended by", "GETF / search", "GETF / milp"], rows)


def seconds(results):
    """Returns a table of the solvers' seconds, with coarsening and without."""
    return markdown(["point", "coarsened", *SHOWN.values()],
                    [[name, "yes" if coarsened else "no", *(number(found[coarsened, solver].get("seconds"), 2) or "-"
                                                           for solver in SHOWN)]
                     for name, found in results.items() for coarsened in (True, False)])


def coarsening(results):
    """Returns a table of what coarsening does: makespans of the model's own ops, placed with it and without."""
    solvers = ("getf", *TIMED)
    header = [cell for solver in solvers for cell in (f"{SHOWN[solver]}, coarsened", "each op")]
    return markdown(["point", "ops", "coarse", *header],
                    [[name, *size(found), *(ms(found[coarsened, solver], "op_by_op_ms") for solver in solvers
                                            for coarsened in (True, False))] for name, found in results.items()])


def page(results, command, options):
    placed = {name: found for name, found in results.items() if any("makespan_ms" in row for row in found.values())}
    errors = [[name, next(iter(found.values()))["error"].removeprefix("error: ")] for name, found in results.items()
              if name not in placed]
    lines = [
        "# Placement on unlike devices", "",
        f"`{command}`, commit {run.program_commit()}.",
        "Makespans are **simulated**: times of ops and flows are declared by [hardware and cluster",
        "files](../placement.md#a-cluster-file). Seconds are **measured**, of one core of an",
        f"{run.cpu()}; with a time limit, what is found depends on it, and on what else it runs.", "",
        "Points are Moirai's device sets (`inter`, `intra`) and models, GPT-3 with 2,048 tokens in fp32 (13B in bf16),",
        "and GPT2-S-MoE (`S4`: of 4 layers) where memory forces a split (`memory-split`) and where one device is best",
        "(`one-device`). Times are in ms, of the coarsened graph where nothing else is said; `-`: the solver finds no",
        f"placement in the memory. `search` takes {options.search} s and ends earlier where it meets its bound. `milp`",
        "begins with a search of its own of 2 s; its bound is proven, and it ended by the proof, by the time, by CBC's",
        "tolerances or by a fault of CBC.",
        "[The solvers](../placement.md#solvers). Moirai reports up to 1.25 (inter), 1.34 (intra) over GETF, forward,",
        "of graphs of measured ops.", ""]
    for task in TASKS:
        mine = {name: found for name, found in placed.items() if POINTS[name].task == task}
        if mine:
            lines += [f"## Makespan, {task}", "", *makespans(mine, options), ""]
    if placed:
        lines += ["## What coarsening does", "",
                  "Makespans of the model's own ops: of the coarsened graph's placement, each op in the turn of its",
                  "chain, and of the graph placed op by op.", "", *coarsening(placed), "",
                  "## Planning time in seconds", "", *seconds(placed), ""]
    return lines + (["## What does not fit", "", *markdown(["point", "found"], errors)] if errors else [])


def add_arguments(parser):
    parser.add_argument("--limit", type=run.at_least(1), default=60, help="seconds of milp; default: %(default)s")
    parser.add_argument("--search", type=run.at_least(1), default=2, help="seconds of search; default: %(default)s")
    run.add_options(parser, "--points", POINTS)


def main(options):
    names, results = run.chosen("--points", options.points, POINTS), {}
    command = run.command("placement", options, points=",".join(POINTS), limit=60, search=2)
    answers = Answers(run.program(options), options.out / "points/placement.jsonl")
    for name in names:
        results[name] = ask_all(answers, name, options)
        found = results[name][True, "search"]
        run.log(f"{name}: " + (found.get("error") or f"{found['makespan_ms']:.1f} ms by search"))
        rows = [{**row, "coarsened": int(row["coarsened"])} for each in results.values() for row in each.values()]
        write_page(options.out / "placement", page(results, command, options), rows, FIELDS)
