"""Models on declared machines that several commands plan.

Where a case names a share of communication, the rate of the machine's network is the one at which the unsplit step
without overlap has that share.
"""
import json
import re
from typing import NamedTuple, Optional

from bench import run
from hardware_table import read_commented

CPU = "ethernet-10g-cpu"


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
