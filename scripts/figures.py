#!/usr/bin/env python3
"""Tables (CSV, Markdown) and plots (SVG) of experiments, with the Lancet paper's claims beside ours.

Reads DIR/points/EXPERIMENT/points.jsonl as `lancet bench sweep` writes them and makes DIR/EXPERIMENT.{csv,md,svg} and
DIR/claims.md. Every table has a column `network` (simulated, emulated, measured), every plot says it in its title, and no
plot mixes them without different marks.
"""
import argparse
import csv
import itertools
import json
import re
import statistics
import sys
from pathlib import Path

import matplotlib

import all_to_all_terms

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
EXPERIMENTS = ["fig02", "fig06", "fig11", "fig12", "fig13", "fig14", "fig15", "fig16", "padding", "scale"]
COLUMNS = ["network", "source", "hardware", "label", "model", "gate", "ranks", "hosts", "batch", "policy", "status", "runs", "k",
           "step_ms", "least_step_ms", "most_step_ms", "compute_ms", "all_to_all_ms", "all_reduce_ms", "communication_ms", "exposed_ms", "forward_ms",
           "experts_ms", "predicted_ms", "predicted_compute_ms", "predicted_communication_ms", "planning_ms", "memory_gib", "steps", "imbalance", "padded", "routing", "place", "profile", "commit"]
BASELINES = ["RAF", "DeepSpeed", "Tutel", "FasterMoE"]
OURS = ["Lancet, forward parts", "Lancet"]
PAPER_BASELINES = ["RAF", "DeepSpeed", "Tutel"]  # FasterMoE is not in the paper's comparison
COLOURS = {"RAF": "#8c8c8c", "DeepSpeed": "#c9a227", "Tutel": "#4c8bbe", "FasterMoE": "#7d5ba6", "Lancet": "#c0392b",
           "Lancet, forward parts": "#e79a8f", "only dW": "#5b9e4d", "only partition": "#d98841"}
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
    """The best k of Tutel stands for it, as in the paper; the others stand for themselves."""
    found = {}
    for point in points:
        held = found.get(point["family"])
        better = held is None or held["status"] != "ok" or (
            point["status"] == "ok" and point["step_ms"] < held["step_ms"])
        if better:
            found[point["family"]] = point
    return found


def fits(point):
    """There is such a point, and it has times."""
    return point is not None and point["status"] == "ok"


def cut_of(ours, theirs):
    """Percent of their exposed communication that ours has not; None where one of them has no times, or theirs none to cut."""
    if not fits(ours) or not fits(theirs) or theirs["exposed_ms"] <= 0:
        return None
    return 100 * (1 - ours["exposed_ms"] / theirs["exposed_ms"])


def cluster_of(point):
    return f"{point['model']}, {SHORT.get(point['hardware'], point['hardware'])}"


def place_of(point):
    return cluster_of(point) + (f", {point['label']}" if point["label"] else "")


def number(value, digits=1):
    return "" if value is None else f"{value:.{digits}f}"


def step_of(point, digits=1):
    """Its step, or why it has none: OOM as the paper marks it, or that it failed (to be run again)."""
    return number(point["step_ms"], digits) if point["status"] == "ok" else STATUS[point["status"]]


def markdown(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]


def networks(points):
    if not points:
        return "emulated"  # earlier runs only
    return ", ".join(sorted({point["network"] for point in points}))


def sources(points):
    """One line that says where the numbers come from."""
    commits = sorted({point["commit"] for point in points})
    places = sorted({point["place"] for point in points if point.get("place")})
    routing = sorted({point["routing"] for point in points})
    if not points:
        return "Network: emulated. The runs are those of overlap*.csv (scripts/bench-overlap.sh)."
    text = f"Network: {networks(points)}. Routing: {'; '.join(routing)}. Commit {', '.join(commits)}."
    return text + (f" Measured on {', '.join(places)}." if places else "")


def save(figure, path):
    figure.tight_layout()
    # No date and fixed ids: the same points give the same file.
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def panels(count, width, height):
    """Two in a row; the figure and its axes, one after the other."""
    rows = -(-count // 2)
    figure, axes = plt.subplots(rows, 2, figsize=(width, height * rows), squeeze=False)
    return figure, axes.flat


def save_panels(figure, points, path, title, **legend):
    """legend: how the first panel's stands, where there is one."""
    if legend:
        figure.axes[0].legend(**legend)
    figure.suptitle(f"{title}: {networks(points)}", fontsize=11)
    save(figure, path)


def write_csv(points, path):
    with open(path, "w", newline="") as file:
        table = csv.DictWriter(file, fieldnames=COLUMNS, extrasaction="ignore", restval="", lineterminator="\n")
        table.writeheader()
        table.writerows({key: ("" if value is None else value) for key, value in point.items()} for point in points)


# Figures 11 and 12

def speed_ups(points, ours, baselines=PAPER_BASELINES):
    """By place and ranks: one of OURS against the best baseline that fits."""
    result = {}
    for (*_, ), rows in group(points, "hardware", "label", "model", "ranks").items():
        by = best_of_families(rows)
        others = [by[name]["step_ms"] for name in baselines if fits(by.get(name))]
        if others and fits(by.get(ours)):
            result[(rows[0]["hardware"], place_of(rows[0]), rows[0]["ranks"])] = min(others) / by[ours]["step_ms"]
    return result


def iteration(points, path, title):
    places = group(points, "hardware", "label", "model")
    figure, axes = panels(len(places), 11, 3.1)
    rows = []
    for axis, here in zip(axes, places.values()):
        names = [name for name in [*BASELINES, *OURS] if any(point["family"] == name for point in here)]
        ranks = sorted({point["ranks"] for point in here})
        for r, count in enumerate(ranks):
            by = best_of_families([point for point in here if point["ranks"] == count])
            for n, name in enumerate(names):
                x = r + (n - (len(names) - 1) / 2) * 0.14
                point = by[name]
                if fits(point):
                    axis.bar(x, point["step_ms"], 0.13, color=COLOURS[name], label=name if r == 0 else None)
                else:
                    axis.plot(x, 0, "rx")
                gain = ""
                if fits(point) and fits(by["Lancet"]):
                    gain = number(point["step_ms"] / by["Lancet"]["step_ms"], 2)
                rows.append([place_of(point), count, name, step_of(point),
                             number(point.get("exposed_ms")), point["k"], gain, point["network"]])
        axis.set_xticks(range(len(ranks)), ranks)
        axis.set_title(f"{place_of(here[0])} ({networks(here)})", fontsize=9)
        axis.set_ylabel("ms a step")
        axis.set_xlabel("GPUs")
    save_panels(figure, points, path, title, fontsize=7, ncol=2)
    return markdown(["model, cluster", "GPUs", "schedule", "step, ms", "exposed, ms", "k", "step / Lancet's", "network"],
                    rows)


# Figure 2

def breakdown(points, path, title):
    rows, bars = [], []
    for point in points:
        if point["policy"] != "DeepSpeed" or point["status"] != "ok":
            continue
        step, a2a, experts = point["step_ms"], point["all_to_all_ms"], point["experts_ms"]
        # Only what runs in turn with the experts' layers can be hidden: bounds of the paper's Fig. 2.
        current, ideal = step - min(experts, a2a), max(step - a2a, point["compute_ms"])
        rows.append([place_of(point), point["ranks"], number(step), number(a2a), number(experts), number(a2a / experts, 2),
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


def partition_range(points, path, title):
    places = group(points, "hardware", "label", "model")
    figure, axes = plt.subplots(1, len(places), figsize=(10, 3.4), squeeze=False)
    rows = []
    for axis, here in zip(axes.flat, places.values()):
        reaches = sorted({reach_of(point) for point in here})
        times, whole = [], None
        for reach in reaches:
            fitting = [point for point in here if reach_of(point) == reach and point["status"] == "ok"]
            if not fitting:
                why = step_of(next(point for point in here if reach_of(point) == reach))
                rows.append([place_of(here[0]), "whole" if reach < 0 else reach, "", why, "", here[0]["network"]])
                continue
            best = min(fitting, key=lambda point: point["forward_ms"])
            times.append(best["forward_ms"])
            whole = best["forward_ms"] if reach < 0 else whole
            rows.append([place_of(best), "whole" if reach < 0 else reach, best["k"], number(best["forward_ms"], 2),
                         number(whole / best["forward_ms"], 3) if whole else "", best["network"]])
        shown = [reach for reach in reaches if any(point["status"] == "ok" and reach_of(point) == reach for point in here)]
        axis.plot(range(len(times)), times, "o-", color=COLOURS["Lancet"])
        axis.set_xticks(range(len(times)), ["orig." if reach < 0 else reach for reach in shown])
        axis.set_xlabel("groups before and after the MoE layer")
        axis.set_ylabel("forward pass, ms")
        axis.set_title(f"{place_of(here[0])} ({networks(here)})", fontsize=9)
    save_panels(figure, points, path, title)
    return markdown(["model, cluster", "reach", "best k", "forward, ms", "speed-up", "network"], rows)


# Figures 13 and 16

def parts_of(point):
    overlapped = point["communication_ms"] - point["exposed_ms"]
    return point["compute_ms"] - overlapped, overlapped, point["exposed_ms"]


def decomposition(points, path, title):
    places = group(points, "hardware", "label", "model")
    figure, axes = panels(len(places), 10, 3)
    rows = []
    for axis, here in zip(axes, places.values()):
        by = best_of_families(here)
        names = [name for name in [*BASELINES, *OURS] if name in by and by[name]["status"] == "ok"]
        for name in [name for name in [*BASELINES, *OURS] if name not in names]:
            k, step = (by[name]["k"], step_of(by[name])) if name in by else ("", "missing")
            rows.append([place_of(here[0]), name, k, step, "", "", "", "", here[0]["network"]])
        for i, name in enumerate(names):
            compute, overlapped, exposed = parts_of(by[name])
            base = 0
            for value, colour, label in ((compute, "#5b9e4d", "computation alone"), (overlapped, "#c9a227", "overlapped"),
                                         (exposed, "#c0392b", "communication alone")):
                axis.barh(i, value, left=base, color=colour, label=label if i == 0 else None)
                base += value
            cut = cut_of(by.get("Lancet"), by[name]) if name != "Lancet" else None
            rows.append([place_of(by[name]), name, by[name]["k"], number(by[name]["step_ms"]), number(compute),
                         number(overlapped), number(exposed), f"{cut:.0f}%" if cut is not None else "",
                         by[name]["network"]])
        axis.set_yticks(range(len(names)), names)
        axis.set_xlabel("ms a step")
        axis.set_title(f"{place_of(here[0])} ({networks(here)})", fontsize=9)
    save_panels(figure, points, path, title, fontsize=7)
    return markdown(["model, cluster", "schedule", "k", "step, ms", "computation alone", "overlapped",
                     "communication alone", "cut by Lancet", "network"], rows)


def ablation(points, path, title):
    places = group(points, "hardware", "label", "model")
    names = ["DeepSpeed", "only dW", "only partition", *OURS]
    figure, axis = plt.subplots(figsize=(10, 3.6))
    rows = []
    for i, here in enumerate(places.values()):
        by = best_of_families(here)
        for n, name in enumerate(names):
            if "ok" != by["RAF"]["status"] or "ok" != by[name]["status"]:
                rows.append([place_of(by[name]), name, step_of(by[name]), "", by[name]["runs"], by[name]["network"]])
                continue
            gain = by["RAF"]["step_ms"] / by[name]["step_ms"]
            axis.bar(i + (n - 2) * 0.16, gain, 0.15, color=COLOURS[name], label=name if i == 0 else None)
            rows.append([place_of(by[name]), name, number(by[name]["step_ms"]), number(gain, 3), by[name]["runs"],
                         by[name]["network"]])
    axis.axhline(1, color="black", linewidth=0.8)
    axis.set_ylim(0.8)
    axis.set_xticks(range(len(places)), [place_of(here[0]).replace(", ", "\n", 2) for here in places.values()], fontsize=7)
    axis.set_ylabel("speed-up over RAF")
    axis.legend(fontsize=7)
    axis.set_title(f"{title}: {networks(points)}", fontsize=10)
    save(figure, path)
    return markdown(["model, cluster", "schedule", "step, ms", "speed-up over RAF's way", "runs", "network"], rows)


# Figure 14

EARLIER_TIMES = {"step_ms": "step_ms", "compute_ms": "compute_ms", "all_to_all_ms": "a2a_ms", "all_reduce_ms": "allreduce_ms",
                 "communication_ms": "communication_ms", "exposed_ms": "exposed_ms", "predicted_ms": "predicted_ms"}


def commit_in(path):
    """That a page of scripts/bench-overlap.sh names."""
    named = re.search(r"commit ([0-9a-f]{7,40})", path.read_text()) if path.is_file() else None
    return named.group(1) if named else "unknown"


def earlier_runs():
    """Rows of scripts/bench-overlap.sh: emulated runs with their predictions, in the columns of a sweep's points."""
    found = []
    for name in ("overlap", "overlap-rates", "overlap-models"):
        path = ROOT / f"docs/results/{name}.csv"
        if not path.is_file():
            continue
        commit = commit_in(path.with_suffix(".md"))
        for row in csv.DictReader(open(path)):
            times = {ours: float(row[theirs]) for ours, theirs in EARLIER_TIMES.items()}
            found.append({"network": "emulated", "source": name + ".csv", "hardware": f"{row['hosts']} hosts, {row['rate']}",
                          "label": "", "model": row["what"], "hosts": row["hosts"], "ranks": row["hosts"],
                          "policy": row["policy"] + (f" k={row['parts']}" if row["parts"] != "0" else ""), "status": "ok",
                          "steps": row["steps"], "memory_gib": round(float(row["arena_mb"]) * 1e6 / 2**30, 3), "commit": commit,
                          **times})
    return found


def kind_of(row):
    """Which runs are alike, for marks and means."""
    if row["network"] == "measured":
        return "measured: ranks on this machine"
    if row["source"].endswith(".csv"):
        crowded = "4 hosts on 2 cores" in row["model"]
        return "emulated: bench-overlap.sh" + (", several hosts on a core" if crowded else "")
    return "emulated: this sweep"


MARKS = {"measured: ranks on this machine": "o", "emulated: this sweep": "^", "emulated: bench-overlap.sh": "v",
         "emulated: bench-overlap.sh, several hosts on a core": "x"}


def predicted(points):
    return [point for point in points + earlier_runs() if point["status"] == "ok" and point.get("predicted_ms")]


def error_of(row, compute_as_measured=False):
    """Of the predicted step; or of it with the computation that the run had in place of the predicted one, as if none of the
    difference were hidden under communication."""
    predicted_ms = row["predicted_ms"]
    if compute_as_measured:
        if row.get("predicted_compute_ms") is None:
            return None
        predicted_ms += row["compute_ms"] - row["predicted_compute_ms"]
    return predicted_ms / row["step_ms"] - 1


def percent(value):
    return "" if value is None else f"{100 * value:+.1f}%"


def accuracy(points, path, title):
    rows = predicted(points)
    figure, axis = plt.subplots(figsize=(6, 5))
    for kind, mark in MARKS.items():
        here = [row for row in rows if kind_of(row) == kind]
        if here:
            axis.loglog([row["step_ms"] for row in here], [row["predicted_ms"] for row in here], mark, label=kind,
                        markerfacecolor="none")
    ends = [limit(row["step_ms"] for row in rows) for limit in (min, max) if rows]
    axis.plot(ends, ends, color="black", linewidth=0.8)
    axis.set_xlabel("measured step, ms")
    axis.set_ylabel("predicted step, ms")
    axis.legend(fontsize=7)
    axis.set_title(f"{title} (marks: where)", fontsize=10)
    save(figure, path)
    table = [[kind_of(row), row["hardware"], row["source"], row["commit"], row["model"], row.get("gate", ""), row["policy"],
              number(row["step_ms"]), number(row["predicted_ms"]),
              percent(error_of(row)), number(row.get("compute_ms")), number(row.get("predicted_compute_ms")),
              percent(error_of(row, True))] for row in rows]
    corrected = errors(points, True)
    means = [[kind, len(values), *mean_and_worst(values), *mean_and_worst(corrected.get(kind))]
             for kind, values in errors(points).items()]
    return [*markdown(["runs", "number", "mean error", "worst", "mean, computation as measured", "worst"], means), "",
            "Computation as measured: the predicted step, with the computation that the run had in place of the predicted one. This",
            "takes all of the difference to lengthen the step, though some of it may have lain under communication.", "",
            *markdown(["runs", "where", "source", "commit", "model", "gate", "schedule", "measured, ms", "predicted, ms", "error",
                       "computation, ms", "predicted, ms", "error, computation as measured"], table)]


def mean_and_worst(values):
    return [f"{100 * statistics.mean(values):.1f}%", f"{100 * max(values):.1f}%"] if values else ["", ""]


def errors(points, compute_as_measured=False):
    found = {}
    for row in predicted(points):
        error = error_of(row, compute_as_measured)
        if error is not None:
            found.setdefault(kind_of(row), []).append(abs(error))
    return found


# Padding and imbalance

def padding(points, path, title):
    places = group(points, "hardware", "model")
    figure, axes = panels(len(places), 11, 3.2)
    names = ["RAF", "RAF, padded", "Tutel", "Tutel, padded", *OURS]
    rows = []
    for axis, here in zip(axes, places.values()):
        labels = list(dict.fromkeys(point["label"] for point in here))
        for i, label in enumerate(labels):
            by = best_of_families([point for point in here if point["label"] == label])
            paper = by[OURS[0]]
            for n, name in enumerate(names):
                point = by[name]
                row = [cluster_of(point), label, name, step_of(point)]
                if fits(point):
                    axis.bar(i + (n - 2.5) * 0.14, point["step_ms"], 0.13, color=COLOURS[name.removesuffix(", padded")],
                             hatch="//" if name.endswith(", padded") else None, label=name if i == 0 else None)
                    row += [number(point["all_to_all_ms"]), number(point["exposed_ms"])]
                    if fits(paper) and name not in OURS:
                        cut = cut_of(paper, point)
                        row += [number(point["step_ms"] / paper["step_ms"], 2), f"{cut:.0f}%" if cut is not None else ""]
                rows.append(row + [""] * (8 - len(row)) + [point["network"]])
        axis.set_xticks(range(len(labels)), [label.replace(", ", "\n") for label in labels], fontsize=7)
        axis.set_ylabel("ms a step")
        axis.set_title(f"{cluster_of(here[0])} ({networks(here)})", fontsize=9)
    save_panels(figure, points, path, title, fontsize=6)
    return markdown(["model, cluster", "routing", "schedule", "step, ms", "all-to-all, ms", "exposed, ms",
                     "step / that of forward parts", "exposed cut by forward parts", "network"], rows)


# Figure 15 and the scale

def planned_on(points):
    return next((point["place"] for point in points if "planning_ms" in point), "no machine")


def planning(points, path, title):
    places = group(points, "hardware", "label", "model")
    figure, axis = plt.subplots(figsize=(7, 3.6))
    rows = []
    for here in places.values():
        here = sorted((point for point in here if "planning_ms" in point), key=lambda point: point["ranks"])
        if not here:
            continue
        axis.plot([p["ranks"] for p in here], [p["planning_ms"] / 1e3 for p in here], "o-", label=place_of(here[0]))
        rows += [[place_of(p), p["ranks"], number(p["planning_ms"] / 1e3, 2), p["k"], p["place"]] for p in here]
    axis.set_xscale("log", base=2)
    axis.set_ylim(0)
    axis.set_xlabel("GPUs planned for")
    axis.set_ylabel("planning, s of processor time (measured)")
    axis.legend(fontsize=7)
    axis.set_title(f"{title}, measured on {planned_on(points)}", fontsize=9)
    save(figure, path)
    return markdown(["model, cluster", "GPUs", "planning, s of processor time (measured)", "k", "on"], rows)


def planning_s(point):
    return point["planning_ms"] / 1e3 if "planning_ms" in point else None


PARTS = (1, 2, 4)


def terms(points):
    """What one exchange of tokens is made of, by ranks and parts, and where its messages outlast its bytes."""
    point, ranks = points[0], sorted({point["ranks"] for point in points})
    hardware = all_to_all_terms.read_hardware(point["hardware"])
    rows = []
    for count in ranks:
        sent = all_to_all_terms.exchanges_of(point["model"], point["batch"], count)[0][1]
        for k in PARTS:
            direct = all_to_all_terms.ways(hardware, count, sent / k)[0]
            way = all_to_all_terms.taken(hardware, count, sent / k)
            bound = "messages" if all_to_all_terms.is_bound_by_messages(way) else "bytes"
            rows.append([count, k, number(direct["messages"], 3), way["way"], number(way["wire"], 3), number(way["links"], 3),
                         number(way["messages"], 3), number(way["latency"], 3), number(way["total"], 3), bound])
    lines = ["## What an all-to-all is made of", "",
             "One exchange of tokens (four a MoE layer), or one of its k parts, in ms, from the hardware file. Wire and links are what",
             "the bytes take on NICs and within a node, messages what one rank's messages to others take one behind the other. Direct:",
             "latency and the longest of the three; in two steps: latency, links, and the longer of wire and messages.", ""]
    crossings = all_to_all_terms.crossings(hardware, point["model"], point["batch"], ranks, PARTS)
    for k, (direct, way) in crossings.items():
        lines.append(f"- k = {k}: " + (f"sent directly, messages outlast bytes from {direct} ranks on; " if direct else "sent directly, "
                     f"bytes outlast messages up to {ranks[-1]} ranks; ") +
                     (f"by the faster way from {way} ranks on." if way else f"by the faster way nowhere up to {ranks[-1]} ranks."))
    return lines + ["", *markdown(["ranks", "k", "direct messages", "way taken", "wire", "links", "messages", "latency", "in all",
                                   "bound by"], rows)]


def scale(points, path, title):
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.8))
    names = list(dict.fromkeys(point["family"] for point in points))
    rows = []
    for name in names:
        best = [best_of_families(here)[name] for _, here in sorted(group(points, "ranks").items())]
        best = [point for point in best if point["status"] == "ok"]
        left.plot([p["ranks"] for p in best], [p["step_ms"] for p in best], "o-", color=COLOURS[name], label=name, markersize=3)
        right.plot([p["ranks"] for p in best], [planning_s(p) for p in best], "o-", color=COLOURS[name], label=name,
                   markersize=3)
    for ranks, here in sorted(group(points, "ranks").items()):
        by = best_of_families(here)
        fastest = min((p for p in by.values() if fits(p)), key=lambda p: p["step_ms"], default=None)
        for name in names:
            p = by[name]
            rows.append([ranks[0], name, step_of(p, 2),
                         number(p.get("compute_ms"), 2), number(p.get("all_to_all_ms"), 2), number(p.get("exposed_ms"), 2), p["k"],
                         p["runs"], "*" if p is fastest else "", number(planning_s(p), 2), p["network"]])
    for axis, what in ((left, "ms a step (simulated)"), (right, "planning, s of processor time (measured)")):
        axis.set_xscale("log", base=2)
        axis.set_ylim(0)
        axis.set_xlabel("ranks")
        axis.set_ylabel(what)
    left.legend(fontsize=7)
    figure.suptitle(f"{title}: steps simulated, planning measured on {planned_on(points)}", fontsize=10)
    save(figure, path)
    return markdown(["ranks", "schedule", "step, ms", "computation", "all-to-all", "exposed", "k", "runs", "fastest",
                     "planning, s of processor time (measured)", "network"], rows) + ["", *terms(points)]


# The paper's claims

def summary(values):
    return f"{max(values):.2f} / {statistics.mean(values):.2f}" if values else "-"


def cut_text(groups, ours, baseline):
    """The greatest and the least cut of these groups of points; how many have none since a point has no times."""
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


def claims(found):
    rows, others = [], []

    def add(what, paper, forward, ours, network):
        rows.append([what, paper, forward, ours, network])

    def add_other(what, paper, here, network):
        others.append([what, paper, here, network])

    for name, gate, paper in (("fig11", "Switch", {"p3dn-v100": "1.30 / 1.22", "p4de-a100": "1.21 / 1.17"}),
                              ("fig12", "batch-prioritized", {"p3dn-v100": "1.24 / 1.21", "p4de-a100": "1.24 / 1.17"})):
        for hardware, claim in paper.items():
            if name not in found:
                continue
            gains = [speed_ups(found[name], ours) for ours in OURS]
            labels = sorted({p["label"] for p in found[name] if p["hardware"] == hardware})
            for label in labels:
                for nodes, least in (("1 to 8 nodes", 0), ("2 to 8 nodes", 9)):
                    mine = [summary([g for (h, where, ranks), g in one.items()
                                     if h == hardware and ranks >= least and (not label or label in where)]) for one in gains]
                    add(f"speed-up over the best of RAF, DeepSpeed, Tutel, maximum / mean over {nodes}; {gate}, {SHORT[hardware]}"
                        f"{', ' + label if label else ''} (Fig. {name[3:]})", claim, *mine, "simulated")
    if "fig13" in found:
        for hardware, paper in (("p3dn-v100", {"RAF": 83, "Tutel": 77}), ("p4de-a100", {"RAF": 69, "Tutel": 66})):
            for baseline, claim in paper.items():
                here = list(group([p for p in found["fig13"] if p["hardware"] == hardware], "label", "model").values())
                add(f"exposed communication cut against {baseline}, up to; {SHORT[hardware]} (Fig. 13)", f"{claim}%",
                    *(cut_text(here, name, baseline) for name in OURS), "simulated")
    if "padding" in found:
        label = "imbalance 2, capacity factor 1"
        for hardware, paper in (("p3dn-v100", {"RAF": 83, "Tutel": 77}), ("p4de-a100", {"RAF": 69, "Tutel": 66})):
            for baseline, claim in paper.items():
                here = list(group([p for p in found["padding"] if p["hardware"] == hardware and p["label"] == label],
                                  "model").values())
                add(f"the same against {baseline} with padded buffers, {label}; {SHORT[hardware]}", f"{claim}%",
                    *(cut_text(here, name, baseline + ", padded") for name in OURS), "simulated")
    if "fig02" in found:
        ratios = [p["all_to_all_ms"] / p["experts_ms"] for p in found["fig02"] if p["policy"] == "DeepSpeed" and p["status"] == "ok"]
        add_other("all-to-all time over experts' time, up to; V100 (Fig. 2)", "3.36", f"{max(ratios):.2f}" if ratios else "-",
                  "simulated")
    if "fig14" in found:
        for kind, values in errors(found["fig14"]).items():
            add_other("error of predicted steps (Fig. 14)", "3.83% in the mean",
                      f"{100 * statistics.mean(values):.1f}% in the mean, {100 * max(values):.1f}% at worst, {len(values)} runs", kind)
    if "fig15" in found:
        seconds = [planning_s(p) for p in found["fig15"] if "planning_ms" in p]
        add_other("planning time, longest (Fig. 15)", "most below 20 min",
                  f"{max(seconds):.1f} s of processor time" if seconds else "-", f"measured, {planned_on(found['fig15'])}")
    chosen = {ours: [p["k"] for name in ("fig11", "fig12") for p in found.get(name, []) if p["policy"] == ours and p["status"] == "ok"]
              for ours in OURS}
    if all(chosen.values()):
        add("most parts that Lancet chooses", "4", *(str(max(ks)) for ks in chosen.values()), "simulated")
    return [*markdown(["claim about Lancet", "paper", "here, forward parts only as the paper", "here, both passes in parts",
                       "here is"], rows), "", *markdown(["other claim", "paper", "here", "here is"], others)]


def missing_of(experiment, points):
    """How many of an experiment's points have no record; wherever they were made (--on)."""
    there = {tuple(point[key] for key in ("label", "model", "gate", "ranks", "policy")) for point in points}
    return sum((grid.get("label", ""), *asked) not in there for grid in experiment["grids"]
               for asked in itertools.product(grid["models"], grid["gates"], grid["ranks"], grid["policies"]))


MAKERS = {"fig02": breakdown, "fig06": partition_range, "fig11": iteration, "fig12": iteration, "fig13": decomposition,
          "fig14": accuracy, "fig15": planning, "fig16": ablation, "padding": padding, "scale": scale}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "docs/results")
    parser.add_argument("--points", type=Path, help="folder of the sweeps (default: OUT/points)")
    options = parser.parse_args()
    plt.rcParams["svg.hashsalt"] = "lancet"
    found, incomplete = {}, False
    for name in EXPERIMENTS:
        folder = (options.points or options.out / "points") / name
        if name == "fig14" and not (folder / "points.jsonl").is_file():
            folder = ROOT / "docs/results/points/fig14"  # runs that were made
        there = (folder / "points.jsonl").is_file()
        if not there and (name != "fig14" or not earlier_runs()):
            print(f"{name}: no points", file=sys.stderr)
            continue
        points = found[name] = read(folder) if there else []
        experiment = all_to_all_terms.read_commented(ROOT / f"configs/experiments/{name}.json")
        title = experiment["title"]
        missing = missing_of(experiment, points) if there else 0
        if missing:
            print(f"{name}: expected all points of the sweep, found none of {missing} of them; the sweep's command goes on",
                  file=sys.stderr)
            incomplete = True
        failed = [point for point in points if point["status"] == "failed"]
        try:
            table = MAKERS[name](points, options.out / f"{name}.svg", title)
        except KeyError as key:
            print(f"{name}: no table without a point of {key}", file=sys.stderr)
            found.pop(name)
            incomplete = True
            continue
        write_csv(points + (earlier_runs() if name == "fig14" else []), options.out / f"{name}.csv")
        heading = f"# {title}" + (f" (Fig. {int(name[3:])} of the paper)" if name.startswith("fig") else "")
        notes = [f"{len(failed)} points failed: " + "; ".join(point["why"] for point in failed), ""] if failed else []
        notes += [f"{missing} points are missing.", ""] if missing else []
        (options.out / f"{name}.md").write_text("\n".join(
            [heading, "", f"`lancet bench sweep configs/experiments/{name}.json`. {sources(points)}", "", *notes,
             f"![{title}]({name}.svg)", "", *table]) + "\n")
    (options.out / "claims.md").write_text("\n".join(
        ["# The paper's claims beside ours", "", "Made by `scripts/reproduce.sh`. What differs and why: [README.md](README.md).", "",
         *claims(found)]) + "\n")
    return 1 if incomplete else 0


if __name__ == "__main__":
    sys.exit(main())
