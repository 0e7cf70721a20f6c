"""The figure of emulated.csv: predicted beside emulated steps, and the errors of the predictions below them."""
from bench.emulated import CASES
from bench.emulated_errors import error, is_late
from bench.plot import begin_at_zero, colours_of, column, draw_interval, joined, save
from bench.points import group


def same_plans(rows):
    """Returns tuples of the policies that ran the same plan in every case."""
    by_policy = {policy: tuple((row["case"], row["plan"]) for row in here)
                 for (policy,), here in group(rows, "policy").items()}
    found = {}
    for policy, plans in by_policy.items():
        found.setdefault(plans, []).append(policy)
    return [tuple(names) for names in found.values()]


def label_of(name):
    case = CASES[name]
    ranks = f",\n{case.ranks_a_host} ranks each" if case.ranks_a_host > 1 else ""
    return f"{case.hosts} hosts{ranks}" + (f",\n{case.routing}" if case.routing != "even" else "")


def draw_plan(steps, errors, x, row, colour, label):
    """Draws a prediction as a dash, the emulated step as a dot with its interval, and the error of the prediction. The
    dots of plans that were late are empty."""
    style = {"color": colour, "markersize": 2.6, **({"markerfacecolor": "none"} if is_late(row) else {})}
    steps.plot([x - 0.05, x + 0.01], [row["predicted_ms"]] * 2, color=colour, linewidth=2.2, label=label)
    steps.plot(x + 0.03, row["step_ms"], "o", **style)
    draw_interval(steps, x + 0.03, row["step_ms"], (row["least_ms"], row["most_ms"]))
    errors.plot(x, row["error_pct"], "o", **style)
    ends = tuple(error(row["predicted_ms"], row[name]) for name in ("most_ms", "least_ms"))
    draw_interval(errors, x, row["error_pct"], ends)


def draw_hardware(steps, errors, here, plans, colours):
    """Draws the cases of a hardware file, each a group of plans."""
    by_case = group(here, "case")
    for i, rows in enumerate(by_case.values()):
        by = {row["policy"]: row for row in rows}
        for n, names in enumerate(plans):
            if names[0] in by:
                x = i + (n - (len(plans) - 1) / 2) * 0.84 / len(plans)
                draw_plan(steps, errors, x, by[names[0]], colours[names[0]], joined(names) if i == 0 else None)
    for axis in (steps, errors):
        axis.set_xticks(range(len(by_case)), [label_of(case) for case, in by_case])
    begin_at_zero(steps)
    steps.set_title(f"{here[0]['hardware']} (dash: simulated, dot: emulated)")
    steps.set_ylabel("ms a step")
    errors.axhline(0, color="black", linewidth=0.8)
    errors.set_ylabel("predicted / step - 1, %")


def draw(rows, path):
    plans = same_plans(rows)
    colours = colours_of([names[0] for names in plans])
    by_hardware = list(group(rows, "hardware").values())
    figure, axes = column([2.2, 1.7] * len(by_hardware))
    for steps, errors, here in zip(axes[::2], axes[1::2], by_hardware):
        draw_hardware(steps, errors, here, plans, colours)
    save(figure, path, "Simulated and emulated steps, and the errors of the predictions (bars: shortest to longest round; "
                       "empty dots: late)")
