"""Trains configs/quickstart.json in bf16 and in fp32, on 2 ranks, and compares the losses.

Needs the data that scripts/quickstart.sh makes. Exits 1 if the mean difference over the steps is over 1%.
"""
import statistics

from bench import run

BOUND = 0.01


def losses(lancet, dtype, steps):
    run.log(f"{steps} steps in {dtype}")
    records, _ = run.train(lancet, run.ROOT / "configs/quickstart.json", run.ROOT / f"runs/compare-{dtype}", steps,
                           [f"train.dtype={dtype}", "train.eval_interval=0", "train.sample_tokens=0"],
                           [run.ROOT / "scripts/mpirun.sh", 2])
    return [record["loss"] for record in records]


def add_arguments(parser):
    parser.add_argument("--steps", type=run.at_least(1), default=200)
    run.add_program(parser)


def main(options):
    lancet = run.program(options)
    fp32, bf16 = (losses(lancet, dtype, options.steps) for dtype in ("fp32", "bf16"))
    off = [abs(b - a) / a for a, b in zip(fp32, bf16)]
    print(f"bf16 against fp32 over {len(off)} steps: mean difference {100 * statistics.mean(off):.2f}%, "
          f"largest of a single batch {100 * max(off):.2f}%")
    return 0 if statistics.mean(off) <= BOUND else 1
