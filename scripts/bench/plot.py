"""Plots as SVG files: the same points give the same file.

A figure is one column of panels, as wide as a column of a page, so that its letters can be read on a narrow screen. The
legend is above the panels. Bars and times of steps begin at zero. A value with an interval (columns NAME_low and
NAME_high) has it drawn; what the Lancet paper says is a dashed line with a label.
"""
import itertools
import textwrap
from typing import NamedTuple

import matplotlib

from bench.points import PANEL, best_of_families, group, networks, stand_ins, title_of
from bench.table import markdown

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402

plt.rcParams.update({"svg.hashsalt": "lancet", "font.size": 8.5, "axes.titlesize": 8.5, "legend.fontsize": 8.5,
                     "xtick.labelsize": 8, "ytick.labelsize": 8, "axes.spines.top": False, "axes.spines.right": False})
COLOURS = {"sequential, unbucketed": "#8c8c8c", "sequential": "#c9a227", "Tutel": "#4c8bbe", "FasterMoE": "#7d5ba6",
           "Lancet": "#c0392b", "Lancet, backward whole": "#e79a8f", "only dW": "#5b9e4d", "only partition": "#d98841",
           "FlowMoE": "#3a9d9d", "Lancet, paper": "#d98cb3", "experts in parts": "#4c8bbe"}
OTHER_COLOURS = ["#2a7f7f", "#a05195", "#665c3a", "#3f5fa8", "#b08ba0", "#7fa650", "#5c4a72", "#cc7a6b"]
INTERVAL = {"color": "#1a1a1a", "linewidth": 0.8, "capsize": 1.6}
SAME = 1e-3  # series that differ by less everywhere are one
WIDTH = 4.8  # inches
TITLE_COLUMNS = 58  # characters of a title's line
ROW = 0.19  # inches of a line of the title or of the legend


class Series(NamedTuple):
    """Bars of one schedule: a value (None: none) and an interval (None: unknown) at each tick."""
    name: str
    colour: str
    values: list
    intervals: list


def interval_of(point, name):
    """Returns the (low, high) of a point's value, or None."""
    low, high = (point.get(f"{name}_{end}") for end in ("low", "high"))
    return None if low is None or high is None else (low, high)


def colours_of(names):
    """Returns a colour for each name; those without one of their own get the others in turn."""
    others = itertools.cycle(OTHER_COLOURS)
    return {name: COLOURS.get(name) or next(others) for name in names}


def is_same(one, other):
    return one is other if None in (one, other) else abs(one - other) <= SAME * max(abs(one), abs(other))


def same_series(values):
    """Returns lists of the names whose values are the same everywhere. values: lists of numbers or None, by name."""
    found = []
    for name, mine in values.items():
        twins = next((names for names in found if all(map(is_same, values[names[0]], mine))), None)
        if twins is None:
            found.append(twins := [])
        twins.append(name)
    return found


def same_schedules(points, names):
    """Returns lists of the schedules with the same step in each group of points."""
    best = [best_of_families(here) for here in group(points, *PANEL, "gate", "ranks").values()]
    return same_series({name: [by[name].get("step_ms") if name in by else None for by in best] for name in names})


def draw_interval(axis, x, y, ends, vertical=True):
    """Draws an interval around a point. ends: (low, high) or None."""
    if ends is None:
        return
    value = y if vertical else x
    around = [[max(0, value - ends[0])], [max(0, ends[1] - value)]]
    axis.errorbar(x, y, fmt="none", **{"yerr" if vertical else "xerr": around}, **INTERVAL)[2][0].set_gid("interval")


def draw_bars(axis, ticks, series):
    """Draws the series' bars beside each other at each tick, from zero; a red cross where one has no value."""
    width = 0.84 / len(series)
    for n, one in enumerate(series):
        label = one.name
        for i, (value, ends) in enumerate(zip(one.values, one.intervals)):
            x = i + (n - (len(series) - 1) / 2) * width
            if value is None:
                axis.plot(x, 0, "rx")
                continue
            axis.bar(x, value, width * 0.92, color=one.colour, label=label)
            draw_interval(axis, x, value, ends)
            label = None
    axis.set_xticks(range(len(ticks)), ticks)


def begin_at_zero(axis):
    axis.set_ylim(0, 1.05 * axis.get_ylim()[1])


def draw_paper_line(axis, value, label, ends=None, vertical=False, linestyle="dashed"):
    """Draws a value of the paper's across the panel, or between two positions."""
    style = {"color": "#1a1a1a", "linewidth": 1.1, "linestyle": linestyle, "label": label, "gid": "paper"}
    if ends is None:
        axis.axhline(value, **style)
    elif vertical:
        axis.plot([value, value], ends, **style)
    else:
        axis.plot(ends, [value, value], **style)


def column(heights):
    """Returns a figure and its axes, one below the other. heights: of the panels, in inches."""
    figure, axes = plt.subplots(len(heights), 1, figsize=(WIDTH, sum(heights)), squeeze=False, height_ratios=heights)
    return figure, list(axes.flat)


def legend_entries(figure):
    """Returns the handles of all panels by their labels; schedules come before the lines of the paper."""
    handles = {}
    for axis in figure.axes:
        for handle, label in zip(*axis.get_legend_handles_labels()):
            handles.setdefault(label, handle)
    return dict(sorted(handles.items(), key=lambda item: getattr(item[1], "get_gid", lambda: None)() == "paper"))


def save(figure, path, title):
    """Adds the title and one legend of all panels above them, and writes the file."""
    lines, entries = textwrap.wrap(title, TITLE_COLUMNS), legend_entries(figure)
    longest = max(map(len, entries), default=0)
    columns = 1 if longest > 28 else 2 if longest > 17 else 3
    head, legend = ROW * len(lines) + 0.1, ROW * -(-len(entries) // columns) + 0.1
    height = figure.get_figheight() + head + legend
    figure.set_figheight(height)
    figure.suptitle("\n".join(lines), fontsize=9.5, y=1 - 0.05 / height, va="top", in_layout=False)
    figure.legend(entries.values(), entries.keys(), loc="upper center", ncol=columns, frameon=False, columnspacing=1.2,
                  handlelength=1.6, borderpad=0, bbox_to_anchor=(0.5, 1 - head / height))
    figure.tight_layout(rect=(0, 0, 1, 1 - (head + legend) / height))
    # No date and fixed ids: the same points give the same file.
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def title_with(points, title):
    """Returns the title, with the kind of the points and whose schedules those without a system's name are."""
    schedules = stand_ins(points)
    return f"{title}: {networks(points)}" + (f" ({schedules})" if schedules else "")


def panels(header, draw, height=lambda points: 2.1):
    """Returns the maker of a figure of panels, one for each cluster and model, and of their table. draw: draws a
    panel's points, of all points, on an axis, and returns their rows; height: of a panel in inches."""
    def make(points, path, title):
        groups, rows = list(group(points, *PANEL).values()), []
        figure, axes = column([height(points)] * len(groups))
        for axis, here in zip(axes, groups):
            rows += draw(axis, here, points)
            axis.set_title(f"{title_of(here[0])} ({networks(here)})")
        save(figure, path, title_with(points, title))
        return markdown(header, rows)
    return make
