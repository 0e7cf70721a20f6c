"""Compares the Lancet paper's claims with the points. Where points have variations of the hardware's numbers, a value
is followed by the least and the greatest among them."""
import statistics

from bench import paper
from bench.makers import errors, gain_of, planned_on, planning_s
from bench.points import (OURS, PANEL, PAPER, SEQUENTIAL, SHORT, STANDS_FOR, STATUS, at_variation, best_baseline,
                          best_of_families, cut_of, fits, group, variations_of)
from bench.table import markdown, percent

LANCETS = [PAPER, *OURS]
GATES = {"fig11": "Switch", "fig12": "batch-prioritized"}
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


def on(hardware, points, **wanted):
    return [point for point in points if point["hardware"] == hardware
            and all(point[key] == value for key, value in wanted.items())]


def largest_ratio(points, above, below):
    """Returns the largest ratio of two times among the points, or None."""
    return max((point[above] / point[below] for point in points if fits(point)), default=None)


def speed_ups(points, ours):
    """Returns the speed-ups of one of LANCETS over the best baseline that fits."""
    gains = (gain_of(best_baseline(rows), best_of_families(rows).get(ours))
             for rows in group(points, *PANEL, "ranks").values())
    return [gain for gain in gains if gain is not None]


def speed_up_rows(name, points):
    rows = []
    for hardware in SHORT:
        claims_of_paper = paper.SPEED_UPS[name, hardware]
        for label in sorted({point["label"] for point in on(hardware, points)}):
            for nodes, least in (("1 to 8 nodes", 0), ("2 to 8 nodes", 9)):
                here = [point for point in on(hardware, points, label=label) if point["ranks"] >= least]
                for what, pick, claim in zip(("largest", "mean"), (max, statistics.mean), claims_of_paper):
                    mine = [banded(here, lambda at: pick(found) if (found := speed_ups(at, ours)) else None, ratio)
                            for ours in LANCETS]
                    where = ", ".join(filter(None, (GATES[name], SHORT[hardware], label)))
                    rows.append([f"{what} speed-up over the best of RAF's, DeepSpeed's and Tutel's schedules on "
                                 f"{nodes}; {where} (Fig. {name[3:]})", ratio(claim), *mine, "simulated"])
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
    return [[f"exposed communication cut against {system}'s schedule, up to; {SHORT[hardware]} (Fig. 13)",
             whole_percent(claim), *(cut_text(on(hardware, points), ours, SCHEDULES.get(system, system))
                                     for ours in LANCETS), "simulated"]
            for hardware, cuts in paper.CUTS.items() for system, claim in cuts.items()]


def most_parts_rows(found):
    points = [point for name in GATES for point in found.get(name, []) if point["status"] == "ok"]
    chosen = [max((point["k"] for point in points if point["policy"] == ours), default=0) for ours in LANCETS]
    return [["most parts that Lancet chooses", "4", *chosen, "simulated"]] if all(chosen) else []


def all_to_all_share_rows(points):
    return [[f"all-to-all's share of training time, up to; {name} (section 1)", "40%",
             banded(here, lambda at: largest_ratio(at, "all_to_all_ms", "step_ms"), whole_percent), "simulated"]
            for hardware, name in SHORT.items() if (here := on(hardware, points, policy=SEQUENTIAL))]


def other_rows(found):
    rows = all_to_all_share_rows(found.get("fig11", []))
    if "fig02" in found:
        longest = banded([point for point in found["fig02"] if point["policy"] == SEQUENTIAL],
                         lambda at: largest_ratio(at, "all_to_all_ms", "experts_ms"), ratio)
        rows.append(["all-to-all time over experts' time, up to; V100 (Fig. 2)", "3.36", longest, "simulated"])
    for kind, values in errors(found.get("fig14", [])).items():
        rows.append(["error of predicted steps (Fig. 14)", "3.83% in the mean",
                     f"{percent(statistics.mean(values))} in the mean, {percent(max(values))} at worst, "
                     f"{len(values)} runs", kind])
    if "fig15" in found:
        seconds = [planning_s(point) for point in found["fig15"] if "planning_ms" in point]
        rows.append(["planning time, longest (Fig. 15)", "most below 20 min",
                     f"{max(seconds):.1f} s of processor time" if seconds else "-",
                     f"measured, {planned_on(found['fig15'])}"])
    return rows


def claims(found):
    """Returns the lines of two tables. found: points by experiment."""
    rows = [row for name in GATES if name in found for row in speed_up_rows(name, found[name])]
    rows += (cut_rows(found["fig13"]) if "fig13" in found else []) + most_parts_rows(found)
    return [*markdown(["claim about Lancet", "paper", "here, the paper's algorithm",
                       "here, our search with the backward pass whole", "here, both passes in parts", "here is"],
                      rows), "",
            *markdown(["other claim", "paper", "here", "here is"], other_rows(found))]
