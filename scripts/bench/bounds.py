"""Simulates what each known way to overlap would bring with ideal dependencies, and writes bounds.md and bounds.csv.

A case is a model on a declared machine. Where a case names a share of communication, the rate of the machine's network
is the one at which the unsplit step without overlap has that share. `lancet plan --bounds` then gives the ideal step
under each way, from the whole step and from lancet's plan, with and without a limit of memory. Nothing is measured.
"""
import json
import re
import tempfile
from pathlib import Path
from typing import NamedTuple, Optional

from bench import run
from bench.table import markdown, number, percent, signed_percent, write_page
from hardware_table import read_commented

CPU = "ethernet-10g-cpu"
STARTS = ("step", "plan")  # from the whole step, and from lancet's plan
MEMORIES = ("any", "within")
WHERE = [(start, memory) for start in STARTS for memory in MEMORIES]


class Share(NamedTuple):
    """A share of communication that the rate of the network is to give: all collectives of activations in the step, or
    the all-to-alls over the computation of the experts."""
    of: str
    value: float

    def over_rest(self, value):
        """Returns the communication over what does not depend on the network, for a value of the share."""
        return value / (1 - value) if self.of == "step" else value

    def words(self):
        what = {"step": "collectives of activations / sequential step", "experts": "all-to-alls / experts' computation"}
        return f"{what[self.of]} = {self.value}"


class Case(NamedTuple):
    what: str
    config: str
    settings: list
    ranks: int
    hardware: str
    share: Optional[Share] = None
    memory: float = 1.05


def tensor(ranks):
    return Case(f"tensor parallel, {ranks} hosts", "configs/bench-overlap.json",
                ["model.moe_layer_freq=0", "model.n_head=8", f"mesh.tensor={ranks}", "train.sequence_parallel=true"],
                ranks, CPU, Share("step", 0.3))


def layer(ranks, ratio):
    return Case(f"one MoE layer, {ranks} hosts, {ratio}", "configs/bench-overlap.json",
                ["model.n_layer=1", "model.moe_layer_freq=1", "model.n_embd=512", "model.n_head=8",
                 "model.vocab_size=256"],
                ranks, CPU, Share("experts", ratio))


def paper(model, hardware, ranks, *settings):
    found = read_commented(run.ROOT / "configs/experiments/settings.json")["models"][model]
    what = ", ".join([model, *(setting.split(".")[1] for setting in settings[1:])])
    return Case(what, found["config"], [*found["set"], *settings], ranks, hardware)


BENCH = Case("fp32, 6 x 256", "configs/bench-overlap.json", [], 2, CPU, Share("step", 0.4))
CASES = {
    "fp32": BENCH,
    "fp32-memory": BENCH._replace(what="fp32, 6 x 256, 1.3 x the memory", memory=1.3),
    "bf16": BENCH._replace(what="bf16, 6 x 256", settings=["train.dtype=bf16"]),
    "fp32-zero": BENCH._replace(what="fp32, 6 x 256, zero=1, clip_grad=1",
                                settings=["train.zero=1", "train.clip_grad=1"]),
    "bf16-zero": BENCH._replace(what="bf16, 6 x 256, zero=1, clip_grad=1",
                                settings=["train.dtype=bf16", "train.zero=1", "train.clip_grad=1"]),
    **{f"tensor-{ranks}": tensor(ranks) for ranks in (2, 4, 8)},
    **{f"layer-{ranks}-{ratio}": layer(ranks, ratio) for ranks in (4, 8) for ratio in (0.3, 0.6, 1.0)},
    "v100-s": paper("GPT2-S-MoE", "p3dn-v100", 32, "train.micro_batch_size=16"),
    "v100-s-zero": paper("GPT2-S-MoE", "p3dn-v100", 32, "train.micro_batch_size=16", "train.zero=1",
                         "train.clip_grad=1"),
    "v100-l": paper("GPT2-L-MoE", "p3dn-v100", 32, "train.micro_batch_size=8"),
    "a100-s": paper("GPT2-S-MoE", "p4de-a100", 32, "train.micro_batch_size=24"),
    "a100-l": paper("GPT2-L-MoE", "p4de-a100", 32, "train.micro_batch_size=48"),
    "h100-l": paper("GPT2-L-MoE bf16", "dgx-h100", 64, "train.micro_batch_size=16"),
    "h100-l-zero": paper("GPT2-L-MoE bf16", "dgx-h100", 64, "train.micro_batch_size=16", "train.zero=1",
                         "train.clip_grad=1"),
    "h100-l-tensor": paper("GPT2-L-MoE bf16", "dgx-h100", 64, "train.micro_batch_size=16", "mesh.tensor=8",
                           "train.sequence_parallel=true"),
}


class Plans:
    """Runs `lancet plan`. folder: for hardware files and plans. changes: of the hardware files' numbers, by section."""
    changes = {}

    def __init__(self, lancet, folder):
        self.lancet, self.folder = lancet, folder

    def target(self, case, hardware):
        """Returns the words that name the ranks and their machine."""
        return ["--ranks", case.ranks, "--on", hardware]

    def plan(self, case, hardware, policy, *words):
        return run.call([self.lancet, "plan", case.config, *self.target(case, hardware),
                         *run.sets([*case.settings, f"overlap.policy={policy}"]), *words]).out

    def planned(self, case, hardware, policy, *words):
        """Returns what `lancet plan --json` says of a step under a policy."""
        return json.loads(self.plan(case, hardware, policy, "--alone", "--json", *words))

    def hardware_at(self, case, gbit):
        """Writes the case's hardware file with another rate of its network; returns its path."""
        document = read_commented(run.ROOT / f"configs/hardware/{case.hardware}.json")
        for section, numbers in {**self.changes, "network": {"nic_gbit_per_s": gbit}}.items():
            document[section] |= {name: {"value": value, "source": "of the case"} for name, value in numbers.items()}
        path = self.folder / "hardware.json"
        path.write_text(json.dumps(document))
        return path

    def share_at(self, case, gbit):
        path = self.folder / "plan.ir"
        self.plan(case, self.hardware_at(case, gbit), "sequential", "--out", path)
        return share_in(path.read_text(), case.share.of)

    def rate_of(self, case):
        """Returns the rate in Gbit/s at which the communication has the case's share. Its time is nearly in inverse
        proportion to the rate."""
        gbit = 1.0
        for _ in range(20):
            found = self.share_at(case, gbit)
            if abs(found / case.share.value - 1) < 0.005:
                return gbit
            gbit *= case.share.over_rest(found) / case.share.over_rest(case.share.value)
        raise run.Failed(f"{case.what}: no rate gives {case.share.words()}; the last one gives {found:.3f}")

    def bounds(self, case):
        gbit = self.rate_of(case) if case.share else None
        hardware = self.hardware_at(case, gbit) if gbit else case.hardware
        text = self.plan(case, hardware, "lancet", "--bounds",
                         *run.sets([f"overlap.memory_factor={case.memory}"]))
        return {"gbit": gbit, **read_bounds(text)}


OP = re.compile(r"\[\d+\] (?:.* = )?(\w+)\(")
PLACE = re.compile(r"  # (\w+) (\w+)(?: ([^ |]+))?")  # the stream, the role, where in the model
TIMES = re.compile(r"\| ms (\S+) (\S+)$")


def share_in(plan, of):
    """Returns the share of communication in the text of a plan without overlap."""
    network = experts = 0.0
    for line in plan.splitlines():
        times, place = TIMES.search(line), PLACE.search(line)
        if not times or not place or not OP.match(line):
            continue
        (begin, end), (stream, _, label) = map(float, times.groups()), place.groups("")
        if stream == "expert":
            network += end - begin
        elif stream == "compute" and ".moe.experts" in label:
            experts += end - begin
    return network / (float(re.search(r"predicted_ms=([^,}]+)", plan).group(1)) if of == "step" else experts)


def read_bounds(text):
    """Returns what `lancet plan --bounds` printed: the predicted steps of its policies and the ideal steps by way,
    start and memory, as (ms, exposed ms)."""
    predicted = re.findall(r"^(sequential|lancet)(?: \*)? +(\d+\.\d+) ", text, re.M)
    policies = {name: float(step) for name, step in predicted}
    table = text[text.index("\nbounds: "):].splitlines()
    rows = [[cell.strip() for cell in line.split(" | ")] for line in table if line.count(" | ") == 4]
    ways = {}
    for name, *cells in rows:
        numbers = [cell.split() for cell in cells]
        if all(re.fullmatch(r"-?\d+\.\d+", group[0]) for group in numbers):
            ways[name] = {key: (float(ms), float(exposed)) for key, (ms, exposed, *_) in zip(WHERE, numbers)}
    network = float(re.search(r"network \(([\d.]+) ms\)", text).group(1))
    if "today" not in ways or "work" not in ways:
        raise run.Failed(f"lancet plan --bounds printed no bounds:\n{text[-2000:]}")
    return {"policies": policies, "network": network, "ways": ways}


def gain(found, way, start, memory):
    return found["ways"]["today"][start, memory][0] / found["ways"][way][start, memory][0] - 1


def names_of(results):
    """Returns the ways without the lines that begin and end the table."""
    return [way for way in next(iter(results.values()))["ways"] if way not in ("today", "work")]


def steps_table(results):
    rows = []
    for name, found in results.items():
        case, ways, policies = CASES[name], found["ways"], found["policies"]
        shown = (policies.get("sequential"), ways["today"]["step", "within"][0], policies.get("lancet"),
                 ways["today"]["plan", "within"][0], ways["all"]["step", "within"][0], ways["work"]["step", "any"][0])
        rows.append([name, case.what, case.ranks, case.hardware, number(found["gbit"], 3),
                     case.share.words() if case.share else "", number(case.memory, 2), *map(number, shown)])
    return markdown(["case", "what", "ranks", "hardware", "Gbit/s", "chosen for", "memory", "sequential", "today",
                     "lancet", "lancet, ideal", "all", "work"], rows)


def gains(results, heading, start, memory):
    ways = names_of(results)
    rows = [[name, *(signed_percent(gain(found, way, start, memory)) for way in ways)]
            for name, found in results.items()]
    return [f"## Gain over {heading}", "", *markdown(["case", *ways], rows), ""]


def hidden(results):
    """Of the steps of one layer, the share of communication that is hidden."""
    shown = ["today", "rows and columns", "capacity or peers", "batch", "all"]
    rows = [[name, *(percent(1 - found["ways"][way]["step", "within"][1] / found["network"]) for way in shown)]
            for name, found in results.items() if name.startswith("layer-")]
    return ["## Hidden communication of one MoE layer", "", *markdown(["case", *shown], rows), ""] if rows else []


def largest(results):
    rows = []
    for way in names_of(results)[:-1]:  # the last are all ways
        most = (max((gain(found, way, *where), name) for name, found in results.items()) for where in WHERE)
        rows.append([way, *(f"{signed_percent(value)} ({name})" for value, name in most)])
    return ["## The largest gain of each way", "", *markdown(
        ["way", "whole step", "whole step, in memory", "lancet's plan", "lancet's plan, in memory"], rows), ""]


def page(results, command):
    """Returns the lines of bounds.md. results: what read_bounds() returns, and the rate, by case."""
    return [
        "# What ways to overlap would bring", "",
        f"`{command}`, commit {run.program_commit()}. **Simulated**: declared machines, list schedules of ideal",
        "dependencies, no run. Tiles of instructions have no overhead, messages take turns on the network, streams do",
        "not slow each other down, launches and moving bytes take no time. [What the lines",
        "mean](../planning.md#what-another-way-to-overlap-would-bring).", "",
        "A list schedule is what a search has found, so a way may bring a little more than its number; none brings",
        "more than the step over `work`. Steps are in ms. `today`: the unsplit step, weight gradients in its gaps.",
        "`lancet`: its predicted step, with launches and interference; `lancet, ideal`: the best order of its parts",
        "without these, in the same memory. `all`: all ways. `work`: the longer of computation and network.", "",
        *steps_table(results), "", *largest(results),
        *gains(results, "the whole step with today's dependencies, within the memory of the case", "step", "within"),
        *gains(results, "lancet's plan, within the memory of the case", "plan", "within"),
        *gains(results, "lancet's plan, any memory", "plan", "any"), *hidden(results)]


def csv_rows(results):
    return [{"case": name, "ranks": CASES[name].ranks, "hardware": CASES[name].hardware, "gbit": found["gbit"],
             "way": way, "start": start, "memory": CASES[name].memory if memory == "within" else "any", "step_ms": ms,
             "exposed_ms": exposed, "gain_pct": 100 * gain(found, way, start, memory)}
            for name, found in results.items() for way, steps in found["ways"].items()
            for (start, memory), (ms, exposed) in steps.items()]


def add_arguments(parser):
    run.add_options(parser, "--cases", CASES)


def main(options):
    names, results = run.chosen("--cases", options.cases, CASES), {}
    command = run.command("bounds", options, cases=",".join(CASES))
    with tempfile.TemporaryDirectory() as folder:
        plans = Plans(run.program(options), Path(folder))
        for name in names:
            results[name] = plans.bounds(CASES[name])
            today, together = (results[name]["ways"][way]["step", "within"][0] for way in ("today", "all"))
            run.log(f"{name}: today {today:.1f} ms, all {together:.1f} ms")
            write_page(options.out / "bounds", page(results, command), csv_rows(results))
