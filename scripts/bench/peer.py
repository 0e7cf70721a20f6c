"""Runs `lancet train` and a PyTorch peer in turns and prints tokens/s, their ratio, and resident memory.

The models are configs/bench-*.json; the peer gets the same shape as arguments. Both sides report the median step after
two warm-up steps. A table cell is the median over the rounds, the ratio the median of each round's ratio, since the
machine's speed drifts over minutes. Memory is the largest resident set of one process.
"""
import json
import os
import statistics
import tempfile
from pathlib import Path

from bench import run
from hardware_table import read_commented
from bench.table import markdown, number

# shape, ranks, threads a rank, steps
CASES = [("small", 1, 2, 22), ("small", 2, 1, 22), ("gpt2-s", 1, 2, 6)]


class Case:
    """A model, a dtype, and how its ranks are started on either side."""

    def __init__(self, shape, ranks, threads, steps, dtype):
        self.shape, self.ranks, self.threads, self.steps, self.dtype = shape, ranks, threads, steps, dtype
        self.config = run.ROOT / f"configs/bench-{shape}.json"

    def train_lancet(self, lancet, folder):
        launcher = [run.ROOT / "scripts/mpirun.sh", self.ranks] if self.ranks > 1 else []
        records, done = run.train(lancet, self.config, folder / "run", self.steps,
                                  [f"train.dtype={self.dtype}", f"threads={self.threads}"], launcher)
        return self.logged("lancet", run.median(records[run.WARMUP:], "tokens_per_s"), done)

    def train_peer(self, peer, python):
        config = read_commented(self.config)
        model, train = config["model"], config["train"]
        arguments = {
            "layers": model["n_layer"], "hidden": model["n_embd"], "heads": model["n_head"], "seq": train["seq_len"],
            "batch": train["micro_batch_size"], "experts": model["experts_per_rank"], "vocab": model["vocab_size"],
            "capacity": model["capacity_factor"], "aux": model["router_aux_loss_coef"], "lr": train["lr"],
            "momentum": train["sgd_momentum"], "dtype": self.dtype, "threads": self.threads, "steps": self.steps,
            "warmup": run.WARMUP}
        words = [word for name, value in arguments.items() for word in (f"--{name}", value)]
        pin = ["--pin"] if self.ranks > 1 else []
        done = run.call(["bash", "-c", '. ./env.sh tuned; exec "$@"', "peer", python, "launch.py", self.ranks, *pin,
                         "gpt2_moe_torch.py", *words], peer, dict(os.environ, THREADS=str(self.threads)))
        return self.logged("peer", run.result_line(done.out, "the peer")["tokens_s"], done)

    def logged(self, side, tokens_s, done):
        run.log(f"{self.shape} {self.dtype} {self.ranks} x {self.threads}: {side} {tokens_s:.0f} tokens/s")
        return {"tokens_s": tokens_s, "rss_mb": done.peak_mb}

    def result(self, found):
        """found: the results of both sides in each round."""
        rounds = [dict(zip(found, pair)) for pair in zip(*found.values())]
        return {"shape": self.shape, "dtype": self.dtype, "ranks": self.ranks, "threads": self.threads,
                "rounds": rounds, **{f"{side}_{key}": run.median(results, key) for side, results in found.items()
                                     for key in ("tokens_s", "rss_mb")},
                "ratio": statistics.median(each["lancet"]["tokens_s"] / each["peer"]["tokens_s"] for each in rounds)}


def print_table(results):
    print("\n".join(markdown(
        ["shape", "dtype", "ranks x threads", "lancet tok/s", "peer tok/s", "ratio", "lancet MB", "peer MB"],
        [[r["shape"], r["dtype"], f"{r['ranks']} x {r['threads']}",
          *(number(r[name], 0) for name in ("lancet_tokens_s", "peer_tokens_s")), number(r["ratio"], 2),
          *(number(r[name], 0) for name in ("lancet_rss_mb", "peer_rss_mb"))] for r in results])))


def machine():
    here = {"cpu": run.cpu(), "cores": os.cpu_count(), "load_at_start": os.getloadavg()[0]}
    run.log(f"{here['cpu']}, {here['cores']} cores, load {here['load_at_start']:.2f}")
    return here


def add_arguments(parser):
    parser.add_argument("peer", type=Path, help="folder with gpt2_moe_torch.py, launch.py and env.sh")
    parser.add_argument("--rounds", type=run.at_least(1), default=3)
    parser.add_argument("--shape", choices=sorted({shape for shape, *_ in CASES}), help="only this shape")
    parser.add_argument("--dtype", choices=("fp32", "bf16"), help="only this dtype")
    parser.add_argument("--json", type=Path, help="write every round here as well")
    run.add_program(parser)


def main(options):
    lancet, python = run.program(options), run.python_with("torch")
    if not python:
        raise run.Failed(run.NO_TORCH)
    if not (options.peer / "gpt2_moe_torch.py").is_file():
        raise run.Failed(f"expected gpt2_moe_torch.py in {options.peer}, found none")
    here, results = machine(), []
    cases = [Case(*case, dtype) for case in CASES for dtype in ("fp32", "bf16")
             if options.shape in (None, case[0]) and options.dtype in (None, dtype)]
    with tempfile.TemporaryDirectory() as folder:
        for case in cases:
            results.append(case.result(run.in_turns(options.rounds, {
                "lancet": lambda: case.train_lancet(lancet, Path(folder)),
                "peer": lambda: case.train_peer(options.peer.resolve(), python)})))
    print_table(results)
    if options.json:
        options.json.write_text(json.dumps({"machine": here, "results": results}, indent=1) + "\n")
