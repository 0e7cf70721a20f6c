"""The cost of routes to several experts, on one rank: route.md.

`lancet bench ops` on a model of two MoE layers (n_embd 768, sequences of 512), in turns, in several rounds:
top-2 against top-1; 64 experts of a quarter of the width, 8 a token, against 16 experts, 2 a token, which is as much
arithmetic; and, with these 64, the time of choice, gate, dispatch and combine over that of their bytes at the memory's
measured bandwidth.
"""
import json
import os
import statistics
import tempfile
from pathlib import Path
from typing import NamedTuple

from bench import run
from bench.table import markdown, number

MODEL = {"n_layer": 2, "n_head": 12, "n_embd": 768, "n_positions": 512, "vocab_size": 8192, "moe_layer_freq": 1,
         "router": "top_k", "norm_topk_prob": True, "capacity_factor": 1.5}
TRAIN = {"seq_len": 512, "micro_batch_size": 4, "eval_interval": 0, "save_minutes": 0}
SIDES = {"top-1": (16, 1, 3072), "top-2": (16, 2, 3072), "narrow": (64, 8, 768)}  # experts, of a token, width
EXPERTS = ("expert_linear", "expert_linear_dx", "expert_linear_dw", "gelu", "gelu_dx")
FORWARD, BACKWARD = ("top_k", "slots", "dispatch", "combine"), ("combine_dx", "dispatch_dx", "top_k_dx")


class Ops(NamedTuple):
    ms: dict  # by op, of a step
    bytes: dict  # by op, of a step
    bandwidth: float  # bytes per ms


def parse(text):
    """Reads what `lancet bench ops --json` prints."""
    document = json.loads(text)
    found = Ops({}, {}, document["ceilings"]["gb_per_s"] * 1e6)
    for row in document["rows"]:
        if row["stream"] == "compute":
            found.ms[row["op"]] = found.ms.get(row["op"], 0) + row["ms"]
            found.bytes[row["op"]] = found.bytes.get(row["op"], 0) + row["mbyte"] * 1e6
    return found


def measure(lancet, side):
    experts, choices, width = SIDES[side]
    model = {**MODEL, "num_local_experts": experts, "num_experts_per_tok": choices, "n_inner": width}
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.json"
        config.write_text(json.dumps({"model": model, "data": {"synthetic": True}, "train": TRAIN,
                                      "threads": os.cpu_count(), "device": "cpu"}))
        return parse(run.call([lancet, "bench", "ops", config, "--steps", 20, "--json"]).out)


def total(ops, names):
    return sum(ops.ms[name] for name in names)


def others(ops):
    return sum(ms for op, ms in ops.ms.items() if op not in EXPERTS)


def over_bytes(ops, names):
    """The time of the ops over that of their bytes."""
    return total(ops, names) / (sum(ops.bytes[name] for name in names) / ops.bandwidth)


def figures(rounds):
    """Returns (name, values by round, expected) of each figure. rounds: a dict of Ops by side, for each round."""
    return [
        ("top-2 over top-1, experts", [total(r["top-2"], EXPERTS) / total(r["top-1"], EXPERTS) for r in rounds], "2"),
        ("top-2 over top-1, all else", [others(r["top-2"]) / others(r["top-1"]) for r in rounds], "at most 1.10"),
        ("64 narrow experts over 16 wide ones", [total(r["narrow"], EXPERTS) / total(r["top-2"], EXPERTS) for r in rounds],
         "at most 1.15"),
        ("64 experts, 8 a token: choice, gate, dispatch, combine over their bytes",
         [over_bytes(r["narrow"], FORWARD) for r in rounds], "at most 2"),
        ("the same, backward", [over_bytes(r["narrow"], BACKWARD) for r in rounds], "at most 2")]


def page(rounds):
    cells = [[name, number(statistics.median(values), 2), f"{number(min(values), 2)} to {number(max(values), 2)}", wanted]
             for name, values, wanted in figures(rounds)]
    return "\n".join([
        "# The cost of routes to several experts", "",
        f"`python3 scripts/bench route`, commit {run.commit()}, measured on {run.cpu()}, {os.cpu_count()} cores. Two MoE layers,",
        "n_embd 768, 2,048 tokens, fp32, one rank, a capacity factor of 1.5; `lancet bench ops`, the sides in turns. Ratios of times:",
        f"medians of {len(rounds)} rounds, with the least and the greatest.", "",
        *markdown(["figure", "median", "of the rounds", "expected"], cells), "",
        "A figure is refuted by a median of the same command on an idle machine that is above what is expected."]) + "\n"


def add_arguments(parser):
    parser.add_argument("--rounds", type=run.at_least(1), default=5)
    parser.add_argument("--out", type=Path, default=run.ROOT / "docs/results")
    run.add_program(parser)


def main(options):
    lancet = run.program(options)
    found = run.in_turns(options.rounds, {side: lambda side=side: measure(lancet, side) for side in SIDES})
    rounds = [dict(zip(found, each)) for each in zip(*found.values())]
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "route.md").write_text(page(rounds))
