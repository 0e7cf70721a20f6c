"""Emulated devices where the outcome is known: with infinite links a step is the declared computation, without
computation it is the network's time, and neither the scale nor the dilation changes it."""
import itertools
import statistics
from typing import NamedTuple

from bench import policies, run
from bench.table import markdown, number, signed_percent

HARDWARE, HOSTS = "p3dn-v100", 4
POLICIES = ["sequential", "tutel", "lancet_paper", "lancet"]
MODEL = {"model.n_layer": 4, "model.vocab_size": 2048, "train.seq_len": 512, "train.micro_batch_size": 8}
EFFORT = policies.Effort(rounds=3, steps=1)
# The latency is what is left of the network, a thousandth of the step in all. The program refuses a dilation with which
# an all-to-all without bytes takes this machine much longer than declared, so that it needs some latency and a high one.
INFINITE_LINKS = "network.nic_gbit_per_s=1e6,network.latency_us=10,network.hop_us=0,network.message_us=0"
NO_COMPUTATION = ("device.bf16_tflops=1e6,device.fp32_tflops=1e6,device.vector_tflops=1e6,device.memory_gb_per_s=1e6,"
                  "device.launch_us=0")
SCALES, DILATIONS = (50, 100, 200), (12, 24)
COMPUTATION_AGREES, NETWORK_AGREES, SETTINGS_AGREE = 0.01, 0.03, 0.02


class Case(NamedTuple):
    changes: str  # of the hardware file's numbers
    scale: int
    dilation: int
    rate: str = ""  # of the links; as the hardware file declares if empty

    def setting(self):
        hardware = HARDWARE + (f":{self.changes}" if self.changes else "")
        return policies.Setting(POLICIES, HOSTS,
                                {**MODEL, **policies.fields_of(hardware, self.scale, self.dilation)})

    def up(self):
        return ["--hosts", HOSTS, "--rate", self.rate] if self.rate else policies.links(
            HOSTS, HARDWARE, self.scale, self.dilation)


def name_of(scale, dilation):
    return f"scale-{scale}-dilation-{dilation}"


CASES = {
    # What is left of the messages at this scale takes such links no time.
    "infinite-links": Case(INFINITE_LINKS, 2000, 96, "20gbit"),
    "no-computation": Case(NO_COMPUTATION, 100, 12),
    **{name_of(scale, dilation): Case("", scale, dilation) for scale in SCALES for dilation in DILATIONS}}


def steps_of(document):
    """Returns the median step of each policy in ms."""
    return {each["policy"]: statistics.median(each["step_ms"]) for each in document["policies"]}


def declared_computation(policy):
    """Returns the ms of a plan in which the compute stream is busy."""
    return policy["predicted_ms"] - policy["predicted_exposed_ms"]


def network_time(policy):
    """Returns the ms of a plan in which communication is busy and the compute stream is not: without computation, all
    of the network's time."""
    return policy["predicted_exposed_ms"]


class Line(NamedTuple):
    check: str
    policy: str
    expected: str
    found: str
    difference: float
    most: float

    def holds(self):
        return abs(self.difference) <= self.most


def against_declared(check, document, expected_of, most):
    """Compares the steps with a time that the plan declares."""
    lines = []
    for each in document["policies"]:
        expected, found = expected_of(each), steps_of(document)[each["policy"]]
        texts = (f"{number(ms)} ms" for ms in (expected, found))
        lines.append(Line(check, each["policy"], *texts, found / expected - 1, most))
    return lines


def furthest(steps):
    """Returns the pair of names whose steps differ most relative to the first's, in the order of the names."""
    return max(itertools.combinations(steps, 2), key=lambda pair: abs(steps[pair[1]] / steps[pair[0]] - 1))


def among_settings(check, groups):
    """Compares the steps within each group of cases; a line a policy, on the two that differ most. groups: documents by
    name."""
    lines = []
    for policy in POLICIES:
        pairs = []
        for group in groups:
            steps = {name: steps_of(document)[policy] for name, document in group.items()}
            one, other = furthest(steps)
            pairs.append((steps[other] / steps[one] - 1, one, other, steps))
        difference, one, other, steps = max(pairs, key=lambda pair: abs(pair[0]))
        lines.append(Line(check, policy, f"{one}: {number(steps[one])} ms", f"{other}: {number(steps[other])} ms",
                          difference, SETTINGS_AGREE))
    return lines


def checked(found):
    """Returns the lines of all checks. found: policies.json by case."""
    def chosen(names):
        return {name: found[name] for name in names}

    by_scale = [chosen(name_of(scale, dilation) for scale in SCALES) for dilation in DILATIONS]
    by_dilation = [chosen(name_of(scale, dilation) for dilation in DILATIONS) for scale in SCALES]
    return [*against_declared("infinite links: step and declared computation", found["infinite-links"],
                              declared_computation, COMPUTATION_AGREES),
            *against_declared("no computation: step and network's time", found["no-computation"], network_time,
                              NETWORK_AGREES),
            *among_settings(f"scales {', '.join(map(str, SCALES))} agree", by_scale),
            *among_settings(f"dilations {', '.join(map(str, DILATIONS))} agree", by_dilation)]


def latest(found):
    return max(each["late_pct"] for document in found.values() for each in document["policies"])


def page(found):
    """Returns the text of emulated_checks.md."""
    lines = checked(found)
    commits = ", ".join(sorted({document["commit"] for document in found.values()}))
    held = sum(line.holds() for line in lines)
    return "\n".join([
        "# Emulated devices where the outcome is known", "",
        f"`python3 scripts/bench emulated --check`, commit {commits}, {run.cpu()}. {HOSTS} hosts of {HARDWARE}, a model",
        f"of 4 layers, medians of {EFFORT.rounds} rounds of {EFFORT.steps} step, in ms of the device's own time. Infinite",
        f"links are `{CASES['infinite-links'].changes}` on links of {CASES['infinite-links'].rate}, no computation is",
        f"`{CASES['no-computation'].changes}`. Of scales and dilations the two cases are shown that differ most.", "",
        f"{held} of {len(lines)} hold. The latest messages were {latest(found):.1f}% of a step late.", "",
        *markdown(["check", "policy", "expected", "found", "difference", "at most", "holds"],
                  [[line.check, f"`{line.policy}`", line.expected, line.found, signed_percent(line.difference),
                    f"{100 * line.most:.0f}%", "yes" if line.holds() else "no"] for line in lines])]) + "\n"


def main(lancet, folder, fresh, commit, out):
    """Runs the cases that are not done and writes the page. Returns 1 if a check does not hold."""
    for name, case in CASES.items():
        if fresh or not policies.is_done(folder / name, case.setting(), EFFORT, commit):
            run.log(f"check {name}")
            with policies.Cluster("bench", *case.up()) as launcher:
                policies.compare(lancet, launcher, case.setting(), EFFORT, folder / name)
    found = {name: policies.read(folder / name, case.setting()) for name, case in CASES.items()}
    out.mkdir(parents=True, exist_ok=True)
    (out / "emulated_checks.md").write_text(page(found))
    failed = [f"{line.check}, {line.policy}" for line in checked(found) if not line.holds()]
    for line in failed:
        run.log(f"does not hold: {line}")
    return 1 if failed else 0
