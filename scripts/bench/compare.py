"""Compares two builds of the program: plans of every policy, and losses of short runs, must be the same byte for byte.

Plans are made for declared machines, so they do not depend on the one that this runs on. From a plan's header the build
is left out. --word OLD=NEW renames a word in the old plans, where the new build has another name for it; hashes of the
model are then left out as well. Prints each difference and the counts; exits with 1 if there is a difference.
"""
import itertools
import json
import re
import tempfile
from pathlib import Path

from bench.policies import ALL
from bench.run import ROOT, Failed, call, log

CONFIGS = ("quickstart", "bench-overlap", "gpt2-s-moe")
MACHINES = ("p3dn-v100", "ethernet-10g-cpu")
EXPERTS = ("model.experts_per_rank=2", "model.num_local_experts=null")
VARIANTS = ((), ("model.router=batch_prioritized", "overlap.parts=2"))

RUNS = ("quickstart", "bench-small", "bench-overlap")
SHORT = ("data.synthetic=true", "data.train=", "data.eval=", "data.tokenizer=", "train.sample_tokens=0",
         "train.save_minutes=0", "train.steps=3", "train.micro_batch_size=4", "log.peak_tflops=1", "overlap.policy=sequential")
COMPARED = ("step", "loss", "aux_loss", "grad_norm", "layer_expert_tokens", "drop_pct")


def options(settings):
    return [word for setting in settings for word in ("--set", setting)]


def add_arguments(parser):
    parser.add_argument("old", type=Path, help="the program of one build")
    parser.add_argument("new", type=Path, help="the program of the other")
    parser.add_argument("--word", action="append", default=[], metavar="OLD=NEW", help="a word that was renamed")


def plan_of(lancet, words, folder):
    out = folder / "plan.ir"
    try:
        call([lancet, "plan", *words, "--out", out])
    except Failed as error:
        return f"refused: {str(error).splitlines()[-1]}"
    return out.read_text()


def differing_plans(args, folder):
    renames = [word.partition("=")[::2] for word in args.word]
    hashes = re.compile(r"\b(build|model)=\w+" if renames else r"\bbuild=\w+")
    for config, machine, ranks, policy, more in itertools.product(CONFIGS, MACHINES, (1, 2, 8), ALL, VARIANTS):
        words = [ROOT / f"configs/{config}.json", "--on", machine, "--ranks", ranks,
                 *options((*EXPERTS, f"overlap.policy={policy}", *more))]
        old, new = (hashes.sub("", plan_of(lancet, words, folder)) for lancet in (args.old, args.new))
        for before, after in renames:
            old = old.replace(before, after)
        yield (" ".join((config, machine, f"{ranks} ranks", policy, *more)) if old != new else None)


def losses_of(lancet, words, ranks, folder):
    launcher = [] if ranks == 1 else [ROOT / "scripts/mpirun.sh", ranks]
    call([*launcher, lancet.resolve(), "train", *words, "--run-dir", folder])
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [{key: line.get(key) for key in COMPARED} for line in lines if "loss" in line]


def differing_losses(args, folder):
    for number, (config, dtype, ranks, bucket) in enumerate(itertools.product(RUNS, ("fp32", "bf16"), (1, 2), (None, 100000))):
        more = (f"train.dtype={dtype}", *([f"overlap.bucket_bytes={bucket}"] if bucket else []))
        words = [ROOT / f"configs/{config}.json", *options((*SHORT, *more))]
        old, new = (losses_of(lancet, words, ranks, folder / f"{name}-{number}")
                    for name, lancet in (("old", args.old), ("new", args.new)))
        yield (" ".join((config, f"{ranks} ranks", *more)) if old != new or len(old) != 3 else None)


def main(args):
    status = 0
    with tempfile.TemporaryDirectory() as scratch:
        for what, differing in (("plans", differing_plans), ("runs", differing_losses)):
            compared, different = 0, 0
            for difference in differing(args, Path(scratch)):
                compared += 1
                if difference:
                    different, status = different + 1, 1
                    log(f"differs: {difference}")
            print(f"{compared} {what} compared, {different} differ")
    return status
