"""Compares the tokens per second of `lancet generate` and PyTorch, which run in turns with the same random weights,
fp32, greedy, prompt, length and number of threads. Prints a table of medians, with CPU and commit.

Needs python3-torch (and libopenblas0-openmp for its best settings), and 2 GB of disk in a temporary folder.
"""
import os
import re
import statistics
import tempfile
from pathlib import Path

from bench import run
from bench.table import markdown, number, spread

PEER = Path(__file__).resolve().with_name("generate_peer.py")
PROMPT = ["1", "2", "3"]
TUNED = {"LD_LIBRARY_PATH": "/usr/lib/x86_64-linux-gnu/openblas-openmp",
         **({"ATEN_CPU_CAPABILITY": "avx512"} if run.has_avx512() else {}),  # Debian's build picks AVX2 by itself
         "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1:glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=100000000000"}


def run_lancet(lancet, folder, tokens, threads):
    """Returns {tokens/s, ids}."""
    done = run.call([lancet, "generate", "--from", folder / "run", "--ids", "--prompt", " ".join(PROMPT),
                     "--temperature", 0, "--max-tokens", tokens, "--past-end", "--threads", threads])
    rate = float(re.search(r"then ([\d.]+) tokens/s", done.log).group(1))
    run.log(f"{threads} thread(s): lancet {rate:.1f} tokens/s")
    return {"rates": {"lancet": rate}, "ids": [int(word) for word in done.out.split()]}


def run_peer(python, folder, tokens, threads):
    """Returns {tokens/s by variant, ids, PyTorch's version}."""
    done = run.call([python, PEER, "run", folder / "hf", "--prompt", *PROMPT, "--tokens", tokens, "--threads", threads],
                    env={**os.environ, **TUNED, "OMP_NUM_THREADS": str(threads)})
    return run.result_line(done.out, "the peer")


def rows_of(threads, ours, peers):
    """Returns table rows of medians over rounds. A ratio is the median of each round's ratio, of runs one after the
    other."""
    mine = [each["rates"]["lancet"] for each in ours]
    rows = [[threads, "`lancet generate`", number(statistics.median(mine)), spread(mine), ""]]
    for name in peers[0]["rates"]:
        rates = [each["rates"][name] for each in peers]
        ratio = statistics.median(a / b for a, b in zip(mine, rates))
        rows.append([threads, f"PyTorch, {name}", number(statistics.median(rates)), spread(rates), number(ratio, 2)])
    return rows


def page(options, rounds):
    """Returns the text of the page. rounds: the results of each round, by (side, threads)."""
    rows, same = [], True
    for threads in options.threads:
        ours, peers = rounds["lancet", threads], rounds["peer", threads]
        rows += rows_of(threads, ours, peers)
        same &= all(a["ids"] == b["ids"] for a, b in zip(ours, peers))
    version = rounds["peer", options.threads[0]][0]["torch"]
    return "\n".join([
        "# Generation on the CPU", "",
        f"`python3 scripts/bench generate --rounds {options.rounds} --tokens {options.tokens} "
        f"--threads {' '.join(map(str, options.threads))}`,",
        f"commit {run.program_commit()}, {run.cpu()}, PyTorch {version}.", "",
        f"GPT-2 small's shape (124 M parameters), random weights, fp32, one sequence, greedy: {options.tokens} tokens",
        f"after a prompt of {len(PROMPT)}, timed from the first one on. Both run in turn with as many threads;",
        "medians of the rounds, ratios round by round. PyTorch in four ways: products as in `transformers` (conv1d)",
        "or as `nn.Linear`, the KV cache concatenated again for each token as `transformers` does (cat) or written in",
        "place (buffer).", "",
        "Both wrote the same tokens in every round." if same else "**The tokens differ.**", "",
        *markdown(["threads", "program", "tokens/s", "from, to", "Lancet over it"], rows)])


def add_arguments(parser):
    parser.add_argument("--rounds", type=run.at_least(1), default=3)
    parser.add_argument("--tokens", type=run.at_least(2), default=64, help="tokens of each run; the first is not timed")
    parser.add_argument("--threads", type=run.at_least(1), nargs="+", default=[1, 2])
    parser.add_argument("--out", type=Path, help="write the table here as well, e.g. docs/results/generate.md")
    run.add_program(parser)


def main(options):
    lancet, python = run.program(options), run.python_with("torch")
    if not python:
        raise run.Failed(run.NO_TORCH)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run.call([python, PEER, "make", folder / "hf"])
        run.call([lancet, "import", "--from", folder / "hf", "--out", folder / "run"])
        sides = {}
        for threads in options.threads:
            sides["lancet", threads] = lambda threads=threads: run_lancet(lancet, folder, options.tokens, threads)
            sides["peer", threads] = lambda threads=threads: run_peer(python, folder, options.tokens, threads)
        text = page(options, run.in_turns(options.rounds, sides))
    print(text)
    if options.out:
        options.out.write_text(text + "\n")
