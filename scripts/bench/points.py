"""Reads and groups the points that `lancet bench sweep` writes, and formats them for tables and plots."""
import json

from bench.table import number

COLUMNS = [
    "network", "source", "hardware", "label", "model", "gate", "ranks", "hosts", "batch", "policy", "status", "runs", "k",
    "step_ms", "least_step_ms", "most_step_ms", "compute_ms", "all_to_all_ms", "all_reduce_ms", "communication_ms",
    "exposed_ms", "forward_ms", "experts_ms", "predicted_ms", "predicted_compute_ms", "predicted_communication_ms",
    "planning_ms", "memory_gib", "steps", "imbalance", "padded", "routing", "place", "profile", "commit"]
BASELINES = ["RAF", "DeepSpeed", "Tutel", "FasterMoE"]
OURS = ["Lancet, backward whole", "Lancet"]
PAPER_BASELINES = ["RAF", "DeepSpeed", "Tutel"]  # FasterMoE is not in the paper's comparison
STATUS = {"out of memory": "OOM", "failed": "failed"}
SHORT = {"p3dn-v100": "V100", "p4de-a100": "A100"}


def read(folder):
    points = [json.loads(line) for line in (folder / "points.jsonl").read_text().splitlines()]
    for point in points:
        point["source"] = f"{point['experiment']}.json"
        padded = ", padded" if point["policy"].endswith(", padded") else ""
        point["family"] = "Tutel" + padded if point["policy"].startswith("Tutel") else point["policy"]
    return points


def group(points, *keys):
    groups = {}
    for point in points:
        groups.setdefault(tuple(point[key] for key in keys), []).append(point)
    return groups


def best_of_families(points):
    """Returns a point for each family: of Tutel the one with the best k, as in the paper."""
    found = {}
    for point in points:
        held = found.get(point["family"])
        better = held is None or held["status"] != "ok" or (
            point["status"] == "ok" and point["step_ms"] < held["step_ms"])
        if better:
            found[point["family"]] = point
    return found


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


def step_of(point, digits=1):
    """Returns the step's time, or OOM (as the paper marks it), or failed."""
    return number(point["step_ms"], digits) if point["status"] == "ok" else STATUS[point["status"]]


def networks(points):
    if not points:
        return "emulated"  # earlier runs only
    return ", ".join(sorted({point["network"] for point in points}))


def sources(points):
    """Returns one line on the origin of the numbers."""
    commits = sorted({point["commit"] for point in points})
    places = sorted({point["place"] for point in points if point.get("place")})
    routing = sorted({point["routing"] for point in points})
    if not points:
        return "Network: emulated. The runs are those of overlap*.csv (`python3 scripts/bench overlap`)."
    text = f"Network: {networks(points)}. Routing: {'; '.join(routing)}. Commit {', '.join(commits)}."
    return text + (f" Measured on {', '.join(places)}." if places else "")
