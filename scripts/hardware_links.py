#!/usr/bin/env python3
"""Prints how fast the links of an emulated host are, as a hardware file declares, for scripts/emulate-cluster.sh.

    hardware_links.py NAME_OR_PATH[;NAME_OR_PATH...] HOSTS RANKS_PER_HOST SCALE DILATION

A name may have values behind it, as in p3dn-v100:network.nics=8,network.nic_gbit_per_s=25.
A line for all hosts, or for each, if as many names are given: in bits of messages a second the host's link, each way,
and what its ranks send to each other. A host stands for RANKS_PER_HOST of a node's devices and has their share of the
node's NICs. A link has one rate: that of large all-to-alls among HOSTS nodes. Bytes are divided by the scale and times
multiplied by the dilation, so rates are divided by both. Exits with 2 and a line on bad input.
"""
import json
import math
import pathlib
import sys

from hardware_table import changed, read_commented, share_at

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "configs/hardware"
LEAST, MOST = 64e3, 100e9  # bit/s; a packet of 1,500 bytes then takes 0.2 s, or 0.1 us
RATE, COUNT = (1e-6, 1e9), (1, 4096)
FIELDS = {"node.devices": COUNT, "node.link_gb_per_s": RATE, "network.nics": COUNT, "network.nic_gbit_per_s": RATE}


def fail(text):
    print(f"error: {text}", file=sys.stderr)
    sys.exit(2)


def find(name):
    path = pathlib.Path(name) if "/" in name or name.endswith(".json") else FOLDER / f"{name}.json"
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in FOLDER.glob("*.json")))
        fail(f"--hardware: expected a file or one of {known}, found '{name}'")
    return path


def read(path, values):
    try:
        root = read_commented(path)
    except (OSError, ValueError, RecursionError) as error:
        fail(f"{path}: expected a hardware file, found one that cannot be read: {error}")
    try:
        return changed(root, values)
    except ValueError as error:
        fail(f"--hardware: {error}")


def number(path, root, field):
    section, name = field.split(".")
    value, (least, most) = root[section][name]["value"], FIELDS[field]
    if not least <= value <= most:
        fail(f"{path}: {field}.value: expected a number from {least:g} to {most:g}, found {value:g}")
    return value


def share_of_large(path, root, section, places):
    """Returns the share that all-to-alls of any size beyond the table's largest reach."""
    table = root[section]["all_to_all_efficiency"]["points"]
    if not table or not all(min(row) > 0 and row[2] <= 1 for row in table):
        fail(f"{path}: {section}.all_to_all_efficiency.points: expected a list of [places, MB, share], found "
             f"{json.dumps(table)[:60]}")
    return share_at(table, places, math.inf)


def positive(option, text):
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        fail(f"{option}: expected a number above 0, found '{text}'")
    return value


def check(what, unscaled, scale, dilation):
    """`unscaled`: bit/s at this dilation and scale 1."""
    if not LEAST <= unscaled / scale <= MOST:
        fail(f"--scale: expected {unscaled / MOST:.3g} to {unscaled / LEAST:.3g} with a dilation of {dilation:g}, so "
             f"that {what} has 64 kbit/s to 100 Gbit/s, found {scale:g}")


def print_links(name, hosts, ranks, scale, dilation):
    """Prints the rates of the links that Hardware::part_of_node (src/cost/hardware.cpp) plans for."""
    name, _, values = name.partition(":")
    path = find(name)
    root = read(path, values)
    devices, link, nics, nic = (number(path, root, field) for field in FIELDS)
    if not 1 <= int(ranks) <= devices:
        fail(f"--ranks-per-host: expected 1 to {devices:g}, the devices of a node in {path}, found {ranks}")
    share = share_of_large(path, root, "network", int(hosts))
    network = nics * nic * 1e9 * share * int(ranks) / devices / dilation
    within = int(ranks) * link * 8e9 * share_of_large(path, root, "node", int(ranks)) / dilation
    check("a host's link", network, scale, dilation)
    if int(ranks) > 1:
        check("what ranks of a host send to each other", within, scale, dilation)
    print(round(network / scale), round(within / scale))


def main(names, hosts, ranks, scale, dilation):
    names, scale, dilation = names.split(";"), positive("--scale", scale), positive("--dilation", dilation)
    if len(names) not in (1, int(hosts)):
        fail(f"--hardware: expected one name, or one for each of {hosts} hosts, found {len(names)}")
    for name in names:
        try:
            print_links(name, hosts, ranks, scale, dilation)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            fail(f"{name}: expected numbers with their sources, found {type(error).__name__} {error}")


main(*sys.argv[1:])
