"""Figures 2, 6, 11, 12, 13, 16 and padding: the steps of schedules side by side. Each function for a figure draws its
plot and returns the lines of its table."""
from bench.plot import COLOURS, panels, plt, save
from bench.points import (ABLATION, BASELINES, OURS, PAPER, best_of_families, cluster_of, cut_of, fits, group, networks,
                          step_of, title_of)
from bench.table import markdown, number

SCHEDULES = [*BASELINES, PAPER, *OURS]


def cut_cell(ours, theirs):
    cut = cut_of(ours, theirs)
    return "" if cut is None else f"{cut:.0f}%"


# Figures 11 and 12

def iteration_row(point, lancet):
    gain = number(point["step_ms"] / lancet["step_ms"], 2) if fits(point) and fits(lancet) else ""
    return [title_of(point), point["ranks"], point["family"], step_of(point), number(point.get("exposed_ms")), point["k"], gain,
            point["network"]]


def draw_iteration(axis, here):
    """Draws bars of the schedules at each number of ranks; returns their table rows."""
    rows = []
    names = [name for name in SCHEDULES if any(point["family"] == name for point in here)]
    ranks = sorted({point["ranks"] for point in here})
    for r, count in enumerate(ranks):
        by = best_of_families([point for point in here if point["ranks"] == count])
        for n, name in enumerate(names):
            x = r + (n - (len(names) - 1) / 2) * 0.14
            if fits(by[name]):
                axis.bar(x, by[name]["step_ms"], 0.13, color=COLOURS[name], label=name if r == 0 else None)
            else:
                axis.plot(x, 0, "rx")
            rows.append(iteration_row(by[name], by["Lancet"]))
    axis.set_xticks(range(len(ranks)), ranks)
    axis.set_ylabel("ms a step")
    axis.set_xlabel("GPUs")
    return rows


def iteration(points, path, title):
    return markdown(["model, cluster", "GPUs", "schedule", "step, ms", "exposed, ms", "k", "step / Lancet's", "network"],
                    panels(points, path, title, draw_iteration, fontsize=7, ncol=2))


# Figure 2

def breakdown(points, path, title):
    rows, bars = [], []
    for point in points:
        if point["policy"] != "DeepSpeed" or point["status"] != "ok":
            continue
        step, a2a, experts = point["step_ms"], point["all_to_all_ms"], point["experts_ms"]
        # The two bounds of the paper's Fig. 2: the experts hidden under the all-to-all, and the whole all-to-all
        # hidden.
        current, ideal = step - min(experts, a2a), max(step - a2a, point["compute_ms"])
        rows.append([title_of(point), point["ranks"], number(step), number(a2a), number(experts), number(a2a / experts, 2),
                     number(current), number(ideal), point["network"]])
        bars.append((f"{point['model'][5]} {point['ranks']}", step, current, ideal))
    figure, axis = plt.subplots(figsize=(8, 3.4))
    for i, (_, *values) in enumerate(bars):
        for j, (value, colour) in enumerate(zip(values, ("#8c8c8c", "#4c8bbe", "#5b9e4d"))):
            axis.bar(i + (j - 1) * 0.27, value, 0.25, color=colour,
                     label=("original", "experts hidden", "all-to-all hidden")[j] if i == 0 else None)
    axis.set_xticks(range(len(bars)), [bar[0] for bar in bars])
    axis.set_xlabel("GPT2-(S|L)-MoE, GPUs")
    axis.set_ylabel("ms a step")
    axis.legend(fontsize=8)
    axis.set_title(f"{title}: {networks(points)}", fontsize=10)
    save(figure, path)
    return markdown(["model, cluster", "GPUs", "original, ms", "all-to-all, ms", "experts, ms", "all-to-all / experts",
                     "experts hidden, ms", "all-to-all hidden, ms", "network"], rows)


# Figure 6

def reach_of(point):
    return -1 if point["policy"] == "whole" else int(point["policy"].split(",")[0].split()[1])


def draw_range(axis, here):
    """Draws the forward pass by the reach of ranges, with the best k of each; returns the table rows."""
    rows, shown, times, whole = [], [], [], None
    for reach in sorted({reach_of(point) for point in here}):
        of_reach = [point for point in here if reach_of(point) == reach]
        name = "whole" if reach < 0 else reach
        best = min(filter(fits, of_reach), key=lambda point: point["forward_ms"], default=None)
        if best is None:
            rows.append([title_of(here[0]), name, "", step_of(of_reach[0]), "", here[0]["network"]])
            continue
        shown.append("orig." if reach < 0 else reach)
        times.append(best["forward_ms"])
        whole = best["forward_ms"] if reach < 0 else whole
        rows.append([title_of(best), name, best["k"], number(best["forward_ms"], 2),
                     number(whole / best["forward_ms"], 3) if whole else "", best["network"]])
    axis.plot(range(len(times)), times, "o-", color=COLOURS["Lancet"])
    axis.set_xticks(range(len(times)), shown)
    axis.set_xlabel("groups before and after the MoE layer")
    axis.set_ylabel("forward pass, ms")
    return rows


def partition_range(points, path, title):
    return markdown(["model, cluster", "reach", "best k", "forward, ms", "speed-up", "network"],
                    panels(points, path, title, draw_range, size=(10, 3.4)))


# Figures 13 and 16

def parts_of(point):
    overlapped = point["communication_ms"] - point["exposed_ms"]
    return point["compute_ms"] - overlapped, overlapped, point["exposed_ms"]


def draw_decomposition(axis, here):
    """Draws a bar for each schedule with times; returns the table rows, those of schedules without times first."""
    by, rows = best_of_families(here), []
    names = [name for name in SCHEDULES if fits(by.get(name))]
    for name in (name for name in SCHEDULES if name not in names):
        k, step = (by[name]["k"], step_of(by[name])) if name in by else ("", "missing")
        rows.append([title_of(here[0]), name, k, step, "", "", "", "", here[0]["network"]])
    for i, name in enumerate(names):
        base = 0
        for value, colour, label in zip(parts_of(by[name]), ("#5b9e4d", "#c9a227", "#c0392b"),
                                        ("computation alone", "overlapped", "communication alone")):
            axis.barh(i, value, left=base, color=colour, label=label if i == 0 else None)
            base += value
        rows.append([title_of(by[name]), name, by[name]["k"], step_of(by[name]), *map(number, parts_of(by[name])),
                     cut_cell(by.get("Lancet"), by[name]) if name != "Lancet" else "", by[name]["network"]])
    axis.set_yticks(range(len(names)), names)
    axis.set_xlabel("ms a step")
    return rows


def decomposition(points, path, title):
    return markdown(["model, cluster", "schedule", "k", "step, ms", "computation alone", "overlapped",
                     "communication alone", "cut by Lancet", "network"],
                    panels(points, path, title, draw_decomposition, size=(10, 3), fontsize=7))


def ablation(points, path, title):
    groups = group(points, "hardware", "label", "model").values()
    names = ["DeepSpeed", "only dW", "only partition", *ABLATION]
    figure, axis = plt.subplots(figsize=(10, 3.6))
    rows = []
    for i, here in enumerate(groups):
        by = best_of_families(here)
        for n, name in enumerate(names):
            gain = None
            if fits(by["RAF"]) and fits(by[name]):
                gain = by["RAF"]["step_ms"] / by[name]["step_ms"]
                axis.bar(i + (n - (len(names) - 1) / 2) * 0.08, gain, 0.075, color=COLOURS.get(name, f"C{n}"), label=name if i == 0 else None)
            rows.append([title_of(by[name]), name, step_of(by[name]), number(gain, 3), by[name]["runs"], by[name]["network"]])
    axis.axhline(1, color="black", linewidth=0.8)
    axis.set_ylim(0.8)
    axis.set_xticks(range(len(groups)), [title_of(here[0]).replace(", ", "\n", 2) for here in groups], fontsize=7)
    axis.set_ylabel("speed-up over RAF")
    axis.legend(fontsize=7)
    axis.set_title(f"{title}: {networks(points)}", fontsize=10)
    save(figure, path)
    return markdown(["model, cluster", "schedule", "step, ms", "speed-up over RAF's way", "runs", "network"], rows)


# Padding and imbalance

PADDED = ["RAF", "RAF, padded", "Tutel", "Tutel, padded", *OURS]


def padding_row(label, point, paper):
    """paper: Lancet's point with the backward pass whole, with which the baselines are compared."""
    cells = [number(point["all_to_all_ms"]), number(point["exposed_ms"])] if fits(point) else ["", ""]
    compared = fits(point) and fits(paper) and point["family"] not in OURS
    cells += [number(point["step_ms"] / paper["step_ms"], 2), cut_cell(paper, point)] if compared else ["", ""]
    return [cluster_of(point), label, point["family"], step_of(point), *cells, point["network"]]


def draw_padding(axis, here):
    """Draws bars of the schedules for each kind of routing; returns their table rows."""
    rows = []
    labels = list(dict.fromkeys(point["label"] for point in here))
    for i, label in enumerate(labels):
        by = best_of_families([point for point in here if point["label"] == label])
        for n, name in enumerate(PADDED):
            if fits(by[name]):
                axis.bar(i + (n - 2.5) * 0.14, by[name]["step_ms"], 0.13, color=COLOURS[name.removesuffix(", padded")],
                         hatch="//" if name.endswith(", padded") else None, label=name if i == 0 else None)
            rows.append(padding_row(label, by[name], by[OURS[0]]))
    axis.set_xticks(range(len(labels)), [label.replace(", ", "\n") for label in labels], fontsize=7)
    axis.set_ylabel("ms a step")
    return rows


def padding(points, path, title):
    return markdown(["model, cluster", "routing", "schedule", "step, ms", "all-to-all, ms", "exposed, ms",
                     "step / that with backward whole", "exposed cut with backward whole", "network"],
                    panels(points, path, title, draw_padding, ("hardware", "model"), (11, 3.2), fontsize=6))
