"""How results depend on the numbers of the hardware files: each number at either end of its band (sensitivity), several
numbers at once as an explanation of a difference from the paper (explanations), and figure 6 by the time of a launch."""
from bench.claims import CUTS, SPEED_UPS, best_baseline
from bench.plot import column, save
from bench.points import (OURS, PAPER, SEQUENTIAL, SHORT, UNBUCKETED, best_of_families, cluster_of, cut_of, fits, group,
                          networks, system_of, title_of)
from bench.steps_figures import reach_of
from bench.table import markdown, number

COLUMNS = ["paper's algorithm", "our search, backward whole"]
CUT_AGAINST = [UNBUCKETED, "Tutel"]


def percent_of(value):
    return "" if value is None else f"{value:.0f}%"


def cells_of(here):
    """Returns the row of one variation: all-to-all's share of the sequential step, exposed share of the best baseline's
    step, then speed-up over it and cuts against CUT_AGAINST of the paper's algorithm and of ours, and our k."""
    by, best = best_of_families(here), best_baseline(here)
    whole = by.get(SEQUENTIAL)
    row = [percent_of(100 * whole["all_to_all_ms"] / whole["step_ms"]) if fits(whole) else "",
           percent_of(100 * best["exposed_ms"] / best["step_ms"]) if best else ""]
    for name in (PAPER, OURS[0]):
        ours = by.get(name)
        row += [number(best["step_ms"] / ours["step_ms"], 2) if best and fits(ours) else "",
                *(percent_of(cut_of(ours, by.get(baseline))) for baseline in CUT_AGAINST)]
    return row + [max((by[name]["k"] for name in OURS if fits(by.get(name))), default="")]


def paper_row(hardware):
    cuts = [f"{CUTS[hardware][system_of(baseline)]}%" for baseline in CUT_AGAINST]
    return [f"the paper, {SHORT[hardware]}, up to", "in the paper", "40%", "",
            f"{SPEED_UPS['fig11'][1][hardware][0]:.2f}", *cuts, "", "", "", "4"]


def speed_up_of(here):
    best, ours = best_baseline(here), best_of_families(here).get(PAPER)
    return best["step_ms"] / ours["step_ms"] if best and fits(ours) else None


def draw(axis, groups):
    """Draws the paper's algorithm's speed-up for each variation of one cluster and model."""
    labels = [variation or "nominal" for variation in groups]
    values = [speed_up_of(here) for here in groups.values()]
    axis.plot([value or float("nan") for value in values], range(len(labels)), "o", color="#c0392b", markersize=4)
    axis.axvline(values[0], color="black", linewidth=0.6)
    axis.set_yticks(range(len(labels)), [label.replace(",", ",\n") for label in labels], fontsize=5)
    axis.invert_yaxis()
    axis.set_xlabel("speed-up over the best baseline")


def by_variation(points, path, title):
    """Returns the table of both sensitivity and explanations."""
    clusters = list(group(points, "hardware", "label", "model").values())
    figure, axes = column([0.2 * len(group(here, "variation")) + 0.6 for here in clusters])
    rows = []
    for axis, here in zip(axes, clusters):
        variations = {variation: rest for (variation,), rest in group(here, "variation").items()}
        draw(axis, variations)
        axis.set_title(f"{title_of(here[0])} ({networks(here)})", fontsize=9)
        rows += [[cluster_of(rest[0]), variation or "nominal", *cells_of(rest)] for variation, rest in variations.items()]
        rows.append(paper_row(here[0]["hardware"]))
    save(figure, path, f"{title}: {networks(points)}; the paper's algorithm")
    header = ["model, cluster", "changed numbers", "all-to-all of the sequential step", "exposed of the best baseline's step"]
    for name in COLUMNS:
        header += [f"{name}: speed-up", *(f"cut against {baseline}" for baseline in CUT_AGAINST)]
    return markdown([*header, "most k"], rows)


def launches(points, path, title):
    """Returns the table of figure 6's speed-ups by reach, a row for each time of a launch."""
    clusters = list(group(points, "hardware", "label", "model").values())
    figure, axes = column([2.4] * len(clusters))
    rows = []
    for axis, cluster in zip(axes, clusters):
        for (variation,), here in group(cluster, "variation").items():
            times = {reach: min(p["forward_ms"] for p in of_reach if fits(p))
                     for (reach,), of_reach in group([dict(p, reach=reach_of(p)) for p in here], "reach").items()}
            gains = {reach: times[-1] / times[reach] for reach in sorted(times) if reach >= 0}
            axis.plot(list(gains), list(gains.values()), "o-", markersize=3, label=variation or "nominal")
            rows.append([title_of(here[0]), variation or "nominal", number(times[-1], 2), *(number(g, 3) for g in gains.values())])
        axis.set_title(f"{title_of(cluster[0])} ({networks(cluster)})", fontsize=9)
        axis.set_xlabel("groups before and after the MoE layer")
        axis.set_ylabel("speed-up of the forward pass")
    save(figure, path, f"{title}: {networks(points)}")
    reaches = sorted({reach_of(point) for point in points if reach_of(point) >= 0})
    return markdown(["model, cluster", "changed numbers", "whole, ms", *(f"speed-up at reach {reach}" for reach in reaches)], rows)
