"""Figure 14: predicted steps against those of real runs."""
import statistics

from bench import paper
from bench.plot import begin_at_zero, column, draw_interval, draw_paper_line, interval_of, save
from bench.points import group
from bench.table import markdown, number, percent, signed_percent

MARKS = {"measured": ("o", "#3b74d9"), "emulated": ("^", "#c0392b")}  # by network


def predicted(points):
    return [point for point in points if point["status"] == "ok" and point.get("predicted_ms")]


def error_of(row, compute_as_measured=False):
    """Returns the relative error of the predicted step. compute_as_measured: first replaces the predicted computation
    by the measured one, as if none of the difference were hidden under communication."""
    predicted_ms = row["predicted_ms"]
    if compute_as_measured:
        if row.get("predicted_compute_ms") is None:
            return None
        predicted_ms += row["compute_ms"] - row["predicted_compute_ms"]
    return predicted_ms / row["step_ms"] - 1


def spread_of(rows):
    """Returns the interval of runs of one plan, or None: of its columns, or from the shortest to the longest step."""
    known = [interval_of(row, "step_ms") or (row.get("least_step_ms"), row.get("most_step_ms")) for row in rows]
    ends = [end for pair in known for end in pair if end is not None]
    return (min(ends), max(ends)) if ends else None


def marks(rows):
    """Returns a (network, predicted, measured, (low, high)) for each plan: policies that are predicted alike run one
    schedule, so that their runs are one mark, at their mean."""
    alike = group([{**row, "plan": round(row["predicted_ms"], 2)} for row in rows],
                  "network", "hardware", "model", "gate", "plan")
    return [(kind, *(statistics.mean(row[name] for row in here) for name in ("predicted_ms", "step_ms")), spread_of(here))
            for (kind, *_), here in alike.items()]


def draw_marks(steps, residuals, found):
    for kind, (mark, colour) in MARKS.items():
        label = kind
        for _, ahead, measured, ends in (each for each in found if each[0] == kind):
            style = {"marker": mark, "color": colour, "markerfacecolor": "none", "markersize": 5, "linestyle": "none"}
            steps.plot(measured, ahead, label=label, **style)
            draw_interval(steps, measured, ahead, ends, vertical=False)
            residuals.plot(measured, 100 * (ahead / measured - 1), **style)
            errors_between = ends and tuple(100 * (ahead / end - 1) for end in reversed(ends))
            draw_interval(residuals, measured, 100 * (ahead / measured - 1), errors_between)
            label = None


def accuracy(points, path, title):
    rows = predicted(points)
    found = marks(rows)
    figure, (steps, residuals) = column([3.2, 2.2])
    draw_marks(steps, residuals, found)
    most = max((measured for _, _, measured, _ in found), default=1)
    steps.plot([0, most], [0, most], color="black", linewidth=0.8)
    begin_at_zero(steps)
    steps.set_ylabel("predicted step, ms")
    error = 100 * paper.PREDICTION_ERROR
    residuals.axhline(0, color="black", linewidth=0.8)
    draw_paper_line(residuals, error, f"paper: mean error {error:.2f}%, either way")
    draw_paper_line(residuals, -error, f"paper: mean error {error:.2f}%, either way")
    residuals.set_ylabel("predicted / step - 1, %")
    residuals.set_xlabel("step of the run, ms")
    for axis in (steps, residuals):
        axis.set_xlim(0)
    save(figure, path, f"{title} (a mark a plan; bars: shortest to longest step)")
    table = [[row["network"], row["hardware"], row["commit"], row["model"], row["gate"], row["policy"],
              number(row["step_ms"]), number(row["predicted_ms"]), signed_percent(error_of(row)),
              number(row.get("compute_ms")), number(row.get("predicted_compute_ms")),
              signed_percent(error_of(row, True))] for row in rows]
    return [*markdown(["runs", "number", "mean error", "worst", "mean, computation as measured", "worst"], means(points)), "",
            "Computation as measured: the predicted step, with the computation that the run had in place of the predicted",
            "one. This takes all of the difference to lengthen the step, though some of it may have been under",
            "communication.", "",
            *markdown(["runs", "where", "commit", "model", "gate", "schedule", "measured, ms", "predicted, ms",
                       "error", "computation, ms", "predicted, ms", "error, computation as measured"], table)]


def means(points):
    """Returns a line for each kind of run."""
    return [means_line(network, here) for (network,), here in group(predicted(points), "network").items()]


def means_line(network, rows):
    corrected = [error_of(row, True) for row in rows]
    return [network, len(rows), *mean_and_worst([abs(error_of(row)) for row in rows]),
            *mean_and_worst([abs(error) for error in corrected if error is not None])]


def mean_and_worst(values):
    return [percent(statistics.mean(values)), percent(max(values))] if values else ["", ""]


def errors(points):
    """Returns the sizes of the errors of all runs, by kind."""
    found = {}
    for row in predicted(points):
        found.setdefault(row["network"], []).append(abs(error_of(row)))
    return found
