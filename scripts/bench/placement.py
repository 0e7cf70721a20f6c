"""Places models on clusters of unlike devices with every solver, and writes placement.md and placement.csv.

A point is a model, a cluster and a task: Moirai's models (Table IV) on its two device sets, for a forward pass and for
a training step, and a cluster where memory forces a split and one where a single device is best. Each solver of
`lancet place` answers it with and without coarsening. Times of ops are declared by hardware files; the seconds of the
solvers are measured on this machine. Answers of the same program are kept in points/placement.jsonl and not asked for
again.

--hour writes placement_hour.md instead: what the integer program has after its usual time and after an hour, of the
points that it does not end in the usual time.
"""
import json
from pathlib import Path
from typing import NamedTuple

from bench import run
from bench.table import markdown, number, rounded, write_csv

HOUR = 3600
LISTS = ("even", "heft", "etf", "msct", "getf")  # solvers without a time limit
SHOWN = {"even": "even", "heft": "HEFT", "etf": "ETF", "msct": "m-SCT", "getf": "GETF", "search": "search"}
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


# The integer program does not end within a minute here; the smallest graphs first.
HOURLY = [f"{name}-{task}" for task, names in (
    ("training", ("inter-S1", "inter-S2")), ("forward", ("inter-2.7B", "inter-13B")),
    ("training", ("inter-330M", "intra-330M", "intra-1.3B", "intra-2.7B"))) for name in names]


class Answers:
    """The answers of `lancet place`, each asked for once a program."""

    def __init__(self, lancet, path):
        self.lancet, self.path, self.commit = lancet, path, run.program_commit()
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        self.rows = [row for row in rows if row["commit"] == self.commit]
        path.write_text("".join(json.dumps(row) + "\n" for row in self.rows))

    def ask(self, name, coarsened, solver, limit=None):
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
    """Returns the answers to a point: by whether it is coarsened, by the solver and its limit."""
    limits = [(solver, None) for solver in LISTS] + [("search", options.search), ("milp", options.limit)]
    return {(coarsened, *solver): answers.ask(name, coarsened, *solver) for coarsened in (True, False)
            for solver in limits}


def ms(row, field="makespan_ms"):
    return number(row.get(field)) or "-"


def over_getf(found, coarsened, *solver):
    getf, ours = found[coarsened, "getf", None].get("makespan_ms"), found[coarsened, *solver].get("makespan_ms")
    return number(getf / ours, 2) if getf and ours else "-"


def milp_cells(row):
    """Returns the cells of an answer of the integer program: makespan, bound, how it ended."""
    return [ms(row), ms(row, "bound_ms"), row.get("end", "-")]


def fits(found):
    return any("makespan_ms" in row for row in found.values())


def size(found):
    rows = [next((row for (is_coarse, *_), row in found.items() if is_coarse == coarsened and "ops" in row), {})
            for coarsened in (True, False)]
    return [rows[0].get("ops", "-"), rows[0].get("solved_ops", "-")]


def makespans(results, options):
    """Returns a table of the coarsened graphs' makespans."""
    header = ["point", "ops", "coarse", *SHOWN.values(), f"milp, {options.limit} s", "its bound", "ended by"]
    rows = []
    for name, found in results.items():
        solvers = [ms(found[True, solver, None]) for solver in LISTS] + [ms(found[True, "search", options.search])]
        rows.append([name, *size(found), *solvers, *milp_cells(found[True, "milp", options.limit]),
                     over_getf(found, True, "search", options.search), over_getf(found, True, "milp", options.limit)])
    return markdown([*header, "GETF / search", "GETF / milp"], rows)


def seconds(results, options):
    """Returns a table of the solvers' seconds, with coarsening and without."""
    solvers = [*((solver, None) for solver in LISTS), ("search", options.search), ("milp", options.limit)]
    rows = [[name, "yes" if coarsened else "no", *(number(found[coarsened, *solver].get("seconds"), 2) or "-"
                                                   for solver in solvers)]
            for name, found in results.items() for coarsened in (True, False)]
    return markdown(["point", "coarsened", *SHOWN.values(), "milp"], rows)


def coarsening(results, options):
    """Returns a table of what coarsening does: makespans of the model's own ops, placed with it and without."""
    solvers = [("getf", None), ("search", options.search), ("milp", options.limit)]
    header = ["point", "ops", "coarse"]
    for solver, _ in solvers:
        header += [f"{SHOWN.get(solver, solver)}, coarsened", "each op"]
    rows = []
    for name, found in results.items():
        cells = [ms(found[coarsened, *solver], "op_by_op_ms") for solver in solvers for coarsened in (True, False)]
        rows.append([name, *size(found), *cells])
    return markdown(header, rows)


def page(results, command, options):
    placed = {name: found for name, found in results.items() if fits(found)}
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
        "placement in the memory. `search` takes " f"{options.search} s and ends earlier where it meets its bound. `milp`",
        "begins with a search of its own of 2 s; its bound is proven, and it ended by the proof, by the time, by CBC's",
        "tolerances or by a fault of CBC.",
        "[The solvers](../placement.md#solvers). Moirai reports up to 1.25 (inter) and 1.34 (intra) over GETF, forward,",
        "of graphs of measured ops.", ""]
    for task in TASKS:
        mine = {name: found for name, found in placed.items() if POINTS[name].task == task}
        if mine:
            lines += [f"## Makespan, {task}", "", *makespans(mine, options), ""]
    if placed:
        lines += ["## What coarsening does", "",
                  "Makespans of the model's own ops: of the placement of the coarsened graph, each op in the turn of its",
                  "chain, and of the graph placed op by op.", "", *coarsening(placed, options), "",
                  "## Planning time in seconds", "", *seconds(placed, options), ""]
    return "\n".join(lines + (["## What does not fit", "", *markdown(["point", "found"], errors), ""] if errors else []))


def after_an_hour(results, command, options):
    """Returns a page of what the integer program has found and proven after its usual time and after an hour."""
    header = ["point", "coarse", "search"]
    for limit in (f"{options.limit} s", "an hour"):
        header += [f"milp, {limit}", "its bound", "gap", "ended by"]
    rows = []
    for name, found in results.items():
        cells = []
        for limit in (options.limit, HOUR):
            row = found[True, "milp", limit]
            gap = f"{100 * (1 - row['bound_ms'] / row['makespan_ms']):.1f}%" if "makespan_ms" in row else "-"
            makespan, bound, end = milp_cells(row)
            cells += [makespan, bound, gap, end]
        rows.append([name, size(found)[1], ms(found[True, "search", options.search]), *cells])
    return "\n".join([
        "# Placement: the integer program after an hour", "",
        f"`{command}`,", f"commit {run.program_commit()}, on one core of an {run.cpu()}.",
        "Makespans of coarsened graphs in ms, **simulated**; points and solvers are those of [placement.md](placement.md),",
        "where the integer program does not end within a minute.", "", *markdown(header, rows), ""])


def ask_hour(answers, name, options):
    return {(True, *solver): answers.ask(name, True, *solver)
            for solver in (("search", options.search), ("milp", options.limit), ("milp", HOUR))}


def write(results, command, options):
    options.out.mkdir(parents=True, exist_ok=True)
    name, text = ("placement_hour", after_an_hour) if options.hour else ("placement", page)
    (options.out / f"{name}.md").write_text(text(results, command, options))
    rows = [{**row, "coarsened": int(row["coarsened"])} for found in results.values() for row in found.values()]
    write_csv(options.out / f"{name}.csv", FIELDS, map(rounded, rows))


def add_arguments(parser):
    parser.add_argument("--points", help="points, separated by commas; default: with --hour "
                        f"{','.join(HOURLY)}, else {','.join(POINTS)}")
    parser.add_argument("--limit", type=run.at_least(1), default=60, help="seconds of milp; default: %(default)s")
    parser.add_argument("--search", type=run.at_least(1), default=2, help="seconds of search; default: %(default)s")
    parser.add_argument("--hour", action="store_true", help="milp for an hour as well; writes placement_hour.md")
    parser.add_argument("--out", type=Path, default=run.ROOT / "docs/results")
    run.add_program(parser)


def main(options):
    usual, ask, kept = (HOURLY, ask_hour, "placement_hour") if options.hour else (list(POINTS), ask_all, "placement")
    names, results = run.chosen("--points", options.points or ",".join(usual), POINTS), {}
    command = "python3 scripts/bench placement" + ("" if names == usual else f" --points {options.points}")
    command += "" if options.limit == 60 else f" --limit {options.limit}"
    command += ("" if options.search == 2 else f" --search {options.search}") + (" --hour" if options.hour else "")
    answers = Answers(run.program(options), options.out / f"points/{kept}.jsonl")
    for name in names:
        results[name] = ask(answers, name, options)
        found = results[name][True, "search", options.search]
        run.log(f"{name}: " + (found.get("error") or f"{found['makespan_ms']:.1f} ms by search"))
        write(results, command, options)
    return 0
