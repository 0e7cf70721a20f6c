#!/usr/bin/env python3
"""Plants faults in the sources, one after the other, and says which mix finds each: faults.py [BUILD [NAME...]]

Each fault is one text replaced. The folder BUILD (build) is built with it, and up to 200 mixes run until one fails. The
sources are restored, also after an interruption; the last build is of them again.
"""
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MIXES = 200

# name: file, text, replacement
FAULTS = {
    "the auxiliary loss scaled by the ranks": (
        "src/model/route.cpp", '{"coefficient", aux_loss_coefficient()}};',
        '{"coefficient", aux_loss_coefficient() * double(b_.options().loads)}};'),
    "an expert's gradient not summed over its replicas": (
        "src/passes/optimize.cpp", "      if (group.empty()) continue;\n      gradients_",
        "      if (group.empty() || group == Axes{ir::Axis::data}) continue;\n      gradients_"),
    "an expert's gradient divided by the wrong group": (
        "src/passes/optimize.cpp", "operands.push_back(update.gradient);",
        "const bool twice = parameter.sharding && parameter.sharding->used().has(ir::Axis::expert) &&\n"
        "                       options_.mesh[ir::Axis::data] > 1;\n"
        "    operands.push_back(update.gradient);\n"
        "    if (twice)\n"
        "      operands.back() = ops::append(program_, \"add\", {update.gradient, update.gradient}, {}, Role::update,\n"
        "                                    parameter.name)[0];"),
    "the norm without the correction for replicas": (
        "src/passes/optimize.cpp", "return update.group | (sharding ? sharding->used() : ir::Axes{});",
        "const ir::Axes copies = options_.mesh[ir::Axis::data] > 1 ? ir::Axes{ir::Axis::data} : ir::Axes{};\n"
        "    return copies | update.group | (sharding ? sharding->used() : ir::Axes{});"),
    "a micro batch's auxiliary loss dropped from the record": (
        "src/train/trainer.cpp", "for (const float* aux : micro.layers.aux) record.aux_loss += aux[0];",
        "if (&micro == &step_.micro_batches[0])\n"
        "        for (const float* aux : micro.layers.aux) record.aux_loss += aux[0];"),
    "a save that swaps two blocks": (
        "src/run/checkpoint_tensors.cpp", "    for (const HeldRun& run : arrival.runs)\n",
        "    auto runs = arrival.runs;\n"
        "    if (runs.size() > 1 && runs[0].count == runs[1].count) std::swap(runs[0].held, runs[1].held);\n"
        "    for (const HeldRun& run : runs)\n"),
    "a reshard that swaps two blocks": (
        "src/ops/cpu_shards.h", "put_shard(layout, unit, shard, shards + shard * layout.shard() * unit, whole);",
        "put_shard(layout, unit, layout.shards - 1 - shard, shards + shard * layout.shard() * unit, whole);"),
    "a moment not resumed": (
        "src/run/checkpoint_tensors.cpp", "if (!is_loaded(tensor, scope) || tensor.elsewhere) continue;",
        "if (!is_loaded(tensor, scope) || tensor.elsewhere || tensor.state == ir::StateKind::first_moment) continue;"),
    "a tied embedding counted twice": (
        "src/passes/stages.cpp", "if (holders.front() != stage_) result_.copies",
        "if (holders.front() != stage_ && false) result_.copies"),
}


def build(folder):
    subprocess.run(["ninja", "-C", folder, "mixes"], check=True, stdout=subprocess.DEVNULL)


def find(folder):
    """The number of the first mix that fails, and why; None if none does."""
    run = subprocess.Popen([Path(folder) / "tests/mixes", "--from", "1", "--count", str(MIXES), "--first"],
                           stdout=subprocess.PIPE, text=True)
    for line in run.stdout:
        if found := re.match(r"mix (\d+): [\d.]+ s, FAILS: (.*)", line):
            run.kill()
            run.wait()
            return found[1], found[2]
    return None if run.wait() == 0 else ("?", f"exit code {run.returncode}")


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else "build"
    missed = 0
    for name in sys.argv[2:] or FAULTS:
        file, text, by = FAULTS[name]
        path = ROOT / file
        source = path.read_text()
        if source.count(text) != 1:
            sys.exit(f"{name}: expected the text once in {file}, found it {source.count(text)} times: {text}")
        try:
            path.write_text(source.replace(text, by))
            build(folder)
            start = time.time()
            found = find(folder)
            seconds = time.time() - start
        finally:
            path.write_text(source)
        missed += found is None
        told = f"mix {found[0]}, {seconds:.0f} s: {found[1]}" if found else f"NOT in {MIXES} mixes"
        print(f"| {name} | {told} |", flush=True)
    build(folder)
    sys.exit(missed > 0)


if __name__ == "__main__":
    main()
