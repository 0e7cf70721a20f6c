"""The figure of emulated.csv: predicted beside emulated steps, and the errors of the predictions below them."""
from bench.emulated import CASES
from bench.plot import begin_at_zero, colours_of, column, draw_interval, joined, same_series, save
from bench.points import group


def same_plans(rows):
    """Returns tuples of the policies that are predicted alike in every case: they run the same schedule."""
    by_case = [{row["policy"]: row["predicted_ms"] for row in here} for here in group(rows, "case").values()]
    names = dict.fromkeys(row["policy"] for row in rows)
    return same_series({name: [by.get(name) for by in by_case] for name in names})


def label_of(case):
    _, hosts, ranks_a_host, *_ = CASES[case]
    return f"{hosts} hosts" + (f",\n{ranks_a_host} ranks each" if ranks_a_host > 1 else "")


def draw_plan(steps, errors, x, row, colour, label):
    """Draws a prediction as a dash, the emulated step as a dot with its interval, and their difference."""
    steps.plot([x - 0.05, x + 0.01], [row["predicted_ms"]] * 2, color=colour, linewidth=2.2, label=label)
    steps.plot(x + 0.03, row["step_ms"], "o", color=colour, markersize=2.6)
    draw_interval(steps, x + 0.03, row["step_ms"], (row["least_ms"], row["most_ms"]))
    error, *ends = (100 * (row[name] / row["predicted_ms"] - 1) for name in ("step_ms", "least_ms", "most_ms"))
    errors.plot(x, error, "o", color=colour, markersize=2.6)
    draw_interval(errors, x, error, tuple(ends))


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
    errors.set_ylabel("error, %")


def draw(rows, path):
    plans = same_plans(rows)
    colours = colours_of([names[0] for names in plans])
    by_hardware = list(group(rows, "hardware").values())
    figure, axes = column([2.2, 1.7] * len(by_hardware))
    for steps, errors, here in zip(axes[::2], axes[1::2], by_hardware):
        draw_hardware(steps, errors, here, plans, colours)
    save(figure, path, "Simulated and emulated steps, and the errors between them (bars: shortest to longest round)")
