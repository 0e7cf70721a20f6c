"""Reads and groups the points that `bench sweep` writes, and formats them for tables and plots.

A simulated point may have been made several times, with changed numbers of the hardware file (its variation). Those of
BANDS choose among the ends of the numbers' bands; the nominal point stands for them: its `_low` and `_high` columns
hold the least and the greatest value among them and its own, and point["varied"] holds them by variation. Points with
other variations are points of their own.
"""
import json
import re

from bench.table import number

# All numbers at their slow ends, all at their fast ends, and the computation at one end with all else at the other: the
# absolute times are extreme in the first two, the balance of computation and communication in the last two.
BANDS = ["slow", "fast", "fast,device=slow", "slow,device=fast"]
# The values of a simulated point that have a band.
BANDED = ["step_ms", "compute_ms", "all_to_all_ms", "all_reduce_ms", "communication_ms", "exposed_ms", "forward_ms",
          "experts_ms", "bound_ms"]
COLUMNS = [
    "network", "source", "hardware", "variation", "label", "model", "gate", "ranks", "hosts", "batch", "policy",
    "status", "runs", "k", "least_step_ms", "most_step_ms",
    *(name + end for name in BANDED for end in ("", "_low", "_high")),
    "predicted_ms", "predicted_compute_ms", "predicted_communication_ms", "planning_ms", "memory_gib", "steps",
    "imbalance", "padded", "routing", "place", "profile", "commit"]
UNBUCKETED, SEQUENTIAL = "sequential, unbucketed", "sequential"
PADDED = ", padded"  # behind the name of a schedule whose whole buffers are sent and multiplied
STANDS_FOR = {UNBUCKETED: "RAF", SEQUENTIAL: "DeepSpeed"}  # whose schedule it is; others have their system's name
BASELINES = [UNBUCKETED, SEQUENTIAL, "Tutel", "FasterMoE", "FlowMoE"]
PAPER = "Lancet, paper"  # the paper's algorithm
OURS = ["Lancet, backward whole", "Lancet"]
PAPER_BASELINES = [UNBUCKETED, SEQUENTIAL, "Tutel"]  # the schedules of the systems of the paper's comparison
PANEL = ("hardware", "label", "model")  # what a panel of a figure is of
STATUS = {"out of memory": "OOM", "failed": "failed"}
SHORT = {"p3dn-v100": "V100", "p4de-a100": "A100"}


def read(folder):
    points = [json.loads(line) for line in (folder / "points.jsonl").read_text().splitlines()]
    for point in points:
        point["source"] = f"{point['experiment']}.json"
        point["family"] = re.sub(r"^experts in \d+ parts?", "experts in parts", point["policy"])
    return with_bands(points)


def with_bands(points):
    """Returns the nominal points with their bands; a point that exists in variations alone is left out."""
    found = []
    for point in points:
        point.setdefault("variation", "")
        point["banded"] = "" if point["variation"] in BANDS else point["variation"]
    for (*_, variation), here in group(points, "network", "hardware", "label", "model", "gate", "ranks", "policy",
                                       "banded").items():
        varied = {point["variation"]: point for point in here}
        if variation not in varied:
            continue
        nominal = varied[variation]
        nominal["varied"] = varied
        for name in BANDED if len(varied) > 1 else ():
            values = [point[name] for point in varied.values() if point.get(name) is not None]
            if values:
                nominal[name + "_low"], nominal[name + "_high"] = min(values), max(values)
        found.append(nominal)
    return found


def at_variation(points, variation):
    """Returns the points as they are with one variation of the hardware; points without it are left out."""
    return [point["varied"][variation] for point in points if variation in point["varied"]]


def variations_of(points):
    """Returns the variations of these points, the nominal one first."""
    return list(dict.fromkeys(["", *(variation for point in points for variation in point["varied"])]))


def group(points, *keys):
    groups = {}
    for point in points:
        groups.setdefault(tuple(point[key] for key in keys), []).append(point)
    return groups


def best_of_families(points):
    """Returns a point for each family: of experts in parts the one with the best number of parts."""
    found = {}
    for point in points:
        held = found.get(point["family"])
        better = held is None or held["status"] != "ok" or (
            point["status"] == "ok" and point["step_ms"] < held["step_ms"])
        if better:
            found[point["family"]] = point
    return found


def best_by(points, key):
    """Returns the best of each family by a key's values, in their order."""
    return {value: best_of_families(here) for (value,), here in group(points, key).items()}


def best_baseline(points):
    """Returns the fastest of the paper's baselines among the points of one group, or None."""
    best = map(best_of_families(points).get, PAPER_BASELINES)
    return min(filter(fits, best), key=lambda point: point["step_ms"], default=None)


def fits(point):
    """Returns True if the point exists and has times."""
    return point is not None and point["status"] == "ok"


def cut_of(ours, theirs):
    """Returns by how many percent our exposed communication is below theirs; None if one has no times or theirs is
    0."""
    if not fits(ours) or not fits(theirs) or theirs["exposed_ms"] <= 0:
        return None
    return 100 * (1 - ours["exposed_ms"] / theirs["exposed_ms"])


def cluster_of(point):
    return f"{point['model']}, {SHORT.get(point['hardware'], point['hardware'])}"


def title_of(point):
    return cluster_of(point) + (f", {point['label']}" if point["label"] else "")


def system_of(schedule):
    """Returns the system in the paper's comparison that a schedule stands for."""
    return STANDS_FOR.get(schedule, schedule)


def stand_ins(points):
    """Returns a text on whose schedules are among the points under names of their own; empty if there are none."""
    named = {point["policy"].removesuffix(PADDED) for point in points}
    return "; ".join(f"{name}: {system}'s schedule" for name, system in STANDS_FOR.items() if name in named)


def step_of(point, digits=1):
    """Returns the step's time, or OOM (as the paper marks it), or failed."""
    return number(point["step_ms"], digits) if point["status"] == "ok" else STATUS[point["status"]]


def networks(points):
    return ", ".join(sorted({point["network"] for point in points}))


def sources(points):
    """Returns one line on the origin of the numbers."""
    commits = sorted({point["commit"] for point in points})
    places = sorted({point["place"] for point in points if point.get("place")})
    routing = sorted({point["routing"] for point in points})
    text = f"Network: {networks(points)}. Routing: {'; '.join(routing)}. Commit {', '.join(commits)}."
    return text + (f" Measured on {', '.join(places)}." if places else "")
