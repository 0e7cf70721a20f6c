#!/usr/bin/env python3
"""Runs `lancet train` and the PyTorch peer in turn and prints tokens/s, their ratio, and resident memory.

The models come from configs/bench-*.json; the peer gets the same shape as arguments. Both sides report the median
step after two warm-up steps; a table cell is the median over the rounds, the ratio the median of each round's ratio
(the machine's speed drifts over minutes, and it drifts for both). Memory is the largest resident set of one process.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WARMUP = 2
# shape, ranks, threads a rank, steps
CASES = [("small", 1, 2, 22), ("small", 2, 1, 22), ("gpt2-s", 1, 2, 6)]


def read_config(shape):
    text = (ROOT / f"configs/bench-{shape}.json").read_text()
    return json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE))


def run(command, cwd, env=None):
    """Runs a command; returns (stdout, largest resident MB of it and the processes it waited for)."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(command, cwd=cwd, env=env, stdout=out, stderr=err)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        if process.returncode != 0:
            sys.exit(f"error: {' '.join(map(str, command))} ended with {process.returncode}:\n{err.read()[-2000:]}")
        return out.read(), usage.ru_maxrss / 1024


def run_lancet(lancet, shape, dtype, ranks, threads, steps, folder):
    run_dir = Path(folder) / "run"
    command = [lancet, "train", ROOT / f"configs/bench-{shape}.json", "--run-dir", run_dir]
    for override in (f"train.dtype={dtype}", f"train.steps={steps}", f"threads={threads}", f"log.interval={steps}"):
        command += ["--set", override]
    if ranks > 1:
        command = [ROOT / "scripts/mpirun.sh", str(ranks), *command]
    metrics = run_dir / "metrics.jsonl"
    metrics.unlink(missing_ok=True)
    _, memory = run(command, ROOT)
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    rows = [row for row in rows if row.get("tokens_per_s") is not None]
    if len(rows) != steps:
        sys.exit(f"error: {metrics}: expected {steps} steps, found {len(rows)}")
    return {"tokens_s": statistics.median(row["tokens_per_s"] for row in rows[WARMUP:]), "rss_mb": memory}


def run_peer(peer, shape, dtype, ranks, threads, steps):
    config = read_config(shape)
    model, train = config["model"], config["train"]
    arguments = {
        "layers": model["n_layer"], "hidden": model["n_embd"], "heads": model["n_head"], "seq": train["seq_len"],
        "batch": train["micro_batch_size"], "experts": model["experts_per_rank"], "vocab": model["vocab_size"],
        "capacity": model["capacity_factor"], "aux": model["router_aux_loss_coef"], "lr": train["lr"],
        "momentum": train["sgd_momentum"], "dtype": dtype, "threads": threads, "steps": steps, "warmup": WARMUP,
    }
    words = [word for name, value in arguments.items() for word in (f"--{name}", str(value))]
    pin = ["--pin"] if ranks > 1 else []
    script = '. ./env.sh tuned; exec /usr/bin/python3 launch.py "$@"'
    command = ["bash", "-c", script, "peer", str(ranks), *pin, "gpt2_moe_torch.py", *words]
    text, memory = run(command, peer, dict(os.environ, THREADS=str(threads)))
    found = re.search(r"^RESULT (\{.*\})$", text, re.MULTILINE)
    if not found:
        sys.exit(f"error: the peer printed no RESULT line:\n{text[-2000:]}")
    return {"tokens_s": json.loads(found.group(1))["tokens_s"], "rss_mb": memory}


def bench_case(options, shape, ranks, threads, steps, dtype, folder):
    rounds = []
    for number in range(options.rounds):
        ours = run_lancet(options.lancet, shape, dtype, ranks, threads, steps, folder)
        peer = run_peer(options.peer, shape, dtype, ranks, threads, steps)
        rounds.append({"lancet": ours, "peer": peer})
        print(f"   {shape} {dtype} {ranks} x {threads}, round {number + 1}/{options.rounds}: "
              f"lancet {ours['tokens_s']:.0f} tok/s, peer {peer['tokens_s']:.0f} tok/s", file=sys.stderr, flush=True)
    median = lambda side, key: statistics.median(r[side][key] for r in rounds)
    return {
        "shape": shape, "dtype": dtype, "ranks": ranks, "threads": threads, "rounds": rounds,
        "lancet_tokens_s": median("lancet", "tokens_s"), "peer_tokens_s": median("peer", "tokens_s"),
        "ratio": statistics.median(r["lancet"]["tokens_s"] / r["peer"]["tokens_s"] for r in rounds),
        "lancet_rss_mb": median("lancet", "rss_mb"), "peer_rss_mb": median("peer", "rss_mb"),
    }


def print_table(results):
    print(f"\n{'shape':8} {'dtype':5} {'ranks x threads':15} {'lancet tok/s':>12} {'peer tok/s':>11} {'ratio':>6} "
          f"{'lancet MB':>10} {'peer MB':>8}")
    for r in results:
        print(f"{r['shape']:8} {r['dtype']:5} {r['ranks']} x {r['threads']:<11} {r['lancet_tokens_s']:12.0f} "
              f"{r['peer_tokens_s']:11.0f} {r['ratio']:6.2f} {r['lancet_rss_mb']:10.0f} {r['peer_rss_mb']:8.0f}")


def machine():
    found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return {"cpu": found.group(1) if found else "unknown", "cores": os.cpu_count(), "load_at_start": os.getloadavg()[0]}


def parse_arguments():
    parser = argparse.ArgumentParser(prog="scripts/bench-peer.sh", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", type=Path, help="folder with gpt2_moe_torch.py, launch.py and env.sh")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--shape", choices=("small", "gpt2-s"), help="only this shape")
    parser.add_argument("--dtype", choices=("fp32", "bf16"), help="only this dtype")
    parser.add_argument("--json", type=Path, help="write every round here as well")
    parser.add_argument("--lancet", type=Path, default=ROOT / "build/lancet", help="the program")
    return parser.parse_args()


def main():
    options = parse_arguments()
    if options.rounds < 1:
        sys.exit(f"error: --rounds: expected at least 1, found {options.rounds}")
    if not (options.peer / "gpt2_moe_torch.py").is_file():
        sys.exit(f"error: expected gpt2_moe_torch.py in {options.peer}, found none")
    here = machine()
    print(f"{here['cpu']}, {here['cores']} cores, load {here['load_at_start']:.2f}", file=sys.stderr)
    if here["load_at_start"] > 0.5:
        print("warning: the machine is busy; the numbers will say so too", file=sys.stderr)
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for shape, ranks, threads, steps in CASES:
            for dtype in ("fp32", "bf16"):
                if options.shape in (None, shape) and options.dtype in (None, dtype):
                    results.append(bench_case(options, shape, ranks, threads, steps, dtype, folder))
    print_table(results)
    if options.json:
        options.json.write_text(json.dumps({"machine": here, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
