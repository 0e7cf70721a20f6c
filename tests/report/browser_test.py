#!/usr/bin/env python3
"""The report in a browser: it opens without an error, every chart is drawn, nothing is fetched, and text from
files stays text. Skipped without Chromium.

    browser_test.py LANCET [--keep DIR]     --keep: leaves pages and screenshots there
"""
import argparse
import functools
import json
import math
import pathlib
import shutil
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
from browser import browse, chromium_for_tests, expect, links_of  # noqa: E402

EVIL = ("<img src=x onerror=\"document.documentElement.dataset.taken='yes'\">"
        "</script><script>document.documentElement.dataset.taken='yes'</script>")

MEMORY = {"parameters": 1_600_000, "optimizer": 1_600_000, "arena": 1_920_000, "workspace": 2_880_000, "process": 10_000_000, "saving": 2_000_000}

PROBE = (pathlib.Path(__file__).parent / "probe.js").read_text()


def write_run(folder, name, steps, experts, layers=2, seed=0, trace=True, policy="lancet", memory=None):
    run = folder / name
    run.mkdir(parents=True)
    with open(run / "metrics.jsonl", "w") as out:
        for step in range(1, steps + 1):
            wave = math.sin(step * 0.7 + seed)
            tokens = [[round(512 * (1 + 0.6 * math.sin(e * 1.3 + layer + step / 90))) for e in range(experts)] for layer in range(layers)]
            tokens[0][1] = 0 if step > steps // 2 else tokens[0][1]
            loss = 9 * math.exp(-step / (steps / 3)) + 3 + 0.1 * wave + 0.2 * seed
            record = dict(step=step, loss=loss if step != 7 else None, aux_loss=1.1, grad_norm=1 + 0.3 * wave, lr=1e-3 * min(1, step / 50),
                          step_ms=200 + 8 * wave + 20 * seed, tokens_per_s=2000 / (0.2 + 0.008 * wave + 0.02 * seed), mfu=70 + wave, compute_ms=180, a2a_ms=30,
                          allreduce_ms=20, exposed_ms=12 + wave, hidden_pct=75 + 5 * wave, predicted_ms=195, load_max_over_mean=1.6,
                          drop_pct=0.5, save_ms=12 if step % 100 == 0 else None, dead_experts=int(step > steps // 2), router_entropy=1.2 + 0.1 * wave, layer_expert_tokens=tokens,
                          experts_per_token=2 - 0.5 * step / steps, z_loss=None, bias_spread=None,
                          layer_experts_per_token=[1 + layer for layer in range(layers)],
                          layer_drop_pct=[0.25 + layer for layer in range(layers)], layer_z_loss=[])
            out.write(json.dumps(record) + "\n")
            if step % 50 == 0:
                out.write(json.dumps(dict(step=step, held_out_loss=loss + 0.2)) + "\n")
            if step == steps // 2:
                out.write(EVIL + "\n")
        out.write('{"step": 99')  # as a run that is still writing leaves it
    config = {"train": {"lr": 1e-3 * (1 + seed), "steps": steps}, "log": {"run_dir": EVIL}, EVIL: 1}
    (run / "config.json").write_text(json.dumps(config))
    (run / "plan.ir").write_text(
        f"plan {{policy={policy}, ranks=2, predicted_ms=195}}\narena 1920000\nprogram small\ninput @x : f32[8]\n"
        "parameter @w : f32[400000]\nstate @w.m : f32[400000]\n"
        "[0] %0 : f32[160000] = first(@x)  # compute forward a | at 0\n[1] %1 : f32[320000] = second(%0)  # compute forward b | at 640000\n"
        "[2] %2 : f32[40000] = third(%1)  # compute dx c | at 0\noutput loss = %2\n")
    if memory:
        (run / "memory.json").write_text(json.dumps(memory))
    if trace:
        events = []
        for pid, process, sort_index in ((2, "predicted", 0), (0, "measured, rank 0", 1), (1, "measured, rank 1", 2)):
            events.append(dict(ph="M", name="process_name", pid=pid, args=dict(name=process)))
            events.append(dict(ph="M", name="process_sort_index", pid=pid, args=dict(sort_index=sort_index)))
            for tid, stream in enumerate(("compute", "expert", "reduce")):
                events.append(dict(ph="M", name="thread_name", pid=pid, tid=tid, args=dict(name=stream)))
                for i in range(60):
                    kind = ("forward", "dx", "dw", "update", "sync")[i // 12]
                    events.append(dict(ph="X", name=f"op{i % 7} h.{i}.{EVIL if i == 3 else 'moe'}", cat=kind, pid=pid, tid=tid,
                                       ts=i * 3000 + 500 * tid + 90 * pid, dur=2400 - 700 * tid, args={}))
        (run / "trace.json").write_text(json.dumps(dict(traceEvents=events)))
    return run


def records_of(run):
    """The whole records of a run."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines() if line.startswith("{") and line.endswith("}")]


def check(chromium, lancet, folder, name, runs, keep=False, widths=(1400,), dark=False):
    """Makes a page and opens it at each width; returns the findings at the last one."""
    page = folder / f"{name}.html"
    made = subprocess.run([lancet, "report", *map(str, runs), "--out", str(page)], capture_output=True, text=True)
    expect(made.returncode == 0, f"{name}: lancet report: {made.stderr}")
    links = links_of(page.read_text())
    expect(not links, f"{name}: the page would fetch {links}")
    for width in widths:
        where = f"{name} at {width} pixels"
        shot = str(folder / f"{name}-{width}.png") if keep else None
        seen, console = browse(chromium, page, PROBE, width, 6000 if keep else 1000, shot, dark)
        expect(not console, f"{where}: the console says {console}")
        expect(seen["state"] == "drawn" and not seen["failure"], f"{where}: state {seen['state']}: {seen['failure']}")
        expect(width < 1300 or seen["summary_cut"] <= 0, f"{where}: the tables of runs are cut by {seen['summary_cut']} pixels")
        expect(seen["theme"] == ("dark" if dark else "light"), f"{where}: theme {seen['theme']}")
        expect(seen["taken"] == "no" and seen["images"] == 0, f"{where}: text from files became markup")
        expect(all(share > 0.05 for share in seen["heat_maps"]), f"{where}: an empty heat map among {seen['heat_maps']}")
        expect(all(share > 0.05 for share in seen["timelines"]), f"{where}: an empty timeline among {seen['timelines']}")
        for state in (seen, seen.get("after", seen)):
            expect(state["wider"] <= 0, f"{where}: the page is {state['wider']} pixels wider than its window")
            expect(all(pixels > 60 for pixels in state["line_charts"]), f"{where}: a chart without a line among {state['line_charts']}")
            expect(not state["failure"], f"{where}: {state['failure']}")
    return seen


def debiased_mean(values, weight):
    """The last exponential moving average, corrected for its start at zero."""
    total = weights = 0
    for value in values:
        total = weight * total + (1 - weight) * value
        weights = weight * weights + 1 - weight
    return total / weights


def check_loss_chart(seen, losses, held_out):
    """The loss of one run of 400 steps of 2000 tokens and 0.2 s: its lines, legend and controls."""
    def near(found, wanted):
        return abs(found - wanted) <= 5e-4 * abs(wanted)

    plain, smooth = seen["loss"], seen["smoothed"]
    expect(plain["labels"] == ["loss", "held-out loss"] and plain["x"] == "step" and plain["last_x"] == 400, f"the loss: {plain}")
    expect(near(plain["lasts"][0], losses[-1]) and near(plain["lasts"][1], held_out[-1]), f"the loss: {plain}")
    expect(plain["gaps"] == [1, 0], f"step 7's loss is a gap, the held-out losses are one line, found {plain['gaps']}")
    expect(plain["legend"][0] == "last" and near(float(plain["legend"][1]), losses[-1]) and near(float(plain["legend"][2]), held_out[-1]),
           f"the legend without the mouse shows the last values, found {plain['legend']}")
    expect(near(smooth["lasts"][0], debiased_mean(losses, 0.9)) and smooth["lasts"][1] == plain["lasts"][1], f"smoothed by 0.9: {smooth}")
    table = seen["csv"].splitlines()
    expect(table[0] == '"step","loss","held-out loss"' and len(table) == 401, f"the loss as CSV: {table[:2]}")
    step, loss, held = table[400].split(",")
    expect(step == "400" and near(float(loss), losses[-1]) and near(float(held), held_out[-1]), f"CSV holds values as recorded: {table[400]}")
    expect(table[7] == "7,,", f"CSV leaves a gap empty: {table[7]}")
    expect(not plain["logarithmic"] and seen["logarithmic"]["logarithmic"], "a logarithmic axis")
    low, high = seen["logarithmic"]["y"]
    expect(0.8 * min(losses) < low < min(losses) and max(losses) < high < 1.2 * max(losses), f"the logarithmic axis is filled, found {low} to {high}")
    expect(seen["tokens"]["x"] == "tokens" and near(seen["tokens"]["last_x"], 800_000), f"over tokens: {seen['tokens']}")
    expect(seen["time"]["x"] == "seconds in steps" and near(seen["time"]["last_x"], 80), f"over time: {seen['time']}")


def check_tables(seen, losses, held_out):
    """The tables of one run."""
    head, run, means_head, means = seen["summary"]
    run, means = dict(zip(head, run)), dict(zip(means_head, means))
    wanted = {"run": "one", "policy": "lancet", "ranks": "2", "last step": "400", "tokens": "800k", "time in steps": "1 min 20 s"}
    expect(run | wanted == run, f"the table of runs: expected {wanted}, found {run}")
    for title, value in (("last loss", losses[-1]), ("lowest loss", min(losses)), ("last held-out", held_out[-1]), ("lowest held-out", min(held_out))):
        expect(abs(float(run[title]) - value) < 1e-3, f"{title}: expected {value}, found {run[title]}")
    expect(means["a save, ms"] == "12" and means["predicted ms"].startswith("195 ("), f"the table of means: {means}")
    expect(abs(float(means["entropy"]) - 1.2) < 0.01, f"the table of means: {means}")


def check_one(look, runs):
    one = write_run(runs, "one", 400, 8)
    seen = look("one", [one], widths=(360, 800, 1600))
    losses = [r["loss"] for r in records_of(one) if r.get("loss")]
    held_out = [r["held_out_loss"] for r in records_of(one) if "held_out_loss" in r]
    expect(len(seen["titles"]) == 15, f"15 charts over steps, none of them of saving, z-loss or biases, found {seen['titles']}")
    expect(len(seen["line_charts"]) == 16, f"16 line charts, the arena's included, found {seen['line_charts']}")
    wanted = [f"Step 400: dropped {layer}.25%, experts of a token {layer + 1}." for layer in range(2)]
    expect(seen["layers"] == wanted, f"the layers' last numbers: expected {wanted}, found {seen['layers']}")
    expect(len(seen["heat_maps"]) == 2 and len(seen["timelines"]) == 1, "2 heat maps and a timeline")
    for note in ("line 205: expected a JSON object", "first at step 7", "cut short"):
        expect(note in seen["notes"], f"expected {note!r} among the notes, found {seen['notes']}")
    expect(EVIL in seen["config"], "the config shows its text as it is")
    check_tables(seen, losses, held_out)
    check_loss_chart(seen, losses, held_out)


def check_two(look, runs):
    pair = [write_run(runs, "first", 400, 8), write_run(runs, "second", 300, 8, seed=1, memory=MEMORY)]
    seen = look("two", pair, widths=(360, 800, 1600), dark=True)
    expect(len(seen["heat_maps"]) == 4 and len(seen["timelines"]) == 2, "heat maps and timelines of two runs")
    expect(seen["loss"]["gaps"] == [1, 0, 1, 0], f"lines of held-out losses have no gaps, found {seen['loss']}")
    expect("–" not in seen["loss"]["legend"], f"the legend without the mouse: {seen['loss']['legend']}")
    expect({"first", "second"} <= set(seen["labels"]), f"a line for each run, found {set(seen['labels'])}")
    expect("train.lr" in seen["config"] and "0.002" in seen["config"], "the configs' difference")
    planned, recorded = seen["memory"]
    expect("a rank: 5.1 MB in its plan, without workspace" in planned, f"memory of a plan alone: {planned}")
    expect("a rank: 20.0 MB" in recorded and "process 10.0 MB" in recorded, f"memory as recorded: {recorded}")
    shares = [part / sum(MEMORY.values()) for part in MEMORY.values()]
    expect(all(abs(a - b) < 0.01 for a, b in zip(seen["memory_bars"][1], shares, strict=True)), f"the bar's parts: {seen['memory_bars'][1]}")


def check_ten(look, runs):
    names = ["sequential", "tutel", "fastermoe", *(f"run-{i}" for i in range(3, 10))]
    ten = [write_run(runs, name, 50, 2, layers=1, seed=i, trace=False, policy=name.replace("-", "_")) for i, name in enumerate(names)]
    seen = look("ten", ten, widths=(360, 800, 1300, 1600))
    expect(set(seen["summary_lines"]) == {1}, f"names of runs and policies are not broken, found {seen['summary_lines']} lines")
    colors = [color for color, label in zip(seen["loss"]["colors"], seen["loss"]["labels"]) if label.endswith(", loss")]
    expect(len(set(colors)) == 10, f"10 runs have a color each, found {colors}")


def check_long(look, runs):
    seen = look("long", [write_run(runs, "long", 20000, 16, trace=False), write_run(runs, "short", 400, 8)])
    expect(len(seen["heat_maps"]) == 4 and len(seen["timelines"]) == 1, "heat maps of two runs and one timeline")


def check_hostile(look, runs):
    look("hostile", [write_run(runs, EVIL.replace("/", "_"), 5, 4), write_run(runs, "harmless", 5, 4)])


def check_broken(look, runs):
    broken = write_run(runs, "broken", 5, 4, trace=False)
    (broken / "metrics.jsonl").unlink()
    (broken / "config.json").write_text("{")
    seen = look("broken", [broken])
    expect(len(seen["line_charts"]) == 1 and not seen["heat_maps"], "a plan alone has the arena's chart")
    expect(seen["notes"].count("broken: left out: ") == 2, f"notes: {seen['notes']}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("lancet")
    parser.add_argument("--keep")
    arguments = parser.parse_args()
    chromium = chromium_for_tests()
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(arguments.keep or scratch)
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(folder / "runs", ignore_errors=True)
        look = functools.partial(check, chromium, arguments.lancet, folder, keep=arguments.keep)
        for check_page in (check_one, check_two, check_ten, check_long, check_hostile, check_broken):
            check_page(look, folder / "runs")
    print("all pages are drawn")


main()
