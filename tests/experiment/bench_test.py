#!/usr/bin/env python3
"""Tests scripts/bench with doubles of the program and its peers: medians, ratios, turns, tables, exit codes.

    bench_test.py
"""
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
from bench import declared, generate, overlap, policies, recompute, run  # noqa: E402

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


def plan_within(limit):
    """What `lancet plan` says of a step of 100 MB, 80 of them activations, of which any part may go, at 1 ms a MB."""
    if limit < 20:
        raise run.Failed("error: train.memory_limit_mb: expected at least 20, which a rank needs, found less")
    kept = min(80, limit - 20)
    return {"chosen": "sequential", "policies": [{"policy": "sequential", "step_ms": 280 - kept}],
            "recomputed_ms": 80 - kept, "recomputed_beside_ms": 1, "memory": {
                "bytes": (20 + kept) * 10**6, "all_kept_bytes": 10**8, "activations_kept_bytes": kept * 10**6,
                "activations_bytes": 8 * 10**7}}


def limits_of_memory():
    class Plans:
        def planned(self, case, hardware, policy, *words):
            return plan_within(int(words[-1].split("=")[1]))

    free, found = recompute.measured(Plans(), None, "", "sequential", 0.5)
    expect((free["mb"], free["again_ms"], found["limit_mb"], found["kept_mb"]), (100.0, 0.0, 60, 40.0), "the limit")
    row = recompute.row_of("dense", "sequential", free, found)
    expect((round(row["added"], 3), row["kept_share"], row["again_ms"]), (0.2, 0.5, 40.0), "what the limit costs")
    expect("| 80 | 50% | 100 | 60 | 200.0 | 240.0 | +20.0% | 40.0 | 1.0 |" in "\n".join(recompute.page([row], "command", 0.5)), True,
           "the row of a limit")


def usage():
    for words in ((), ("frobnicate",), ("peer", "--rounds", "0", "x"), ("generate", "--tokens", "1")):
        expect(bench(*words).returncode, 2, f"exit code of {words}")
    expect("overlap " in bench("--help").stdout, True, "the list of commands")
    expect(bench("sweep", "fig02", "--lancet", "/nowhere/lancet").stderr,
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


# Of a policy: step, exposed time and predicted step in ms in a round, and the arena's bytes. Its gathers take 10 ms
# forward, of which a fifth of the exposed time is exposed, and 30 ms backward, of which a half is.
def write_round(folder, found):
    for name, (step, exposed, predicted, arena) in found.items():
        record = {"step_ms": step, "compute_ms": 50, "a2a_ms": 40, "allreduce_ms": 5, "communication_ms": 42,
                  "exposed_ms": exposed, "predicted_ms": predicted, "late_pct": None}
        later = {**record, "step_ms": step + 2}
        write(folder / name / "metrics.jsonl", "".join(json.dumps(each) + "\n" for each in (record, record, later)))
        write(folder / name / "plan.ir", f"plan {{policy=x}}\narena {arena}\nprogram p\n")
    communications = [{"stream": "expert", "pass": "forward", "ms": 10}, {"stream": "expert", "pass": "backward", "ms": 30},
                      {"stream": "reduce", "pass": "sync", "ms": 7, "exposed_ms": 7}]
    write(folder / "policies.json", json.dumps({"policies": [
        {"policy": name, "ran": "sequential" if name == "dw" else name.split("-")[0],
         "plan": name,
         "communications": [{"exposed_ms": exposed / 5 if each["ms"] == 10 else exposed / 2, **each}
                            for each in communications]}
        for name, (_, exposed, _, _) in found.items()]}))


def made_up(names, figures):
    return policies.Point("made up", "configs/bench-overlap.json", ["train.dtype=bf16"], 2, names,
                           declared.Share("step", 0.4), figures)


def overlap_rounds():
    point = made_up(["sequential", "tutel:2", "tutel:4", "dw", "lancet"], overlap.expert_figures)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        results = policies.Results(folder / "runs", {"main": point, "other": point})
        where, about = results.begin("main", 3, "0123456789")
        expect(about.get("mbit"), None, "a point without a rate")
        results.note("main", {**about, "mbit": 280, "rate": "280mbit"})
        for number, (step, exposed) in enumerate(((60, 10), (64, 12), (62, 11)), 1):
            write_round(where / f"round-{number:02}", {
                "sequential": (100, 40, 100, 2000000), "tutel-2": (95, 20, 90, 2000000),
                "tutel-4": (90, 20, 81, 2000000), "dw": (100, 40, 100, 2000000),
                "lancet": (step, exposed, step, 2100000)})
        again = results.begin("main", 3, "0123456789")[1]
        expect((again["rate"], len(results.rounds("main"))), ("280mbit", 3), "rounds that are not run again")
        point, about, rounds = results.all()["main"]
        rows = policies.medians(rounds)
        expect([rows["lancet"][field] for field in ("step_ms", "least_ms", "most_ms", "steps", "arena_mb")],
               [62, 60, 64, 9, 2.1], "medians of rounds, least, most")
        expect((rows["lancet"]["hidden_forward_pct"], round(rows["lancet"]["hidden_backward_pct"], 3)), (78, 81.667),
               "the hidden shares, without all-reduces")
        found = point.figures(rows)
        for what, wanted in {"all-to-all / step, sequential": 0.4, "lancet / best tutel, exposed": 0.55,
                             "best tutel / lancet, step": 90 / 62, "lancet / sequential, arena": 1.05,
                             "lancet, step / max(compute, communication)": 62 / 50}.items():
            expect(round(found[what], 9), round(wanted, 9), what)
        for several, wanted in ((rounds, "least and most"), (2 * rounds, "95% of rounds drawn again")):
            what, ends = policies.intervals(several, point.figures)
            expect((what, ends["lancet / best tutel, exposed"]), (wanted, (0.5, 0.6)), "an interval")
        overlap.write(results, ["# Made up", ""], folder / "overlap")
        lines = (folder / "overlap.md").read_text().splitlines()
        expect("| tutel | 4 |  | 90 | 90 | 90 | 50 | 40 | 5 | 20 | 60% | 67% | 81 | -10.0% | 2 |" in lines, True,
               f"a row in {lines}")
        expect("| dw | 0 | sequential | 100 | 100 | 100 | 50 | 40 | 5 | 40 | 20% | 33% | 100 | +0.0% | 2 |" in lines, True,
               "a policy that another ran for")
        expect("| lancet / best tutel, exposed | 0.550 | 0.500 to 0.600 |" in lines, True, "a figure")
        expect("2 hosts, 280mbit, chosen for collectives of activations / sequential step = 0.4. 3 rounds of 3 steps," in
               lines, True, "what the point is")
        expect("| figure |  | least and most |" in lines, True, "the heading of figures of three rounds")
        expect([line for line in lines if "published way /" in line], [], "a figure over policies that did not all run")
        expect("Published ways that did not run here: fastermoe, comet, flowmoe, "
               "collective_matmul, partition, lancet_paper." in lines, True, "what did not run")
        expect("Not measured: other." in lines, True, "a point without rounds")
        expect(lines[-1], "Mean error of the predicted step over all rows: 3.1%.", "the mean error")
        expect((folder / "overlap.csv").read_text().splitlines()[3].split(",")[:8],
               ["main", "made up", "280mbit", "2", "tutel", "4", "tutel", "90"], "a row of the table")
        results.begin("main", 4, "0123456789")
        expect(results.rounds("main"), [], "other steps")


def overlap_of_products():
    point = made_up(["sequential", "dw", "collective_matmul", "lancet"], overlap.tensor_figures)
    with tempfile.TemporaryDirectory() as name:
        write_round(Path(name), {"sequential": (100, 40, 100, 2000000), "dw": (80, 30, 80, 2000000),
                                 "collective_matmul": (64, 10, 64, 2000000), "lancet": (60, 5, 60, 2000000)})
        point = point._replace(policies=overlap.policies_of(point.settings))
        found = overlap.figures_of(point, policies.medians([policies.read_round(Path(name))]))
        expect(found["best without rings / collective_matmul, step"], 1.25, "against the best way without rings")
        expect(found["collective_matmul, hidden share of gathers and scatters, forward"], 0.8, "the hidden share")
        expect(found["best single published way / lancet, step"], 64 / 60, "a ring is a published way")


def overlap_points():
    """Every point names policies that there are, and a rate of devices leaves the case's share."""
    for points in (overlap.POINTS, overlap.DEVICE_POINTS):
        for name, point in points.items():
            names = [policy.split(":")[0] for policy in point.policies]
            expect([each for each in names if each not in policies.ALL], [], f"unknown policies of {name}")
            expect((names[0], names[-1]), ("sequential", "lancet"), f"the ends of the policies of {name}")
            expect(point.not_run(), [], f"published ways that {name} leaves out")
    expect(overlap.step_of(overlap.POINTS["memory"]), overlap.step_of(overlap.POINTS["main"]), "points of one rate")
    expect([name for name in policies.PUBLISHED if name not in policies.applying(["model.moe_layer_freq=0"])],
           [*policies.OF_EXPERTS, "neighbour_microbatches"], "what has no work without experts and pairs")
    case = declared.CASES["layer-4-0.6"]
    expect(overlap.fields_of(case, Path("/x.json"))[:3],
           ["device=emulated", "emulated.hardware=/x.json", f"emulated.scale={overlap.SCALE}"], "the fields of a device")
    expect(policies.links(4, Path("/x.json"), overlap.SCALE, overlap.dilation_of(case)),
           ["--hosts", 4, "--hardware", Path("/x.json"), "--scale", 16, "--dilation", 3, "--ranks-per-host", 1], "its links")
    plans = overlap.DevicePlans("lancet", Path("/"))
    with tempfile.TemporaryDirectory() as name:
        plans.folder = Path(name)
        made = json.loads(plans.hardware_at(declared.CASES["tensor-4"], 2.5).read_text())
    expect((made["network"]["nic_gbit_per_s"]["value"], made["overlap"]["core_ms_per_mb"]["value"]), (2.5, 0),
           "the hardware file of devices")
    expect(plans.target(case, "/x.json")[:4], ["--ranks", 4, "--hosts", 4], "its plans")


def overlap_rate():
    """Of rates of which none gives the share, the closest is taken."""
    shares = iter([0.30, 0.50, 0.37, 0.45])
    # 140 / (0.4 / 0.6) * (0.3 / 0.7) = 90, then 90 * 1.5 = 135, at which 0.37 is closest to 0.4.
    expect(overlap.rate_of(overlap.POINTS["main"].share, lambda mbit: next(shares)), 135, "the best rate tried")


def generation():
    options = SimpleNamespace(rounds=3, tokens=8, threads=[2])
    ours = [{"rates": {"lancet": rate}, "ids": [1, 2]} for rate in (10, 30, 20)]
    peers = [{"rates": {"conv1d, cat": rate}, "ids": [1, 2], "torch": "9"} for rate in (10, 10, 5)]
    text = generate.page(options, {("lancet", 2): ours, ("peer", 2): peers})
    expect(text.splitlines()[-2:], ["| 2 | `lancet generate` | 20.0 | 10.0 to 30.0 |  |",
                                    "| 2 | PyTorch, conv1d, cat | 10.0 | 5.0 to 10.0 | 3.00 |"], "rows")
    expect("Both wrote the same tokens" in text, True, "equal tokens")
    peers[2]["ids"] = [1, 3]
    expect("**The tokens differ.**" in generate.page(options, {("lancet", 2): ours, ("peer", 2): peers}), True, "other tokens")


if __name__ == "__main__":
    for test in (usage, limits_of_memory, turns, failure, peer, overlap_rounds, overlap_of_products, overlap_points,
                 overlap_rate, generation):
        test()
        print(f"{test.__name__}: as expected")
