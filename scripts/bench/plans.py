"""Plans of simulated points: the command that makes one, and the timeline in what the command writes.

A timeline is what the page of `lancet report` draws (src/report/page/charts.js): names, kinds, and rows of events. An
event is four numbers: microseconds since the end of the event before it in its row, microseconds that it takes, and the
indices of its name and kind. Neighbouring updates of weights are one event, since there are hundreds of them.
"""
import re
import tempfile
from pathlib import Path
from typing import NamedTuple

from bench import run
from hardware_table import read_commented

EXPERIMENTS = run.ROOT / "configs/experiments"
STREAMS = ("compute", "expert", "reduce")
OP = re.compile(r"\[\d+\] (?:.* = )?(\w+)\(")
PLACE = re.compile(r"  # (\w+) (\w+)(?: ([^ |]+))?")
TIMES = re.compile(r"\| ms (\S+) (\S+)$")


class Planned(NamedTuple):
    step_ms: float
    timeline: dict


def grid_of(point):
    """Returns the grid of the point's experiment that it is a point of."""
    grids = read_commented(EXPERIMENTS / f"{point['experiment']}.json")["grids"]
    wanted = {"models": point["model"], "gates": point["gate"], "ranks": point["ranks"], "policies": point["policy"]}
    return next(grid for grid in grids if grid["on"] == point["hardware"] and grid.get("label", "") == point["label"]
                and all(value in grid[key] for key, value in wanted.items()))


def command_of(point):
    """Returns the words behind `lancet` that plan a point's step, or None: a plan knows neither imbalance nor padding.
    The last setting of a field wins, as in a sweep."""
    if point["network"] != "simulated" or point["imbalance"] != 1 or point["padded"]:
        return None
    settings = read_commented(EXPERIMENTS / "settings.json")
    model, policy = settings["models"][point["model"]], settings["policies"][point["policy"]]
    fields = [*model["set"], f"model.router={point['gate']}", *grid_of(point).get("set", []), *policy["set"]]
    return ["plan", model["config"], "--on", point["hardware"], "--ranks", str(point["ranks"]), *run.sets(fields)]


class Words:
    """Numbers words in the order in which they come."""

    def __init__(self):
        self.numbers = {}

    def __call__(self, word):
        return self.numbers.setdefault(word, len(self.numbers))


def timeline_of(plan):
    """Returns the timeline in the text of a plan."""
    names, kinds, rows, ends = Words(), Words(), {stream: [] for stream in STREAMS}, dict.fromkeys(STREAMS, 0)
    for line in plan.splitlines():
        times = TIMES.search(line)
        if not times:
            continue
        (op,), (stream, kind, label) = OP.match(line).groups(), PLACE.search(line).groups()
        begin, end = (round(1000 * float(time)) for time in times.groups())
        row, name = rows[stream], "updates" if kind == "update" else f"{op} {label}" if label else op
        event = [begin - ends[stream], end - begin, names(name), kinds(kind)]
        if kind == "update" and row[-2:] == event[2:]:
            row[-3] += event[0] + event[1]
        else:
            row += event
        ends[stream] = end
    return {"names": list(names.numbers), "kinds": list(kinds.numbers),
            "rows": [[stream, row] for stream, row in rows.items() if row]}


def planned(lancet, words):
    """Runs a command that plans a step."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.ir"
        run.call([lancet, *words, "--out", path])
        plan = path.read_text()
    step = re.search(r"predicted_ms=([^,}]+)", plan)
    return Planned(float(step.group(1)), timeline_of(plan))
