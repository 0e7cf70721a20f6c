"""Compares the Lancet paper's claims with the points. Where points have variations of the hardware's numbers, a value is
followed by the least and the greatest among them."""
import statistics

from bench import paper as reported
from bench.accuracy_figure import errors
from bench.planning_figures import planned_on, planning_s
from bench.points import (OURS, PAPER, PAPER_BASELINES, SEQUENTIAL, SHORT, STANDS_FOR, STATUS, at_variation,
                          best_of_families, cut_of, fits, group, title_of, variations_of)
from bench.table import markdown, percent

LANCETS = [PAPER, *OURS]
# As in the paper, by figure: the gate, and by hardware the largest and the mean speed-up; by hardware the cuts in percent.
SPEED_UPS = {name: (gate, {hardware: reported.SPEED_UPS[name, hardware] for hardware in SHORT})
             for name, gate in (("fig11", "Switch"), ("fig12", "batch-prioritized"))}
CUTS = {hardware: {system: round(100 * cut) for system, cut in cuts.items()} for hardware, cuts in reported.CUTS.items()}
SCHEDULES = {system: schedule for schedule, system in STANDS_FOR.items()}  # others have their system's name


def banded(points, value_of, text_of):
    """Returns the nominal value as text, followed by its band. value_of: takes points of one variation and returns a
    number or None."""
    values = {variation: value_of(at_variation(points, variation)) for variation in variations_of(points)}
    known = [value for value in values.values() if value is not None]
    if values[""] is None:
        return "-"
    return text_of(values[""]) + (f" ({text_of(min(known))} to {text_of(max(known))})" if len(known) > 1 else "")


def ratio(value):
    return f"{value:.2f}"


def whole_percent(value):
    return f"{100 * value:.0f}%"


def speed_ups(points, ours):
    """Returns the speed-ups of one of LANCETS over the best baseline that fits."""
    result = []
    for rows in group(points, "hardware", "label", "model", "ranks").values():
        by = best_of_families(rows)
        others = [by[name]["step_ms"] for name in PAPER_BASELINES if fits(by.get(name))]
        if others and fits(by.get(ours)):
            result.append(min(others) / by[ours]["step_ms"])
    return result


def speed_up_rows(name, points):
    gate, paper = SPEED_UPS[name]
    rows = []
    for hardware, claims_of_paper in paper.items():
        for label in sorted({point["label"] for point in points if point["hardware"] == hardware}):
            for nodes, least in (("1 to 8 nodes", 0), ("2 to 8 nodes", 9)):
                here = [point for point in points
                        if point["hardware"] == hardware and point["label"] == label and point["ranks"] >= least]
                for what, pick, claim in zip(("largest", "mean"), (max, statistics.mean), claims_of_paper):
                    mine = [banded(here, lambda at: pick(found) if (found := speed_ups(at, ours)) else None, ratio)
                            for ours in LANCETS]
                    rows.append([f"{what} speed-up over the best of RAF's, DeepSpeed's and Tutel's schedules on {nodes}; {gate}, "
                                 f"{SHORT[hardware]}{', ' + label if label else ''} (Fig. {name[3:]})",
                                 ratio(claim), *mine, "simulated"])
    return rows


def cut_text(points, ours, baseline):
    """Returns the largest cut of exposed communication among these points' models, its band, and the number of models
    without times."""
    def cuts_in(at):
        pairs = [best_of_families(here) for here in group(at, "label", "model").values()]
        return [cut for by in pairs if (cut := cut_of(by.get(ours), by.get(baseline))) is not None]

    without = []
    for here in group(points, "label", "model").values():
        pair = [best_of_families(here).get(name) for name in (ours, baseline)]
        without += sorted({STATUS[point["status"]] if point else "missing" for point in pair if not fits(point)})
    text = banded(points, lambda at: max(cuts_in(at), default=None), lambda cut: f"{cut:.0f}%")
    return text + "".join(f", {without.count(why)} {why}" for why in dict.fromkeys(without))


def cut_rows(points):
    rows = []
    for hardware, paper in CUTS.items():
        here = [point for point in points if point["hardware"] == hardware]
        for system, claim in paper.items():
            cuts = [cut_text(here, ours, SCHEDULES.get(system, system)) for ours in LANCETS]
            rows.append([f"exposed communication cut against {system}'s schedule, up to; {SHORT[hardware]} (Fig. 13)",
                         f"{claim}%", *cuts, "simulated"])
    return rows


def most_parts_rows(found):
    points = [point for name in SPEED_UPS for point in found.get(name, []) if point["status"] == "ok"]
    chosen = [[point["k"] for point in points if point["policy"] == ours] for ours in LANCETS]
    return [["most parts that Lancet chooses", "4", *(str(max(ks)) for ks in chosen), "simulated"]] if all(chosen) else []


def best_baseline(points):
    """Returns the fastest of the paper's baselines among the points of one group, or None."""
    by = best_of_families(points)
    return min((by[name] for name in PAPER_BASELINES if fits(by.get(name))), key=lambda point: point["step_ms"], default=None)


def exposed_share(points):
    """Returns the largest share of the best baseline's step that is exposed communication, over the models."""
    best = [best_baseline(here) for here in group(points, "label", "model").values()]
    return max((point["exposed_ms"] / point["step_ms"] for point in best if point), default=None)


def extra_computation(points):
    """Returns by how much the paper's algorithm lengthens the computation of the best baseline, in the mean over the
    models."""
    pairs = [(best_baseline(here), best_of_families(here).get(PAPER)) for here in group(points, "label", "model").values()]
    extra = [ours["compute_ms"] / theirs["compute_ms"] - 1 for theirs, ours in pairs if theirs and fits(ours)]
    return statistics.mean(extra) if extra else None


def implied_share(speed_up, cut, extra):
    """Returns the share f of exposed communication in a step from 1 / speed_up = (1 - f) (1 + extra) + f (1 - cut):
    computation grows by `extra`, exposed communication falls by `cut`."""
    return (1 + extra - 1 / speed_up) / (extra + cut)


def implied_rows(points):
    """The share of the best baseline's step that is exposed communication: what the paper's own ratios imply, and what
    is simulated. The paper's largest speed-up and largest cut need not be of one model, so the implied share is an
    estimate of its upper end."""
    rows = []
    for hardware, cuts in CUTS.items():
        here = [point for point in points if point["hardware"] == hardware]
        extra = extra_computation(here)
        if extra is None:
            continue
        implied = implied_share(SPEED_UPS["fig11"][1][hardware][0], cuts["Tutel"] / 100, extra)
        rows.append([f"exposed share of the best baseline's step on 32 GPUs, {SHORT[hardware]}; the paper's is implied by "
                     f"its speed-up {SPEED_UPS['fig11'][1][hardware][0]}, its cut of {cuts['Tutel']}% and {extra:.0%} more "
                     "computation, as simulated here", f"at most {whole_percent(implied)}",
                     banded(here, exposed_share, whole_percent), "simulated"])
    return rows


def all_to_all_share_rows(points):
    rows = []
    for hardware, name in SHORT.items():
        here = [point for point in points if point["policy"] == SEQUENTIAL and point["hardware"] == hardware]
        if here:
            share = banded(here, lambda at: max((p["all_to_all_ms"] / p["step_ms"] for p in at if fits(p)), default=None),
                           whole_percent)
            rows.append([f"all-to-all's share of training time, up to; {name} (section 1)", "40%", share, "simulated"])
    return rows


def order_of_gates_rows(found):
    """On A100 the paper's largest speed-up is larger with the batch-prioritized gate than with the Switch gate."""
    if not all(name in found for name in SPEED_UPS):
        return []

    def largest(name, variation):
        at = at_variation([point for point in found[name] if point["hardware"] == "p4de-a100"], variation)
        return max(speed_ups(at, PAPER), default=None)

    text = []
    for variation in variations_of(found["fig11"]):
        pair = [largest(name, variation) for name in SPEED_UPS]
        if None not in pair:
            text.append(f"{pair[1]:.2f} against {pair[0]:.2f}" + (f" ({variation})" if variation else ""))
    paper = " against ".join(ratio(SPEED_UPS[name][1]["p4de-a100"][0]) for name in ("fig12", "fig11"))
    return [["largest speed-up with the batch-prioritized gate against that with the Switch gate, A100, "
             "the paper's algorithm", paper, ", ".join(text) or "-", "simulated"]]


def other_rows(found):
    rows = all_to_all_share_rows(found.get("fig11", []))
    if "fig13" in found:
        rows += implied_rows(found["fig13"])
    rows += order_of_gates_rows(found)
    if "fig02" in found:
        points = [point for point in found["fig02"] if point["policy"] == SEQUENTIAL]
        longest = banded(points, lambda at: max((p["all_to_all_ms"] / p["experts_ms"] for p in at if fits(p)), default=None),
                         ratio)
        rows.append(["all-to-all time over experts' time, up to; V100 (Fig. 2)", "3.36", longest, "simulated"])
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
        rows += cut_rows(found["fig13"])
    rows += most_parts_rows(found)
    return [*markdown(["claim about Lancet", "paper", "here, the paper's algorithm", "here, our search with the backward pass whole",
                       "here, both passes in parts", "here is"], rows), "",
            *markdown(["other claim", "paper", "here", "here is"], other_rows(found))]
