"""Figure 15 and the weak scaling: planning times, and steps by number of ranks."""
from bench import paper
from bench.plot import begin_at_zero, colours_of, column, interval_of, joined, same_schedules, save
from bench.points import best_of_families, fits, group, stand_ins, step_of, title_of
from bench.table import markdown, number

PLANNING = "planning, s of processor time (measured)"
SECONDS = "planning, s (measured)"


def planned_on(points):
    return next((point["place"] for point in points if "planning_ms" in point), "no machine")


def planning_s(point):
    return point["planning_ms"] / 1e3 if "planning_ms" in point else None


def by_ranks(axis, xlabel, ylabel):
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_formatter("{x:g}")
    begin_at_zero(axis)
    axis.set_xlabel(xlabel)
    axis.set_ylabel(ylabel)


def planning(points, path, title):
    figure, (axis,) = column([2.6])
    rows = []
    for here in group(points, "hardware", "label", "model").values():
        here = sorted((point for point in here if "planning_ms" in point), key=lambda point: point["ranks"])
        if not here:
            continue
        axis.plot([p["ranks"] for p in here], [planning_s(p) for p in here], "o-", label=title_of(here[0]))
        rows += [[title_of(p), p["ranks"], number(planning_s(p), 2), p["k"], p["place"]] for p in here]
    by_ranks(axis, "GPUs planned for", SECONDS)
    axis.set_title(f"paper: most below {60 * paper.PLANNING_MINUTES:,} s, far above this panel")
    save(figure, path, f"{title}, measured on {planned_on(points)}")
    return markdown(["model, cluster", "GPUs", PLANNING, "k", "on"], rows)


def scale_rows(points, names):
    rows = []
    for (ranks,), here in sorted(group(points, "ranks").items()):
        by = best_of_families(here)
        fastest = min((p for p in by.values() if fits(p)), key=lambda p: p["step_ms"], default=None)
        for p in (by[name] for name in names):
            rows.append([ranks, p["family"], step_of(p, 2),
                         *(number(p.get(time), 2) for time in ("compute_ms", "all_to_all_ms", "exposed_ms")), p["k"],
                         p["runs"], "*" if p is fastest else "", number(planning_s(p), 2), p["network"]])
    return rows


def beside_gshard(points):
    """Returns the page's lines that compare the growth of steps, of all-to-alls and of memory with GShard's."""
    few, many = paper.GSHARD_RANKS
    by = {ranks: best_of_families(here) for (ranks,), here in group(points, "ranks").items() if ranks in (few, many)}
    rows = [["GShard, measured on TPU v3", f"{paper.GSHARD_STEP:.2f}",
             *(f"{100 * share:.0f}%" for share in paper.GSHARD_ALL_TO_ALL), "", "", "about 1"]]
    for name in dict.fromkeys(point["family"] for point in points):
        ends = [by.get(ranks, {}).get(name) for ranks in (few, many)]
        if not all(map(fits, ends)):
            continue
        first, last = ends
        shares = [100 * end[time] / end["step_ms"] for time in ("all_to_all_ms", "exposed_ms") for end in ends]
        rows.append([f"{name}, simulated", number(last["step_ms"] / first["step_ms"], 2),
                     *(f"{share:.0f}%" for share in shares), number(last["memory_gib"] / first["memory_gib"], 2)])
    return ["## Beside GShard", "",
            f"GShard (section 5) reports how a step grows from {few} to {many:,} devices when the experts grow with the devices, one",
            "a device and layer. Two things differ here: its network is a 2D torus, on which an all-to-all takes time in proportion",
            "to the square root of the devices, ours is a network whose bandwidth a node does not depend on the nodes; and its",
            "model, batch and devices are others. So the growth is comparable, the times are not. All-to-all: busy, also where",
            "computation hides it; exposed: not hidden. A measured step on such a cluster that grows otherwise would refute ours.", "",
            *markdown(["schedule", f"step, {many:,} over {few}", f"all-to-all at {few}", f"at {many:,}",
                       f"exposed at {few}", f"at {many:,}", "memory a rank, ratio"], rows)]


def draw_scaled(axis, best, value, colour, label=None):
    """Draws a value of the best points by ranks. value: returns it, and its interval or None."""
    found = [(point["ranks"], *value(point)) for point in best]
    axis.plot([ranks for ranks, _, _ in found], [at for _, at, _ in found], "o-", color=colour, label=label, markersize=3)
    if found and all(ends for *_, ends in found):
        axis.fill_between([ranks for ranks, _, _ in found], *zip(*(ends for *_, ends in found)), color=colour, alpha=0.15,
                          linewidth=0, gid="interval")


def scale(points, path, title):
    figure, (steps, seconds) = column([2.8, 2.2])
    names = list(dict.fromkeys(point["family"] for point in points))
    colours = colours_of(names)
    by_ranks_best = [best_of_families(here) for _, here in sorted(group(points, "ranks").items())]
    for same in same_schedules(points, names):
        best = [by[same[0]] for by in by_ranks_best if fits(by[same[0]])]
        draw_scaled(steps, best, lambda p: (p["step_ms"], interval_of(p, "step_ms")), colours[same[0]], joined(same))
    for name in names:
        best = [by[name] for by in by_ranks_best if fits(by[name])]
        draw_scaled(seconds, best, lambda p: (planning_s(p), None), colours[name])
    by_ranks(steps, "ranks", "ms a step (simulated)")
    by_ranks(seconds, "ranks", SECONDS)
    save(figure, path, f"{title}: steps simulated, planning measured on {planned_on(points)} ({stand_ins(points)})")
    return markdown(["ranks", "schedule", "step, ms", "computation", "all-to-all", "exposed", "k", "runs", "fastest",
                     PLANNING, "network"], scale_rows(points, names)) + ["", *beside_gshard(points)]
