#!/usr/bin/env python3
"""Tests scripts/bench with doubles of the program and its peers: medians, ratios, turns, tables, exit codes.

    bench_test.py
"""
import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
from bench import bounds, dtypes, generate, overlap, run  # noqa: E402

# Each run is faster than the one before: 100, 200, ... tokens/s; the two steps of warm-up are slower.
LANCET = """#!/usr/bin/env python3
import json, pathlib, sys
words = dict(word.split("=") for word in sys.argv if "=" in word)
folder = pathlib.Path(sys.argv[sys.argv.index("--run-dir") + 1])
folder.mkdir(exist_ok=True)
count = len(list(folder.parent.glob("count-*"))) + 1
(folder.parent / f"count-{count}").touch()
steps = int(words["train.steps"])
lines = [{"step": s, "tokens_per_s": 100 * count if s >= 2 else 1, "loss": 1} for s in range(steps)] + [{"eval_loss": 1}]
(folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\\n" for line in lines))
"""
PEER = """import sys
print(f"RESULT {{\\"tokens_s\\": {50 if '--pin' in sys.argv else 40}}}")
"""


def expect(found, wanted, what):
    if found != wanted:
        sys.exit(f"{what}: expected {wanted!r}, found {found!r}")


def bench(*words, **environment):
    return subprocess.run([sys.executable, ROOT / "scripts/bench", *map(str, words)], capture_output=True, text=True,
                          env={**os.environ, **environment})


def write(path, text, mode=0o644):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


BOUNDS = """
policy             step ms
sequential           200.0     100.0
lancet *             150.0     100.0

bounds: steps in ms
                     | the whole step             | in memory                  | the plan                   | in memory
way                  |     step  exposed     gain |     step  exposed     gain |     step  exposed     gain |     step  exposed     gain
today                |    180.0     80.0    +0.0% |    190.0     90.0    +0.0% |    140.0     40.0    +0.0% |    145.0     45.0    +0.0%
neighbours           |    150.0     50.0   +20.0% |    160.0     60.0   +18.8% |    140.0     40.0    +0.0% |    144.0     44.0    +0.7%
all                  |    120.0     20.0   +50.0% |    120.0     20.0   +58.3% |    120.0     20.0   +16.7% |    120.0     20.0   +20.8%
work                 |    110.0     10.0   +63.6% |    110.0     10.0   +72.7% |    110.0     10.0   +27.3% |    110.0     10.0   +31.8%
  neighbours: two halves
  work: the longer of computation (100.0 ms) and network (110.0 ms)
"""


def read_of_bounds():
    found = bounds.read_bounds(BOUNDS)
    expect(found["policies"], {"sequential": 200.0, "lancet": 150.0}, "the policies beside bounds")
    expect(found["network"], 110.0, "the network of bounds")
    expect(list(found["ways"]), ["today", "neighbours", "all", "work"], "the ways")
    expect(found["ways"]["neighbours"]["plan", "within"], (144.0, 44.0), "a way from the plan, in memory")
    results = {"fp32": {"gbit": 1.0, **found}}
    expect(bounds.most(results, "neighbours", "step", "any"), (180 / 150 - 1, "fp32"), "the largest gain")
    text = "\n".join(bounds.verdict(results))
    expect("whole step and plan: none (asked of neighbours)." in text, True, "a way that brings more than 3% somewhere")
    expect("on top of lancet's plan: neighbours." in text, True, "a way that brings less than 3% on the plan")


def usage():
    for words in ((), ("frobnicate",), ("peer", "--rounds", "0", "x"), ("generate", "--tokens", "1")):
        expect(bench(*words).returncode, 2, f"exit code of {words}")
    expect("overlap " in bench("--help").stdout, True, "the list of commands")
    expect(bench("dtypes", "--lancet", "/nowhere/lancet").stderr,
           "error: expected the program at /nowhere/lancet; build it with scripts/build.sh\n", "a program that is missing")


def turns():
    order = []
    found = run.in_turns(2, {"a": lambda: order.append("a") or len(order), "b": lambda: order.append("b") or len(order)})
    expect((order, found), (["a", "b", "a", "b"], {"a": [1, 3], "b": [2, 4]}), "turns")


def failure():
    try:
        run.call(["sh", "-c", "echo why >&2; exit 3"])
    except run.Failed as error:
        expect(str(error), "sh -c 'echo why >&2; exit 3' ended with 3:\nwhy\n", "the message")
        return
    sys.exit("a program that fails: expected Failed, found none")


def peer():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lancet = write(folder / "lancet", LANCET, 0o755)
        write(folder / "torch/torch.py", "")
        for file, text in (("gpt2_moe_torch.py", ""), ("env.sh", ""), ("launch.py", PEER)):
            write(folder / "peer" / file, text)
        done = bench("peer", folder / "peer", "--shape", "gpt2-s", "--dtype", "bf16", "--rounds", 3, "--lancet", lancet,
                     "--json", folder / "out.json", PYTHONPATH=str(folder / "torch"))
        expect(done.returncode, 0, f"exit code, {done.stderr}")
        expect(done.stdout.splitlines()[2][:43], "| gpt2-s | bf16 | 1 x 2 | 200 | 40 | 5.00 |", "the row")
        result = json.loads((folder / "out.json").read_text())["results"][0]
        expect([(each["lancet"]["tokens_s"], each["peer"]["tokens_s"]) for each in result["rounds"]],
               [(100, 40), (200, 40), (300, 40)], "the rounds")
        expect(result["lancet_rss_mb"] > 1, True, "the resident set")


def overlap_rows():
    def steps(step_ms, predicted_ms, exposed_ms):
        return [{"step_ms": step_ms, "compute_ms": 50, "a2a_ms": 40, "allreduce_ms": 5, "exposed_ms": exposed_ms,
                 "hidden_pct": 75, "predicted_ms": predicted_ms}]

    rows = []
    for policy, parts, (ms, exposed) in (("sequential", 0, (100, 40)), ("expert_pipeline", 2, (90, 20)), ("lancet", 0, (60, 10))):
        rounds = [(steps(ms - 2, ms, exposed), 2e6), (steps(ms, ms, exposed), 2e6), (steps(ms + 9, ms, exposed), 3e6)]
        rows.append({"point": "main", "what": "made up", "rate": "280mbit", "hosts": 2, "policy": policy, "parts": parts,
                     **overlap.times(rounds)})
    expect((rows[2]["step_ms"], rows[2]["communication_ms"], rows[2]["arena_mb"], rows[2]["steps"]), (60, 40, 3, 3), "medians")
    found = overlap.summary(rows)
    expect(round(found["sequential / lancet, step"], 3), 1.667, "the speed-up")
    expect(found["best expert_pipeline / lancet, step"], 1.5, "the speed-up over the best pipeline")
    expect(found["lancet step / max(compute, communication)"], 1.2, "the step over its bound")
    rows[1]["predicted_ms"] = 81
    text = overlap.page(rows)
    expect("| expert_pipeline | 2 | 90 | 50 | 40 | 5 | 20 | 81 | -10.0% | 3 |" in text.splitlines(), True, f"a row in\n{text}")
    expect(text.splitlines()[-1], "Mean error of the predicted step over all rows: 3.3%.", "the mean error")


def generation():
    options = SimpleNamespace(rounds=3, tokens=8, threads=[2], shape="tiny")
    ours = [{"rates": {"lancet": rate}, "ids": [1, 2]} for rate in (10, 30, 20)]
    peers = [{"rates": {"conv1d, cat": rate}, "ids": [1, 2], "torch": "9"} for rate in (10, 10, 5)]
    text = generate.page(options, {("lancet", 2): ours, ("peer", 2): peers})
    expect(text.splitlines()[-2:], ["| 2 | `lancet generate` | 20.0 | 10.0 to 30.0 |  |",
                                    "| 2 | PyTorch, conv1d, cat | 10.0 | 5.0 to 10.0 | 3.00 |"], "rows")
    expect("Both wrote the same tokens" in text, True, "equal tokens")
    peers[2]["ids"] = [1, 3]
    expect("**The tokens differ.**" in generate.page(options, {("lancet", 2): ours, ("peer", 2): peers}), True, "other tokens")


def losses():
    for off, code in ((1.009, 0), (1.011, 1)):
        found = iter([[1.0, 2.0], [1.0 * off, 2.0 * off]])
        dtypes.losses = lambda *_: next(found)
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            expect(dtypes.main(SimpleNamespace(lancet=Path(sys.executable), steps=2)), code, f"losses {off} apart")
        expect(f"over 2 steps: mean difference {100 * (off - 1):.2f}%" in out.getvalue(), True, out.getvalue())


if __name__ == "__main__":
    for test in (usage, read_of_bounds, turns, failure, peer, overlap_rows, generation, losses):
        test()
        print(f"{test.__name__}: as expected")
