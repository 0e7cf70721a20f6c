"""Tables of points that were measured in turns (policies.py): figures of their medians, Markdown and CSV."""
import functools
import statistics

from bench import run
from bench.policies import OURS, intervals, medians
from bench.table import markdown, number, percent, signed_percent, write_page

FIELDS = ["point", "what", "rate", "hosts", "policy", "parts", "ran", "step_ms", "least_ms", "most_ms", "compute_ms",
          "a2a_ms", "allreduce_ms", "communication_ms", "exposed_ms", "hidden_forward_pct", "hidden_backward_pct",
          "predicted_ms", "late_pct", "arena_mb", "steps", "rounds", "commit"]


def fastest(rows, names):
    return min((row for name, row in rows.items() if name in names), key=lambda row: row["step_ms"])


def ours_in(rows):
    return [name for name in OURS if name in rows]


def common_figures(rows, names):
    """Returns the figures that every point has of each of our policies. rows: medians by policy."""
    found, sequential = {}, next(iter(rows.values()))
    for ours in names:
        mine = rows[ours]
        found |= {f"sequential / {ours}, step": sequential["step_ms"] / mine["step_ms"],
                  f"{ours}, step / max(compute, communication)":
                      mine["step_ms"] / max(mine["compute_ms"], mine["communication_ms"]),
                  f"{ours} / sequential, arena": mine["arena_mb"] / sequential["arena_mb"]}
    return found


def share_of(rows):
    sequential = rows["sequential"]
    return sequential["a2a_ms"] / sequential["step_ms"]


def expert_figures(rows):
    """Returns the figures of a model with experts."""
    best = fastest(rows, [name for name in rows if name.startswith("tutel")])
    found = {"all-to-all / step, sequential": share_of(rows)}
    for ours in ours_in(rows):
        found |= {f"{ours} / best tutel, exposed": rows[ours]["exposed_ms"] / best["exposed_ms"],
                  f"best tutel / {ours}, step": best["step_ms"] / rows[ours]["step_ms"],
                  **common_figures(rows, [ours])}
    return found


def hidden_figures(rows, name, what):
    """Returns a policy's hidden share of communication in each pass."""
    return {f"{name}, hidden share of {what}, {which}": rows[name][f"hidden_{which}_pct"] / 100
            for which in ("forward", "backward")}


def tensor_figures(rows):
    """Returns the figures of a model whose products are split over the ranks. Ways without rings: all but
    collective_matmul and ours."""
    best = fastest(rows, [name for name in rows if name not in ("collective_matmul", *OURS)])
    found = {"gathers and scatters / step, sequential": share_of(rows)}
    for name in ("collective_matmul", *ours_in(rows)):
        found[f"best without rings / {name}, step"] = best["step_ms"] / rows[name]["step_ms"]
        found |= hidden_figures(rows, name, "gathers and scatters")
    return found | common_figures(rows, ours_in(rows))


def layer_figures(rows):
    """Returns the figures of one MoE layer."""
    found = {"all-to-all / step, sequential": share_of(rows)}
    for name in ("comet", *ours_in(rows)):
        found |= hidden_figures(rows, name, "all-to-alls")
    return found | common_figures(rows, ours_in(rows))


def figures_of(point, rows):
    """Returns the figures of a point. That over the best published way is there only where all of them have run."""
    found = point.figures(rows)
    if point.not_run():
        return found
    best = fastest(rows, [name for name in rows if name not in OURS])
    return found | {f"best single published way / {ours}, step": best["step_ms"] / rows[ours]["step_ms"]
                    for ours in ours_in(rows)}


def error_of(row):
    return row["predicted_ms"] / row["step_ms"] - 1


def csv_rows(measured):
    found = []
    for name, (point, about, rounds) in measured.items():
        for policy, row in medians(rounds).items():
            base, _, parts = policy.partition("-")
            found.append({"point": name, "what": point.what, "rate": about["rate"], "hosts": point.hosts,
                          "policy": base, "parts": parts or 0, "rounds": len(rounds), "commit": about["commit"], **row})
    return found


def policies_table(rows):
    head = ["policy", "parts", "ran", "step", "least", "most", "compute", "all-to-all", "all-reduce", "exposed",
            "hidden forward", "backward", "predicted", "error", "arena MB"]
    times = ("step_ms", "least_ms", "most_ms", "compute_ms", "a2a_ms", "allreduce_ms", "exposed_ms")
    lines = []
    for policy, row in rows.items():
        base, _, parts = policy.partition("-")
        lines.append([base, parts or 0, "" if row["ran"] in (policy, base) else row["ran"],
                      *(number(row[name], 0) for name in times),
                      *("" if row[f"hidden_{which}_pct"] is None else f"{row[f'hidden_{which}_pct']:.0f}%"
                        for which in ("forward", "backward")),
                      number(row["predicted_ms"], 0), signed_percent(error_of(row)), number(row["arena_mb"], 0)])
    return markdown(head, lines)


def figures_table(point, rounds):
    figures = functools.partial(figures_of, point)
    values, (what, ends) = figures(medians(rounds)), intervals(rounds, figures)
    return markdown(["figure", "", what],
                    [[name, number(value, 3), " to ".join(number(end, 3) for end in ends[name])]
                     for name, value in values.items()])


def point_lines(name, point, about, rounds):
    rows, not_run = medians(rounds), point.not_run()
    late = [row["late_pct"] for row in rows.values() if row.get("late_pct") is not None]
    return [f"## {name}: {point.what}", "",
            f"{point.hosts} hosts, {about['rate']}, chosen for {point.share.words()}. {len(rounds)} rounds of "
            f"{about['steps']} steps,",
            f"{about['device'] + ', ' if 'device' in about else ''}commit {about['commit']}"
            f"{f', messages late by at most {max(late):.1f}% of a step' if late else ''}.",
            *([f"Published ways that did not run here: {', '.join(not_run)}."] if not_run else []), "",
            *policies_table(rows), "", *figures_table(point, rounds), ""]


def write(results, head, path):
    """Writes path.md and path.csv of all points with rounds. head: the first lines."""
    measured = results.all()
    missing, rows = [name for name in results.points if name not in measured], csv_rows(measured)
    lines = [*head, *([f"Not measured: {', '.join(missing)}.", ""] if missing else [])]
    for name, found in measured.items():
        lines += point_lines(name, *found)
    mean = statistics.mean(abs(error_of(row)) for row in rows)
    write_page(path, [*lines, f"Mean error of the predicted step over all rows: {percent(mean)}."], rows, FIELDS)
    run.log(f"{path}.md: {len(measured)} points")
