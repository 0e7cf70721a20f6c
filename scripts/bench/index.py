"""Makes index.html, one page on which a person picks a cluster, model and policy and sees the step and its timeline.

It holds the points of DIR/points and DIR/emulated.csv, of each schedule the fastest number of parts. Simulated points
on 32 GPUs have the timeline of their plan. `lancet plan` makes these plans, unless DIR/index.html has them already, so
that an interrupted command continues. The page needs no network.
"""
import base64
import json
import re
import shlex
import zlib
from pathlib import Path

from bench import emulated, plans, run
from bench.points import best_of_families, fits, group, read

EXPERIMENTS = ["fig11", "fig12", "fig13", "fig16", "padding", "scale", "fig14"]  # those of whole steps
WITH_TIMELINE = 32  # ranks
PLACE = ("hardware", "label", "model", "gate", "ranks", "network")
KEPT = ["network", "hardware", "label", "model", "gate", "ranks", "family", "status", "runs", "k", "step_ms",
        "step_ms_low", "step_ms_high", "least_step_ms", "most_step_ms", "exposed_ms", "exposed_ms_low",
        "exposed_ms_high", "compute_ms", "all_to_all_ms", "all_reduce_ms", "communication_ms", "predicted_ms",
        "memory_gib", "bound_ms"]
PAGE = Path(__file__).parent / "page"
REPORT = run.ROOT / "src/report/page"  # charts and style, shared with the page of `lancet report`
STORED = re.compile(r'<script id="timelines" type="application/json">(.*?)</script>', re.DOTALL)


def emulated_points(path):
    """Returns the rows of emulated.csv as points."""
    found = []
    for row in emulated.read(path) if path.is_file() else []:
        case = emulated.CASES[row["case"]]
        label = f"{case.layers} layers" + (f", {case.ranks_a_host} ranks a host" if case.ranks_a_host > 1 else "")
        label += f", routing {case.routing}" if case.routing != "even" else ""
        found.append({"id": f"{row['case']} {row['policy']}", "network": "emulated device", "hardware": case.hardware,
                      "status": "ok", "label": label, "model": "GPT2-S-MoE", "gate": "switch",
                      "ranks": case.hosts * case.ranks_a_host, "hosts": case.hosts,
                      "policy": row["policy"], "family": row["policy"], "runs": row["ran"], "step_ms": row["step_ms"],
                      "least_step_ms": row["least_ms"], "most_step_ms": row["most_ms"],
                      "predicted_ms": row["predicted_ms"]})
    return found


def points_in(folder):
    """Returns the points of each place by schedule, without those that a figure shares with another one."""
    found = {}
    for name in EXPERIMENTS:
        if (folder / "points" / name / "points.jsonl").is_file():
            found.update({point["id"]: point for point in read(folder / "points" / name)})
    found.update({point["id"]: point for point in emulated_points(folder / "emulated.csv")})
    return [best_of_families(here) for here in group(found.values(), *PLACE).values()]


def wanted_plans(places):
    """Returns the points that the page has a timeline of."""
    return [point for by in places for point in by.values() if fits(point) and point["network"] == "simulated" and
            point["ranks"] == WITH_TIMELINE and point["experiment"] != "padding" and plans.command_of(point)]


def packed(timeline):
    """Returns the timeline as base64 of deflated JSON, a fifth of its text."""
    deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
    text = json.dumps(timeline, separators=(",", ":")).encode()
    return base64.b64encode(deflate.compress(text) + deflate.flush()).decode()


def timeline_of(point, lancet):
    """Returns a point's timeline, or None: it has no plan, or one of another length, since the planner has changed."""
    try:
        plan = plans.planned(lancet, plans.command_of(point))
    except run.Failed as error:
        run.log(f"no plan: {error}")
        return None
    if abs(plan.step_ms - point["step_ms"]) > 1e-3:
        run.log(f"{point['experiment']}, {point['policy']}: {plan.step_ms:.3f} ms a step, recorded were "
                f"{point['step_ms']}; `bench reproduce` simulates the points again")
        return None
    return packed(plan.timeline)


def stored_timelines(page):
    """Returns the timelines in a page that was made before, by the ids of their points."""
    found = STORED.search(page.read_text()) if page.is_file() else None
    return json.loads(found.group(1)) if found else {}


def shown(point):
    """Returns what the page shows of a point, with the command that plans it."""
    words = plans.command_of(point) if fits(point) and "experiment" in point else None
    command = {"command": shlex.join(["build/lancet", *words])} if words else {}
    return {"id": point["id"], **{key: point[key] for key in KEPT if point.get(key) is not None}, **command}


def inert(value):
    """Returns JSON that cannot end the script element around it."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c").replace("&", "\\u0026")


def page_of(places, timelines):
    points = [shown(point) for by in places for point in by.values()]
    parts = {"/*report.css*/": REPORT / "page.css", "/*page.css*/": PAGE / "index.css",
             "/*charts.js*/": REPORT / "charts.js", "/*page.js*/": PAGE / "index.js"}
    text = (PAGE / "index.html").read_text()
    for mark, path in parts.items():
        text = text.replace(mark, path.read_text())
    return text.replace("/*points*/", inert(points)).replace("/*timelines*/", inert(timelines))


def make(out, lancet):
    """Writes the page. Returns False if timelines are missing on it."""
    places, page = points_in(out), out / "index.html"
    wanted, known = wanted_plans(places), stored_timelines(page)
    found = {point["id"]: known[point["id"]] for point in wanted if point["id"] in known}  # an id changes with the plan
    missing = [point for point in wanted if point["id"] not in known]
    try:
        for number, point in enumerate(missing, 1):
            place = ", ".join(str(point[key]) for key in ("hardware", "model", "ranks", "policy"))
            run.log(f"plan {number} of {len(missing)}: {place}")
            if timeline := timeline_of(point, lancet):
                found[point["id"]] = timeline
    finally:  # an interrupted command continues from the page
        page.write_text(page_of(places, found))
    size = f"{page.stat().st_size / 1e6:.1f} MB"
    run.log(f"{page}: {size}, timelines: {len(found)} of {len(wanted)}; open it in a browser")
    return len(found) == len(wanted)


def add_arguments(parser):
    parser.add_argument("--out", type=Path, default=run.ROOT / "docs/results",
                        help="folder of the results; default: docs/results")
    run.add_program(parser)


def main(options):
    return 0 if make(options.out, run.program(options)) else 1
