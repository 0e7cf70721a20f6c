"""The terms of an all-to-all's time on declared hardware: network, links, messages, latency, by ranks and parts.

The formulas are those of all_to_all_ms in src/cost/hardware.cpp, for even routing; tests/experiment/all_to_all_terms_test.py
compares their sum with the times of simulated points.
"""
import json
from pathlib import Path

from bench.run import ROOT
from hardware_table import read_commented, share_at

US = 1e-3  # in milliseconds


def read_hardware(name):
    path = Path(name) if name.endswith(".json") or "/" in name else ROOT / f"configs/hardware/{name}.json"
    return {section: {key: item.get("value", item.get("points")) for key, item in fields.items()}
            for section, fields in read_commented(path).items() if isinstance(fields, dict)}


def read_model(name):
    """Returns the config of a model's name, with the fields that its settings set."""
    settings = read_commented(ROOT / "configs/experiments/settings.json")["models"][name]
    config = read_commented(ROOT / settings["config"])
    for item in settings.get("set", []):
        field, value = item.split("=", 1)
        section, key = field.split(".", 1)
        try:
            config[section][key] = json.loads(value)
        except ValueError:
            config[section][key] = value
    return config


def all_to_alls_of(model, batch, ranks):
    """Returns (number, bytes that a rank sends) of a step's all-to-alls of tokens, four per MoE layer, and of counts,
    one."""
    config = read_model(model)
    shape, train = config["model"], config["train"]
    layers = -(-shape["n_layer"] // shape["moe_layer_freq"])
    others = (ranks - 1) / ranks
    tokens = batch * train["seq_len"] * shape["n_embd"] * (2 if train["dtype"] == "bf16" else 4) * others
    experts = shape.get("experts_per_rank", 2) * ranks
    return (4 * layers, tokens), (layers, 4 * experts * others)


def ways(hardware, ranks, sent):
    """Returns the terms in ms, and their total, of each way in which a rank can send this many bytes. Network and links
    grow with the bytes, messages and latency do not."""
    node, network = hardware["node"], hardware["network"]
    local = min(ranks, node["devices"]) - 1
    away, nodes = ranks - 1 - local, -(-ranks // node["devices"])
    within, between = sent * local / (ranks - 1), sent * away / (ranks - 1)

    def links(sent):
        return sent / (node["link_gb_per_s"] * share_at(node["all_to_all_efficiency"], local + 1, sent / 1e6) * 1e6)

    if nodes == 1:
        start = node["latency_us"] * US
        return [{"way": "links", "network": 0, "links": links(within), "messages": 0, "latency": start,
                 "total": start + links(within)}]
    share = share_at(network["all_to_all_efficiency"], nodes, between / 1e6)
    by_network = between * (local + 1) / (network["nics"] * network["nic_gbit_per_s"] / 8 * share * 1e6)
    direct = {"way": "direct", "network": by_network, "links": links(within),
              "messages": max(away - 1, 0) * network["message_us"] * US, "latency": network["latency_us"] * US}
    direct["total"] = direct["latency"] + max(direct["network"], direct["links"], direct["messages"])
    if local == 0:
        return [direct]
    steps = {"way": "two steps", "network": by_network, "links": links(within + between * local / (local + 1)),
             "messages": max(nodes - 2, 0) * network["message_us"] * US,
             "latency": (network["latency_us"] + node["latency_us"]) * US}
    steps["total"] = steps["latency"] + steps["links"] + max(steps["network"], steps["messages"])
    return [direct, steps]


def taken(hardware, ranks, sent):
    return min(ways(hardware, ranks, sent), key=lambda way: way["total"])


def is_bound_by_messages(way):
    return way["messages"] > max(way["network"], way["links"] if way["way"] == "direct" else 0)


def crossings(hardware, model, batch, ranks, parts):
    """Returns by k the first number of ranks at which the messages of the direct way take longer than its bytes, and
    the same for the faster way; None if there is no such number."""
    found = {}
    for k in parts:
        here = [(count, all_to_alls_of(model, batch, count)[0][1] / k) for count in sorted(ranks)]
        found[k] = (next((n for n, sent in here if is_bound_by_messages(ways(hardware, n, sent)[0])), None),
                    next((n for n, sent in here if is_bound_by_messages(taken(hardware, n, sent))), None))
    return found
