"""Figures 2, 6, 11, 12, 13, 16 and padding: the steps of schedules side by side. Each function for a figure draws its
plot and returns the lines of its table."""
import functools
import textwrap

from bench import paper
from bench.plot import (COLOURS, Series, begin_at_zero, colours_of, column, draw_bars, draw_interval, draw_paper_line,
                        interval_of, joined, panels, same_schedules, same_series, save, title_with)
from bench.points import (BASELINES, OURS, PADDED, PAPER_BASELINES, SEQUENTIAL, UNBUCKETED, best_of_families, cluster_of,
                          cut_of, fits, group, step_of, system_of, title_of)
from bench.table import markdown, number


def cut_cell(ours, theirs):
    cut = cut_of(ours, theirs)
    return "" if cut is None else f"{cut:.0f}%"


def schedules_of(points):
    """Returns the schedules of the points: baselines, others in their order, ours."""
    found = list(dict.fromkeys(point["family"] for point in points))
    others = [name for name in found if name not in BASELINES and name not in OURS]
    return [name for name in [*BASELINES, *others, *OURS] if name in found]


def step_series(merged, places, colours):
    """Returns the bars of the steps. merged: tuples of schedules with the same steps; places: the best points by
    schedule, at each tick."""
    found = []
    for names in merged:
        here = [by[names[0]] for by in places]
        steps = [point["step_ms"] if fits(point) else None for point in here]
        found.append(Series(joined(names), colours[names[0]], steps, [interval_of(point, "step_ms") for point in here]))
    return found


# Figures 11 and 12

def iteration_row(point, lancet):
    gain = number(point["step_ms"] / lancet["step_ms"], 2) if fits(point) and fits(lancet) else ""
    return [title_of(point), point["ranks"], point["family"], step_of(point), number(point.get("exposed_ms")),
            point["k"], gain, point["network"]]


def draw_paper_steps(axis, x, by, claim):
    """Draws the best baseline's step divided by the paper's speed-ups. claim: (largest, mean)."""
    baselines = [by[name]["step_ms"] for name in PAPER_BASELINES if fits(by.get(name))]
    if not baselines or not claim:
        return
    most, mean = (min(baselines) / gain for gain in claim)
    ends = (x - 0.44, x + 0.44)
    draw_paper_line(axis, mean, "at the paper's mean speed-up", ends)
    draw_paper_line(axis, most, "at its largest speed-up", ends, linestyle="dotted")


def draw_floor(axis, x, by):
    """Draws what no order of the whole operations goes below, where the points hold it."""
    floors = [point["bound_ms"] for point in by.values() if point.get("bound_ms") is not None]
    if floors:
        axis.plot([x - 0.44, x + 0.44], [min(floors)] * 2, color="#1b7837", linewidth=1.4, gid="floor",
                  label="floor of whole operations")


def draw_iteration(axis, here, experiment, names, merged):
    """Draws bars of the schedules at each number of ranks; returns their table rows."""
    ranks = sorted({point["ranks"] for point in here})
    places = [best_of_families([point for point in here if point["ranks"] == count]) for count in ranks]
    draw_bars(axis, ranks, step_series(merged, places, colours_of(names)))
    for x, by in enumerate(places):
        draw_paper_steps(axis, x, by, paper.SPEED_UPS.get((experiment, here[0]["hardware"])))
        draw_floor(axis, x, by)
    axis.set_ylabel("ms a step")
    axis.set_xlabel("GPUs")
    return [iteration_row(by[name], by["Lancet"]) for by in places for name in names]


def iteration(points, path, title):
    names = schedules_of(points)
    draw = functools.partial(draw_iteration, experiment=path.stem, names=names, merged=same_schedules(points, names))
    return markdown(["model, cluster", "GPUs", "schedule", "step, ms", "exposed, ms", "k", "step / Lancet's",
                     "network"], panels(points, path, title, draw))


# Figure 2

BOUNDS = {"original": "#8c8c8c", "experts hidden": "#4c8bbe", "all-to-all hidden": "#5b9e4d"}


def bounds_of(point):
    """Returns the step and the two bounds of the paper's Fig. 2: the experts hidden under the all-to-all, and the whole
    all-to-all hidden."""
    step, a2a, experts = point["step_ms"], point["all_to_all_ms"], point["experts_ms"]
    return step, step - min(experts, a2a), max(step - a2a, point["compute_ms"])


def breakdown(points, path, title):
    whole = [point for point in points if point["policy"] == SEQUENTIAL and fits(point)]
    ratios = [point["all_to_all_ms"] / point["experts_ms"] for point in whole]
    ticks = [f"{point['model'][5]} {point['ranks']}" for point in whole]
    figure, (steps, ratio) = column([2.2, 1.6])
    unknown = [None] * len(whole)
    intervals = [[interval_of(point, "step_ms") for point in whole], unknown, unknown]
    draw_bars(steps, ticks, [Series(name, colour, list(values), ends) for (name, colour), values, ends in
                             zip(BOUNDS.items(), zip(*map(bounds_of, whole)), intervals)])
    steps.set_ylabel("ms a step")
    draw_bars(ratio, ticks, [Series("all-to-all / experts", COLOURS["FasterMoE"], ratios, unknown)])
    draw_paper_line(ratio, paper.ALL_TO_ALL_OVER_EXPERTS, f"paper: up to {paper.ALL_TO_ALL_OVER_EXPERTS}")
    ratio.set_ylabel("all-to-all / experts")
    ratio.set_xlabel("GPT2-(S|L)-MoE, GPUs")
    save(figure, path, title_with(points, title))
    rows = [[title_of(point), point["ranks"], number(point["step_ms"]), number(point["all_to_all_ms"]),
             number(point["experts_ms"]), number(at, 2), *map(number, bounds_of(point)[1:]), point["network"]]
            for point, at in zip(whole, ratios)]
    return markdown(["model, cluster", "GPUs", "original, ms", "all-to-all, ms", "experts, ms", "all-to-all / experts",
                     "experts hidden, ms", "all-to-all hidden, ms", "network"], rows)


# Figure 6

def reach_of(point):
    return -1 if point["policy"] == "whole" else int(point["policy"].split(",")[0].split()[1])


def range_row(point, reach, whole):
    name = "whole" if reach < 0 else reach
    if not fits(point):
        return [title_of(point), name, "", step_of(point), "", point["network"]]
    gain = number(whole["forward_ms"] / point["forward_ms"], 3) if whole else ""
    return [title_of(point), name, point["k"], number(point["forward_ms"], 2), gain, point["network"]]


def draw_range(axis, here):
    """Draws the forward pass by the reach of ranges, with the best k of each; returns the table rows."""
    best = {}
    for point in sorted(here, key=reach_of):
        held = best.get(reach_of(point))
        if held is None or not fits(held) or (fits(point) and point["forward_ms"] < held["forward_ms"]):
            best[reach_of(point)] = point
    shown = [(reach, point) for reach, point in best.items() if fits(point)]
    times = [point["forward_ms"] for _, point in shown]
    axis.plot(range(len(times)), times, "o-", color=COLOURS["Lancet"])
    ends = [interval_of(point, "forward_ms") for _, point in shown]
    if ends and all(ends):
        axis.fill_between(range(len(times)), *zip(*ends), color=COLOURS["Lancet"], alpha=0.2, linewidth=0,
                          gid="interval")
    begin_at_zero(axis)
    axis.set_xticks(range(len(times)), ["whole" if reach < 0 else reach for reach, _ in shown])
    axis.set_xlabel("groups before and after the MoE layer")
    axis.set_ylabel("forward pass, ms")
    whole = best[-1] if fits(best.get(-1)) else None
    return [range_row(point, reach, whole) for reach, point in best.items()]


def partition_range(points, path, title):
    return markdown(["model, cluster", "reach", "best k", "forward, ms", "speed-up", "network"],
                    panels(points, path, title, draw_range))


# Figures 13 and 16

PARTS = {"computation alone": "#5b9e4d", "overlapped": "#c9a227", "communication alone": "#c0392b"}


def parts_of(point):
    overlapped = point["communication_ms"] - point["exposed_ms"]
    return point["compute_ms"] - overlapped, overlapped, point["exposed_ms"]


def decomposition_row(by, name, here):
    if not fits(by.get(name)):
        k, step = (by[name]["k"], step_of(by[name])) if name in by else ("", "missing")
        return [title_of(here[0]), name, k, step, "", "", "", "", here[0]["network"]]
    return [title_of(by[name]), name, by[name]["k"], step_of(by[name]), *map(number, parts_of(by[name])),
            cut_cell(by.get("Lancet"), by[name]) if name != "Lancet" else "", by[name]["network"]]


def draw_parts(axis, y, point, cut):
    """Draws a step's bar. cut: the largest by which the paper's Lancet shortens its last part, or None."""
    base = 0
    for value, (label, colour) in zip(parts_of(point), PARTS.items()):
        axis.barh(y, value, left=base, color=colour, label=label)
        base += value
    draw_interval(axis, base, y, interval_of(point, "step_ms"), vertical=False)
    if cut:
        draw_paper_line(axis, base - point["exposed_ms"] * cut, "communication alone after the paper's largest cut",
                        (y - 0.45, y + 0.45), vertical=True)


def draw_decomposition(axis, here, merged):
    """Draws a bar for each schedule with times; returns the table rows, those of schedules without times first."""
    by = best_of_families(here)
    shown = [names for names in merged if fits(by.get(names[0]))]
    cuts = paper.CUTS.get(here[0]["hardware"], {})
    for y, names in enumerate(shown):
        draw_parts(axis, y, by[names[0]], cuts.get(system_of(names[0])))
    axis.set_yticks(range(len(shown)), map(joined, shown))
    axis.invert_yaxis()
    axis.set_xlabel("ms a step")
    names = [name for names in merged for name in names]
    return [decomposition_row(by, name, here) for name in sorted(names, key=lambda name: fits(by.get(name)))]


def decomposition(points, path, title):
    merged = same_schedules(points, schedules_of(points))
    return markdown(["model, cluster", "schedule", "k", "step, ms", "computation alone", "overlapped",
                     "communication alone", "cut by Lancet", "network"],
                    panels(points, path, title, functools.partial(draw_decomposition, merged=merged),
                           height=0.75 + 0.22 * len(merged)))


def gain_of(base, point):
    return base["step_ms"] / point["step_ms"] if fits(base) and fits(point) else None


def gain_interval(base, point):
    """Returns the least and the greatest gain among variations of the hardware's numbers, or None: there are none."""
    varied = [each.get("varied", {}) for each in (base, point)]
    gains = [gain_of(*(each[name] for each in varied)) for name in varied[0] if name in varied[1]]
    known = [gain for gain in gains if gain is not None]
    return (min(known), max(known)) if len(known) > 1 else None


def ablation(points, path, title):
    places = [best_of_families(here) for here in group(points, "hardware", "label", "model").values()]
    names = [name for name in schedules_of(points) if name != UNBUCKETED]
    gains = {name: [gain_of(by[UNBUCKETED], by[name]) for by in places] for name in names}
    colours = colours_of(names)
    figure, (axis,) = column([2.9])
    draw_bars(axis, [textwrap.fill(title_of(by[UNBUCKETED]), 12) for by in places],
              [Series(joined(same), colours[same[0]], gains[same[0]],
                      [gain_interval(by[UNBUCKETED], by[same[0]]) for by in places]) for same in same_series(gains)])
    axis.axhline(1, color="black", linewidth=0.8)
    axis.tick_params(axis="x", labelsize=7)
    axis.set_ylabel(f"speed-up over {UNBUCKETED}")
    save(figure, path, title_with(points, title))
    rows = [[title_of(by[name]), name, step_of(by[name]), number(gains[name][i], 3), by[name]["runs"],
             by[name]["network"]] for i, by in enumerate(places) for name in names]
    return markdown(["model, cluster", "schedule", "step, ms", f"speed-up over {UNBUCKETED}", "runs", "network"], rows)


# Padding and imbalance

COMPARED = [UNBUCKETED, UNBUCKETED + PADDED, "experts in parts", "experts in parts" + PADDED, *OURS]


def padding_row(label, point, whole):
    """whole: Lancet's point with the backward pass whole, with which the baselines are compared."""
    cells = [number(point["all_to_all_ms"]), number(point["exposed_ms"])] if fits(point) else ["", ""]
    compared = fits(point) and fits(whole) and point["family"] not in OURS
    cells += [number(point["step_ms"] / whole["step_ms"], 2), cut_cell(whole, point)] if compared else ["", ""]
    return [cluster_of(point), label, point["family"], step_of(point), *cells, point["network"]]


def draw_padding(axis, here, merged):
    """Draws bars of the schedules for each kind of routing; returns their table rows."""
    by_label = {label: best_of_families(points) for (label,), points in group(here, "label").items()}
    colours = {name: COLOURS[name.removesuffix(PADDED)] for name in COMPARED}
    series = step_series(merged, list(by_label.values()), colours)
    hatched = [one._replace(hatch="//") if names[0].endswith(PADDED) else one for one, names in zip(series, merged)]
    draw_bars(axis, [label.replace(", ", "\n").replace("capacity factor", "capacity") for label in by_label], hatched)
    axis.set_ylabel("ms a step")
    return [padding_row(label, by[name], by[OURS[0]]) for label, by in by_label.items() for name in COMPARED]


def padding(points, path, title):
    draw = functools.partial(draw_padding, merged=same_schedules(points, COMPARED))
    return markdown(["model, cluster", "routing", "schedule", "step, ms", "all-to-all, ms", "exposed, ms",
                     "step / that with backward whole", "exposed cut with backward whole", "network"],
                    panels(points, path, title, draw, ("hardware", "model")))
