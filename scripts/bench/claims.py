"""Compares the Lancet paper's claims with the points."""
import statistics

from bench.accuracy_figure import errors
from bench.planning_figures import planned_on, planning_s
from bench.points import OURS, PAPER_BASELINES, SHORT, STATUS, best_of_families, cut_of, fits, group, title_of
from bench.table import markdown, percent

SPEED_UPS = {"fig11": ("Switch", {"p3dn-v100": "1.30 / 1.22", "p4de-a100": "1.21 / 1.17"}),
             "fig12": ("batch-prioritized", {"p3dn-v100": "1.24 / 1.21", "p4de-a100": "1.24 / 1.17"})}
CUTS = {"p3dn-v100": {"RAF": 83, "Tutel": 77}, "p4de-a100": {"RAF": 69, "Tutel": 66}}
PADDED = "imbalance 2, capacity factor 1"


def speed_ups(points, ours):
    """Returns, by hardware, title and ranks, the speed-up of one of OURS over the best baseline that fits."""
    result = {}
    for rows in group(points, "hardware", "label", "model", "ranks").values():
        by = best_of_families(rows)
        others = [by[name]["step_ms"] for name in PAPER_BASELINES if fits(by.get(name))]
        if others and fits(by.get(ours)):
            result[(rows[0]["hardware"], title_of(rows[0]), rows[0]["ranks"])] = min(others) / by[ours]["step_ms"]
    return result


def most_and_mean(values):
    return f"{max(values):.2f} / {statistics.mean(values):.2f}" if values else "-"


def cut_text(groups, ours, baseline):
    """Returns the largest and the smallest cut of these groups of points, and the number of groups without times."""
    cuts, without = [], []
    for here in groups:
        by = best_of_families(here)
        pair = [by.get(ours), by.get(baseline)]
        cut = cut_of(*pair)
        if cut is not None:
            cuts.append(cut)
        without += sorted({STATUS[point["status"]] if point else "missing" for point in pair if not fits(point)})
    text = f"{max(cuts):.0f}% (least {min(cuts):.0f}%)" if cuts else "-"
    return text + "".join(f", {without.count(why)} {why}" for why in dict.fromkeys(without))


def speed_up_rows(name, points):
    gate, paper = SPEED_UPS[name]
    gains = [speed_ups(points, ours) for ours in OURS]
    rows = []
    for hardware, claim in paper.items():
        for label in sorted({point["label"] for point in points if point["hardware"] == hardware}):
            for nodes, least in (("1 to 8 nodes", 0), ("2 to 8 nodes", 9)):
                mine = [most_and_mean([gain for (where, place, ranks), gain in one.items()
                                       if where == hardware and ranks >= least and label in place]) for one in gains]
                what = (f"speed-up over the best of RAF, DeepSpeed, Tutel, maximum / mean over {nodes}; {gate}, "
                        f"{SHORT[hardware]}{', ' + label if label else ''} (Fig. {name[3:]})")
                rows.append([what, claim, *mine, "simulated"])
    return rows


def cut_rows(points, wording, suffix=""):
    """wording: a row's text with {baseline} and {hardware}; suffix: the end of the baselines' names in the points."""
    rows = []
    for hardware, paper in CUTS.items():
        here = list(group([point for point in points if point["hardware"] == hardware], "label", "model").values())
        for baseline, claim in paper.items():
            rows.append([wording.format(baseline=baseline, hardware=SHORT[hardware]), f"{claim}%",
                         *(cut_text(here, ours, baseline + suffix) for ours in OURS), "simulated"])
    return rows


def most_parts_rows(found):
    chosen = [[point["k"] for name in SPEED_UPS for point in found.get(name, [])
               if point["policy"] == ours and point["status"] == "ok"] for ours in OURS]
    return [["most parts that Lancet chooses", "4", *(str(max(ks)) for ks in chosen), "simulated"]] if all(chosen) else []


def other_rows(found):
    rows = []
    if "fig02" in found:
        ratios = [point["all_to_all_ms"] / point["experts_ms"] for point in found["fig02"]
                  if point["policy"] == "DeepSpeed" and point["status"] == "ok"]
        rows.append(["all-to-all time over experts' time, up to; V100 (Fig. 2)", "3.36",
                     f"{max(ratios):.2f}" if ratios else "-", "simulated"])
    for kind, values in errors(found["fig14"]).items() if "fig14" in found else ():
        rows.append(["error of predicted steps (Fig. 14)", "3.83% in the mean",
                     f"{percent(statistics.mean(values))} in the mean, {percent(max(values))} at worst, {len(values)} runs",
                     kind])
    if "fig15" in found:
        seconds = [planning_s(point) for point in found["fig15"] if "planning_ms" in point]
        rows.append(["planning time, longest (Fig. 15)", "most below 20 min",
                     f"{max(seconds):.1f} s of processor time" if seconds else "-", f"measured, {planned_on(found['fig15'])}"])
    return rows


def claims(found):
    """Returns the lines of two tables. found: points by experiment."""
    rows = [row for name in SPEED_UPS if name in found for row in speed_up_rows(name, found[name])]
    if "fig13" in found:
        rows += cut_rows(found["fig13"], "exposed communication cut against {baseline}, up to; {hardware} (Fig. 13)")
    if "padding" in found:
        rows += cut_rows([point for point in found["padding"] if point["label"] == PADDED],
                         f"the same against {{baseline}} with padded buffers, {PADDED}; {{hardware}}", ", padded")
    rows += most_parts_rows(found)
    return [*markdown(["claim about Lancet", "paper", "here, our search with the backward pass whole", "here, both passes in parts",
                       "here is"], rows), "",
            *markdown(["other claim", "paper", "here", "here is"], other_rows(found))]
