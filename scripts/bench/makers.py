"""A maker for each experiment: it returns the lines of the table and, for a figure of the paper, draws the plot."""
import statistics
import textwrap

from bench import paper
from bench.plot import (COLOURS, Series, begin_at_zero, colours_of, column, draw_bars, draw_interval, draw_paper_line,
                        interval_of, panels, same_schedules, same_series, save, title_with)
from bench.points import (BASELINES, OURS, PADDED, PANEL, PAPER, PAPER_BASELINES, SEQUENTIAL, SHORT, UNBUCKETED,
                          best_baseline, best_by, best_of_families, cluster_of, cut_of, fits, group, step_of, system_of,
                          title_of)
from bench.table import markdown, number, percent, signed_percent


def cut_cell(ours, theirs):
    return number(cut_of(ours, theirs), 0, "%")


def schedules_of(points):
    """Returns the schedules of the points: baselines, others in their order, ours."""
    found = list(dict.fromkeys(point["family"] for point in points))
    others = [name for name in found if name not in BASELINES and name not in OURS]
    return [name for name in [*BASELINES, *others, *OURS] if name in found]


# Figures 11 and 12

def draw_paper_steps(axis, x, by, claim):
    """Draws the best baseline's step divided by the paper's speed-ups. claim: (largest, mean)."""
    baselines = [by[name]["step_ms"] for name in PAPER_BASELINES if fits(by.get(name))]
    if baselines and claim:
        most, mean = (min(baselines) / gain for gain in claim)
        ends = (x - 0.44, x + 0.44)
        draw_paper_line(axis, mean, "at the paper's mean speed-up", ends)
        draw_paper_line(axis, most, "at its largest speed-up", ends, linestyle="dotted")


def draw_iteration(axis, here, points):
    """Draws bars of the schedules at each number of ranks, and what no order of the whole operations goes below."""
    names = schedules_of(points)
    colours, by_ranks = colours_of(names), dict(sorted(best_by(here, "ranks").items()))
    series = []
    for same in same_schedules(points, names):
        bars = [by[same[0]] for by in by_ranks.values()]
        series.append(Series(" = ".join(same), colours[same[0]], [p["step_ms"] if fits(p) else None for p in bars],
                             [interval_of(point, "step_ms") for point in bars]))
    draw_bars(axis, by_ranks, series)
    for x, by in enumerate(by_ranks.values()):
        draw_paper_steps(axis, x, by, paper.SPEED_UPS.get((here[0]["experiment"], here[0]["hardware"])))
        floors = [point["bound_ms"] for point in by.values() if point.get("bound_ms") is not None]
        if floors:
            axis.plot([x - 0.44, x + 0.44], [min(floors)] * 2, color="#1b7837", linewidth=1.4, gid="floor",
                      label="floor of whole operations")
    axis.set_ylabel("ms a step")
    axis.set_xlabel("GPUs")
    return [[title_of(p), p["ranks"], p["family"], step_of(p), number(p.get("exposed_ms")), p["k"],
             number(gain_of(p, by["Lancet"]), 2), p["network"]] for by in by_ranks.values() for p in map(by.get, names)]


iteration = panels(["model, cluster", "GPUs", "schedule", "step, ms", "exposed, ms", "k", "step / Lancet's", "network"],
                   draw_iteration)

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
    ticks, unknown = [f"{point['model'][5]} {point['ranks']}" for point in whole], [None] * len(whole)
    figure, (steps, ratio) = column([2.2, 1.6])
    intervals = [[interval_of(point, "step_ms") for point in whole], unknown, unknown]
    draw_bars(steps, ticks, [Series(name, colour, list(values), ends) for (name, colour), values, ends in
                             zip(BOUNDS.items(), zip(*map(bounds_of, whole)), intervals)])
    steps.set_ylabel("ms a step")
    draw_bars(ratio, ticks, [Series("all-to-all / experts", COLOURS["FasterMoE"], ratios, unknown)])
    draw_paper_line(ratio, paper.ALL_TO_ALL_OVER_EXPERTS, f"paper: up to {paper.ALL_TO_ALL_OVER_EXPERTS}")
    ratio.set_ylabel("all-to-all / experts")
    ratio.set_xlabel("GPT2-(S|L)-MoE, GPUs")
    save(figure, path, title_with(points, title))
    return markdown(["model, cluster", "GPUs", "original, ms", "all-to-all, ms", "experts, ms", "all-to-all / experts",
                     "experts hidden, ms", "all-to-all hidden, ms", "network"],
                    [[title_of(p), p["ranks"], *(number(p[f"{of}_ms"]) for of in ("step", "all_to_all", "experts")),
                      number(at, 2), *map(number, bounds_of(p)[1:]), p["network"]] for p, at in zip(whole, ratios)])


# Figure 6

def reach_of(point):
    return -1 if point["policy"] == "whole" else int(point["policy"].split(",")[0].split()[1])


def best_by_reach(points):
    """Returns the point with the best k of each reach of ranges."""
    best = {}
    for point in sorted(points, key=reach_of):
        held = best.get(reach_of(point))
        if held is None or not fits(held) or (fits(point) and point["forward_ms"] < held["forward_ms"]):
            best[reach_of(point)] = point
    return best


def draw_range(axis, here, _):
    """Draws the forward pass by the reach of ranges."""
    best = best_by_reach(here)
    shown = {reach: point for reach, point in best.items() if fits(point)}
    times, ends = ([of(point) for point in shown.values()] for of in (
        lambda point: point["forward_ms"], lambda point: interval_of(point, "forward_ms")))
    axis.plot(range(len(times)), times, "o-", color=COLOURS["Lancet"])
    if ends and all(ends):
        axis.fill_between(range(len(times)), *zip(*ends), color=COLOURS["Lancet"], alpha=0.2, linewidth=0,
                          gid="interval")
    begin_at_zero(axis)
    axis.set_xticks(range(len(times)), ["whole" if reach < 0 else reach for reach in shown])
    axis.set_xlabel("groups before and after the MoE layer")
    axis.set_ylabel("forward pass, ms")
    return [[title_of(point), "whole" if reach < 0 else reach, *(
        [point["k"], number(point["forward_ms"], 2), number(gain_of(best.get(-1), point, "forward_ms"), 3)]
        if fits(point) else ["", step_of(point), ""]), point["network"]] for reach, point in best.items()]


partition_range = panels(["model, cluster", "reach", "best k", "forward, ms", "speed-up", "network"], draw_range)

# Figures 13 and 16

PARTS = {"computation alone": "#5b9e4d", "overlapped": "#c9a227", "communication alone": "#c0392b"}


def parts_of(point):
    overlapped = point["communication_ms"] - point["exposed_ms"]
    return point["compute_ms"] - overlapped, overlapped, point["exposed_ms"]


def decomposition_row(by, name, here):
    point = by.get(name)
    if not fits(point):
        return [title_of(here[0]), name, *([point["k"], step_of(point)] if point else ["", "missing"]), "", "", "", "",
                here[0]["network"]]
    return [title_of(point), name, point["k"], step_of(point), *map(number, parts_of(point)),
            cut_cell(by.get("Lancet"), point) if name != "Lancet" else "", point["network"]]


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


def draw_decomposition(axis, here, points):
    """Draws a bar for each schedule with times; returns the table rows, those of schedules without times first."""
    by, merged = best_of_families(here), same_schedules(points, schedules_of(points))
    shown = [names for names in merged if fits(by.get(names[0]))]
    for y, names in enumerate(shown):
        draw_parts(axis, y, by[names[0]], paper.CUTS.get(here[0]["hardware"], {}).get(system_of(names[0])))
    axis.set_yticks(range(len(shown)), map(" = ".join, shown))
    axis.invert_yaxis()
    axis.set_xlabel("ms a step")
    names = [name for names in merged for name in names]
    return [decomposition_row(by, name, here) for name in sorted(names, key=lambda name: fits(by.get(name)))]


decomposition = panels(["model, cluster", "schedule", "k", "step, ms", "computation alone", "overlapped",
                        "communication alone", "cut by Lancet", "network"], draw_decomposition,
                       lambda points: 0.75 + 0.22 * len(same_schedules(points, schedules_of(points))))


def gain_of(base, point, name="step_ms"):
    return base[name] / point[name] if fits(base) and fits(point) else None


def gain_interval(base, point):
    """Returns the least and the greatest gain among variations of the hardware's numbers, or None: there are none."""
    varied = [each.get("varied", {}) for each in (base, point)]
    gains = [gain_of(*(each[name] for each in varied)) for name in varied[0] if name in varied[1]]
    known = [gain for gain in gains if gain is not None]
    return (min(known), max(known)) if len(known) > 1 else None


def ablation(points, path, title):
    places = [best_of_families(here) for here in group(points, *PANEL).values()]
    names = [name for name in schedules_of(points) if name != UNBUCKETED]
    gains = {name: [gain_of(by[UNBUCKETED], by[name]) for by in places] for name in names}
    colours = colours_of(names)
    figure, (axis,) = column([2.9])
    draw_bars(axis, [textwrap.fill(title_of(by[UNBUCKETED]), 12) for by in places],
              [Series(" = ".join(same), colours[same[0]], gains[same[0]],
                      [gain_interval(by[UNBUCKETED], by[same[0]]) for by in places]) for same in same_series(gains)])
    axis.axhline(1, color="black", linewidth=0.8)
    axis.tick_params(axis="x", labelsize=7)
    axis.set_ylabel(f"speed-up over {UNBUCKETED}")
    save(figure, path, title_with(points, title))
    return markdown(["model, cluster", "schedule", "step, ms", f"speed-up over {UNBUCKETED}", "runs", "network"],
                    [[title_of(by[name]), name, step_of(by[name]), number(gains[name][i], 3), by[name]["runs"],
                      by[name]["network"]] for i, by in enumerate(places) for name in names])


# Figure 14: predicted steps against those of real runs

MARKS = {"measured": ("o", "#3b74d9"), "emulated": ("^", "#c0392b")}  # by network


def predicted(points):
    return [point for point in points if point["status"] == "ok" and point.get("predicted_ms")]


def error_of(row):
    """Returns the relative error of the predicted step."""
    return row["predicted_ms"] / row["step_ms"] - 1


def errors(points):
    """Returns the sizes of the errors of all runs, by kind."""
    return {network: [abs(error_of(row)) for row in here]
            for (network,), here in group(predicted(points), "network").items()}


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
    return [(kind, *(statistics.mean(row[name] for row in here) for name in ("predicted_ms", "step_ms")),
             spread_of(here)) for (kind, *_), here in alike.items()]


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
    residuals.axhline(0, color="black", linewidth=0.8)
    error = 100 * paper.PREDICTION_ERROR
    for end in (error, -error):
        draw_paper_line(residuals, end, f"paper: mean error {error:.2f}%, either way")
    residuals.set_ylabel("predicted / step - 1, %")
    residuals.set_xlabel("step of the run, ms")
    for axis in (steps, residuals):
        axis.set_xlim(0)
    save(figure, path, f"{title} (a mark a plan; bars: shortest to longest step)")
    means = [[kind, len(all_of), percent(statistics.mean(all_of)), percent(max(all_of))]
             for kind, all_of in errors(rows).items()]
    return [*markdown(["runs", "number", "mean error", "worst"], means), "", *markdown(
        ["runs", "where", "commit", "model", "gate", "schedule", "measured, ms", "predicted, ms", "error",
         "computation, ms", "predicted, ms"],
        [[*(row[name] for name in ("network", "hardware", "commit", "model", "gate", "policy")),
          *(number(row.get(name)) for name in ("step_ms", "predicted_ms")), signed_percent(error_of(row)),
          *(number(row.get(name)) for name in ("compute_ms", "predicted_compute_ms"))] for row in rows])]


# Figure 15

PLANNING = "planning, s of processor time (measured)"


def planned_on(points):
    return next((point["place"] for point in points if "planning_ms" in point), "no machine")


def planning_s(point):
    return point["planning_ms"] / 1e3 if "planning_ms" in point else None


def planning(points, path, title):
    figure, (axis,) = column([2.6])
    rows = []
    for here in group([point for point in points if "planning_ms" in point], *PANEL).values():
        here.sort(key=lambda point: point["ranks"])
        axis.plot([p["ranks"] for p in here], [planning_s(p) for p in here], "o-", label=title_of(here[0]))
        rows += [[title_of(p), p["ranks"], number(planning_s(p), 2), p["k"], p["place"]] for p in here]
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_formatter("{x:g}")
    begin_at_zero(axis)
    axis.set_xlabel("GPUs planned for")
    axis.set_ylabel("planning, s (measured)")
    axis.set_title(f"paper: most below {60 * paper.PLANNING_MINUTES:,} s, far above this panel")
    save(figure, path, f"{title}, measured on {planned_on(points)}")
    return markdown(["model, cluster", "GPUs", PLANNING, "k", "on"], rows)


# Padding and imbalance

COMPARED = [UNBUCKETED, UNBUCKETED + PADDED, "experts in parts", "experts in parts" + PADDED, *OURS]


def padding_row(label, point, whole):
    """whole: Lancet's point with the backward pass whole, with which the baselines are compared."""
    cells = [number(point["all_to_all_ms"]), number(point["exposed_ms"])] if fits(point) else ["", ""]
    compared = fits(point) and fits(whole) and point["family"] not in OURS
    cells += [number(gain_of(point, whole), 2), cut_cell(whole, point)] if compared else ["", ""]
    return [cluster_of(point), label, point["family"], step_of(point), *cells, point["network"]]


def padding(points, *_):
    return markdown(["model, cluster", "routing", "schedule", "step, ms", "all-to-all, ms", "exposed, ms",
                     "step / that with backward whole", "exposed cut with backward whole", "network"],
                    [padding_row(label, by[name], by[OURS[0]]) for here in group(points, "hardware", "model").values()
                     for label, by in best_by(here, "label").items() for name in COMPARED])


# Weak scaling

def scale_rows(by_ranks, names):
    rows = []
    for ranks, by in sorted(by_ranks.items()):
        fastest = min((p for p in by.values() if fits(p)), key=lambda p: p["step_ms"], default=None)
        rows += [[ranks, p["family"], step_of(p, 2),
                  *(number(p.get(time), 2) for time in ("compute_ms", "all_to_all_ms", "exposed_ms")), p["k"],
                  p["runs"], "*" if p is fastest else "", number(planning_s(p), 2), p["network"]]
                 for p in map(by.get, names)]
    return rows


def beside_gshard(by_ranks, names):
    """Returns the page's lines that compare the growth of steps, of all-to-alls and of memory with GShard's."""
    few, many = paper.GSHARD_RANKS
    rows = [["GShard, measured on TPU v3", f"{paper.GSHARD_STEP:.2f}",
             *(f"{100 * share:.0f}%" for share in paper.GSHARD_ALL_TO_ALL), "", "", "about 1"]]
    for name in names:
        first, last = ends = [by_ranks.get(ranks, {}).get(name) for ranks in (few, many)]
        if all(map(fits, ends)):
            shares = [100 * end[time] / end["step_ms"] for time in ("all_to_all_ms", "exposed_ms") for end in ends]
            rows.append([f"{name}, simulated", number(last["step_ms"] / first["step_ms"], 2),
                         *(f"{share:.0f}%" for share in shares), number(last["memory_gib"] / first["memory_gib"], 2)])
    return ["## Beside GShard", "",
            f"GShard (section 5) reports how a step grows from {few} to {many:,} devices when the experts grow with",
            "them, one a device and layer. Its network is a 2D torus, on which an all-to-all takes time in proportion",
            "to the square root of the devices; here the bandwidth of a node does not depend on the nodes. Its model,",
            "batch and devices are others, too: the growth is comparable, the times are not. All-to-all: busy, also",
            "where computation hides it; exposed: not hidden.", "",
            *markdown(["schedule", f"step, {many:,} over {few}", f"all-to-all at {few}", f"at {many:,}",
                       f"exposed at {few}", f"at {many:,}", "memory a rank, ratio"], rows)]


def scale(points, *_):
    by_ranks, names = best_by(points, "ranks"), list(dict.fromkeys(point["family"] for point in points))
    return markdown(["ranks", "schedule", "step, ms", "computation", "all-to-all", "exposed", "k", "runs", "fastest",
                     PLANNING, "network"], scale_rows(by_ranks, names)) + ["", *beside_gshard(by_ranks, names)]


# Results by the numbers of the hardware files: each number at either end of its band (sensitivity), several at once as
# an explanation of a difference from the paper (explanations), and figure 6 by the time of a launch

CUT_AGAINST = [UNBUCKETED, "Tutel"]


def variation_cells(here):
    """Returns the row of one variation: all-to-all's share of the sequential step, exposed share of the best baseline's
    step, then speed-up over it and cuts against CUT_AGAINST of the paper's algorithm and of ours, and our k."""
    by, best = best_of_families(here), best_baseline(here)
    whole = by.get(SEQUENTIAL)
    row = [number(100 * whole["all_to_all_ms"] / whole["step_ms"], 0, "%") if fits(whole) else "",
           number(100 * best["exposed_ms"] / best["step_ms"], 0, "%") if best else ""]
    for name in (PAPER, OURS[0]):
        row += [number(gain_of(best, by.get(name)), 2), *(cut_cell(by.get(name), by.get(base)) for base in CUT_AGAINST)]
    return row + [max((by[name]["k"] for name in OURS if fits(by.get(name))), default="")]


def paper_cells(hardware):
    return [f"the paper, {SHORT[hardware]}, up to", "in the paper", "40%", "",
            number(paper.SPEED_UPS["fig11", hardware][0], 2),
            *(number(100 * paper.CUTS[hardware][system_of(base)], 0, "%") for base in CUT_AGAINST), "", "", "", "4"]


def by_variation(points, *_):
    """Returns the table of both sensitivity and explanations."""
    rows = []
    for here in group(points, *PANEL).values():
        rows += [[cluster_of(rest[0]), variation or "nominal", *variation_cells(rest)]
                 for (variation,), rest in group(here, "variation").items()]
        rows.append(paper_cells(here[0]["hardware"]))
    header = ["model, cluster", "changed numbers", "all-to-all of the sequential step",
              "exposed of the best baseline's step"]
    for name in ("paper's algorithm", "our search, backward whole"):
        header += [f"{name}: speed-up", *(f"cut against {baseline}" for baseline in CUT_AGAINST)]
    return markdown([*header, "most k"], rows)


def launches(points, *_):
    """Returns the table of figure 6's speed-ups by reach, a row for each time of a launch."""
    rows, reaches = [], sorted({reach_of(point) for point in points if reach_of(point) >= 0})
    for here in group(points, *PANEL, "variation").values():
        best = best_by_reach(here)
        rows.append([title_of(here[0]), here[0]["variation"] or "nominal", number(best[-1]["forward_ms"], 2),
                     *(number(gain_of(best[-1], best.get(reach), "forward_ms"), 3) for reach in reaches)])
    columns = [f"speed-up at reach {reach}" for reach in reaches]
    return markdown(["model, cluster", "changed numbers", "whole, ms", *columns], rows)
