"""Runs `lancet train` and a PyTorch peer in turns and prints tokens/s, their ratio, and resident memory.

The models are configs/bench-*.json. Of GPT-2's shapes the peer is gpt2_moe_torch.py of a folder that is given, which
gets the same shape as arguments. That of qwen3-moe is qwen3_peer.py: both sides start from the same weights and train
on the same tokens, and their losses must agree. Its experts are computed in two ways, of which the faster counts;
besides, Lancet trains the dense model of equal FLOPs. All sides report the median step after two warm-up steps. A table
cell is the median over the rounds, the ratio the median of each round's ratio, since the machine's speed drifts over
minutes. Memory is the largest resident set of one process.
"""
import json
import os
import statistics
import tempfile
from pathlib import Path

from bench import run
from bench.generate import TUNED
from hardware_table import read_commented
from bench.table import markdown, number

# shape, ranks, threads a rank, steps
CASES = [("small", 1, 2, 22), ("small", 2, 1, 22), ("gpt2-s", 1, 2, 6), ("qwen3-moe", 1, 2, 5)]
QWEN3 = Path(__file__).resolve().with_name("qwen3_peer.py")
# Largest relative difference of the losses of a step. In bf16 the sides round at other places, and a token whose
# experts' scores are close goes to another one.
LOSS_BOUND = {"fp32": 3e-4, "bf16": 3e-3}


class Case:
    """A model, a dtype, and how its ranks are started on either side."""

    def __init__(self, shape, ranks, threads, steps, dtype):
        self.shape, self.ranks, self.threads, self.steps, self.dtype = shape, ranks, threads, steps, dtype
        self.config = run.ROOT / f"configs/bench-{shape}.json"

    def sides(self, lancet, python, options, folder):
        """Returns the functions that train, by name: those of the peers start with "peer"."""
        return {"lancet": lambda: self.train_lancet(lancet, folder),
                "peer": lambda: self.train_peer(options.peer.resolve(), python)}

    def train_lancet(self, lancet, folder, config=None, side="lancet", settings=(), words=()):
        launcher = [run.ROOT / "scripts/mpirun.sh", self.ranks] if self.ranks > 1 else []
        records, done = run.train(lancet, config or self.config, folder / "run", self.steps,
                                  [f"train.dtype={self.dtype}", f"threads={self.threads}", *settings], launcher, words)
        return {**self.logged(side, run.median(records[run.WARMUP:], "tokens_per_s"), done),
                "losses": [record["loss"] for record in records]}

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
        """found: the results of each side in each round."""
        rounds = [dict(zip(found, each)) for each in zip(*found.values())]
        peer = max((side for side in found if side.startswith("peer")),
                   key=lambda side: run.median(found[side], "tokens_s"))

        def over(side):
            return statistics.median(each["lancet"]["tokens_s"] / each[side]["tokens_s"] for each in rounds)

        return {"shape": self.shape, "dtype": self.dtype, "ranks": self.ranks, "threads": self.threads,
                "rounds": rounds, "peer": peer,
                **{f"{name}_{key}": run.median(found[side], key) for key in ("tokens_s", "rss_mb")
                   for name, side in (("lancet", "lancet"), ("peer", peer))},
                "ratio": over(peer), "over_dense": over("dense") if "dense" in found else None}


class Qwen3Case(Case):
    """A case whose sides start from the same weights, on the same tokens."""

    def sides(self, lancet, python, options, folder):
        model = folder / self.shape
        if not model.exists():
            run.call([python, QWEN3, "make", model, json.dumps(read_commented(self.config))])
        tokens = ["data.synthetic=false", f"data.train={model / 'tokens.bin'}"]
        dense = run.ROOT / "configs/bench-qwen3.json"
        sides = {"lancet": lambda: self.train_lancet(lancet, folder, settings=tokens, words=["--init-from", model]),
                 "dense": lambda: self.train_lancet(lancet, folder, dense, "dense", tokens)}
        for experts in options.experts:
            sides[f"peer {experts}"] = lambda experts=experts: self.train_qwen3(python, model, experts)
        return sides

    def train_qwen3(self, python, model, experts):
        # OpenBLAS 0.3.21 does not know the newest Intel cores: fp32 products at 30 GFLOP/s a core, with this 104.
        blas = {"OPENBLAS_CORETYPE": "SkylakeX"} if "Intel" in run.cpu() else {}
        done = run.call([python, QWEN3, "run", model, "--experts", experts, "--dtype", self.dtype, "--threads",
                         self.threads, "--steps", self.steps, "--warmup", run.WARMUP],
                        env={**os.environ, **TUNED, **blas, "OMP_NUM_THREADS": str(self.threads),
                             "GOMP_SPINCOUNT": "10000"})  # pools of the main and the backward thread share the cores
        result = run.result_line(done.out, "the peer")
        return {**self.logged(f"peer, {experts},", result["tokens_s"], done), "losses": result["losses"]}

    def result(self, found):
        ours = found["lancet"][0]["losses"]
        for side in (side for side in found if side.startswith("peer")):
            theirs = found[side][0]["losses"]
            apart = max(abs(a / b - 1) for a, b in zip(ours, theirs))
            run.log(f"{self.shape} {self.dtype}: losses {ours[0]:.5f} to {ours[-1]:.5f}, of {side} within {apart:.1e}")
            if not apart < LOSS_BOUND[self.dtype]:
                raise run.Failed(f"losses: expected {ours} within {LOSS_BOUND[self.dtype]}, found {theirs} of {side}")
        return super().result(found)


def print_table(results):
    print("\n".join(markdown(
        ["shape", "dtype", "ranks x threads", "lancet tok/s", "peer tok/s", "ratio", "lancet MB", "peer MB",
         "over dense"],
        [[r["shape"], r["dtype"], f"{r['ranks']} x {r['threads']}",
          *(number(r[name], 0) for name in ("lancet_tokens_s", "peer_tokens_s")), number(r["ratio"], 2),
          *(number(r[name], 0) for name in ("lancet_rss_mb", "peer_rss_mb")), number(r["over_dense"], 2)]
         for r in results])))


def machine():
    here = {"cpu": run.cpu(), "cores": os.cpu_count(), "load_at_start": os.getloadavg()[0]}
    run.log(f"{here['cpu']}, {here['cores']} cores, load {here['load_at_start']:.2f}")
    return here


def add_arguments(parser):
    parser.add_argument("peer", type=Path, nargs="?",
                        help="folder with gpt2_moe_torch.py, launch.py and env.sh, for GPT-2's shapes")
    parser.add_argument("--rounds", type=run.at_least(1), default=3)
    parser.add_argument("--shape", choices=sorted({shape for shape, *_ in CASES}), help="only this shape")
    parser.add_argument("--dtype", choices=("fp32", "bf16"), help="only this dtype")
    parser.add_argument("--experts", nargs="+", choices=("bmm", "loop"), default=["bmm", "loop"],
                        help="qwen3-moe: ways in which the peer computes its experts")
    parser.add_argument("--json", type=Path, help="write every round here as well")
    run.add_program(parser)


def main(options):
    lancet, python = run.program(options), run.python_with("torch")
    if not python:
        raise run.Failed(run.NO_TORCH)
    cases = [(Qwen3Case if case[0] == "qwen3-moe" else Case)(*case, dtype) for case in CASES
             for dtype in ("fp32", "bf16") if options.shape in (None, case[0]) and options.dtype in (None, dtype)]
    given = options.peer and (options.peer / "gpt2_moe_torch.py").is_file()
    if not given and any(type(case) is Case for case in cases):
        raise run.Failed(f"expected a folder with gpt2_moe_torch.py, found {options.peer}")
    here, results = machine(), []
    with tempfile.TemporaryDirectory() as folder:
        for case in cases:
            results.append(case.result(run.in_turns(options.rounds,
                                                    case.sides(lancet, python, options, Path(folder)))))
    print_table(results)
    if options.json:
        options.json.write_text(json.dumps({"machine": here, "results": results}, indent=1) + "\n")
