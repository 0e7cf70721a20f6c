#!/usr/bin/env python3
"""The page of docs/results (`bench index`): which plans it asks for and keeps, and in a browser, which values it shows
for which choices. What needs a browser is skipped without Chromium.

    index_test.py LANCET [--keep DIR]     --keep: leaves pages and screenshots there
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
from browser import browse, chromium_for_tests, expect, links_of  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
from bench import plans  # noqa: E402

PROBE = (pathlib.Path(__file__).parent / "index_probe.js").read_text()

# Plans a step as long as its policy says: 100 ms of computation, an all-to-all, and two updates in the last 10 ms.
LANCET = """#!/usr/bin/env python3
import sys
words = sys.argv[1:]
with open({calls!r}, "a") as calls:
    calls.write(" ".join(words) + "\\n")
policy = next(word.split("=")[1] for word in reversed(words) if word.startswith("overlap.policy="))
end = {{"sequential": 200, "tutel": 180, "lancet": 150}}[policy]
open(words[words.index("--out") + 1], "w").write(f'''plan {{{{policy={{policy}}, predicted_ms={{end}}, exposed_ms=1}}}}
[0] %1 : f32[8] = linear(%0, @w) {{{{part=0}}}}  # compute forward h.0.mlp/0 | at 0 | ms 0 100
[1] %2 : f32[8] = all_to_all(%1)  # expert forward h.0.moe.all_to_all | wait 0 | at 8 | ms 100 {{end - 20}}
[2] sgd(&@w, %2)  # compute update w | wait 1 | ms {{end - 10}} {{end - 5}}
[3] sgd(&@v, %2)  # compute update v | ms {{end - 5}} {{end}}
''')
"""


def point(policy, step, experiment="fig13", ranks=32, **other):
    """A record of 110 ms of computation, 20 of them beside communication."""
    return {"id": f"{experiment} {policy} {ranks} {other.get('network')}", "experiment": experiment,
            "network": "simulated", "hardware": "p3dn-v100", "label": "", "model": "GPT2-S-MoE", "gate": "switch",
            "ranks": ranks, "policy": policy, "status": "ok", "runs": policy.lower(), "k": 1, "step_ms": step,
            "compute_ms": 110.0, "all_to_all_ms": 80.0, "all_reduce_ms": 10.0, "communication_ms": step - 90.0,
            "exposed_ms": step - 110.0, "predicted_ms": None, "memory_gib": 7.5, "imbalance": 1.0, "padded": False,
            "bound_ms": 120.5, **other}


RUNS = {"experiment": "fig14", "bound_ms": None, "ranks": 2, "model": "bench", "predicted_ms": 970.0,
        "least_step_ms": 990.0, "most_step_ms": 1100.0}
POINTS = [
    point("sequential", 200.0), point("Tutel", 180.0, k=2),
    point("Lancet", 150.0, step_ms_low=140.0, step_ms_high=170.0),
    point("FasterMoE", 180.0, status="out of memory", step_ms=None), point("sequential, unbucketed", 201.0, bound_ms=121.5),
    point("sequential", 200.0, "fig11", 8), point("Lancet", 150.0, "fig11", 8),
    point("sequential", 1000.0, network="measured", hardware="this", **RUNS),
    point("Lancet", 1010.0, network="emulated", hardware="emulated", **RUNS)]


def write_points(folder):
    for experiment in {point["experiment"] for point in POINTS}:
        (folder / "points" / experiment).mkdir(parents=True)
        (folder / "points" / experiment / "points.jsonl").write_text(
            "".join(json.dumps(one) + "\n" for one in POINTS if one["experiment"] == experiment))
    (folder / "emulated.csv").write_text(
        "case,policy,ran,plan,predicted_ms,step_ms,least_ms,most_ms,error_pct,late_pct\n"
        "v100-4x2,lancet,lancet,a,100,102,101,104,-1.96,0.1\n")


def make(lancet, folder):
    return subprocess.run([sys.executable, ROOT / "scripts/bench", "index", "--out", folder, "--lancet", lancet],
                          capture_output=True, text=True)


def make_page(folder):
    """Makes the page with a double of the program, and again with one that plans nothing."""
    write_points(folder)
    double, calls = folder / "lancet", folder / "calls"
    double.write_text(LANCET.format(calls=str(calls)))
    double.chmod(0o755)
    made = make(double, folder)
    expect("fig13, sequential, unbucketed: 200.000 ms a step, recorded were 201.0" in made.stderr, f"a longer plan: {made.stderr}")
    expect("timelines: 3 of 4" in made.stderr and made.returncode == 1, f"a plan is missing: {made.stderr}")
    asked = calls.read_text().splitlines()
    expect(len(asked) == 4 and all("--ranks 32 " in one for one in asked), f"plans of 4 points on 32 GPUs: {asked}")
    page = (folder / "index.html").read_text()
    again = make("/bin/false", folder)
    expect("plan 1 of 1: p3dn-v100, GPT2-S-MoE, 32, sequential, unbucketed" in again.stderr, f"that plan alone is missing: {again.stderr}")
    expect("false plan configs/gpt2-s-moe.json" in again.stderr and again.returncode == 1, f"a plan that fails: {again.stderr}")
    expect((folder / "index.html").read_text() == page, "the page has the plans that it had")
    expect(not links_of(page), f"the page would fetch {links_of(page)}")


CHOICES = [{"policy": "Tutel"}, {"ranks": "8"}, {"cluster": "ranks on one machine (measured)"},
           {"cluster": "hosts emulated on one machine (emulated)"}, {"cluster": "p3dn-v100 (emulated device)"},
           {"cluster": "p3dn-v100 (simulated)", "ranks": "32", "beside": "FasterMoE"}]


def check_first(seen):
    values = ["p3dn-v100 (simulated)", "default", "GPT2-S-MoE", "switch", "32", "Lancet", "sequential"]
    expect(list(seen["values"].values()) == values, f"first choices: {seen['values']}")
    expect(seen["hidden"] == [["batch or routing", 0]], f"a choice of one setting is not shown: {seen['hidden']}")
    expect(seen["options"]["policy"] == ["sequential", "Tutel", "Lancet", "FasterMoE", "sequential, unbucketed"], f"{seen['options']}")
    table = seen["table"]
    between = "140.0 ms to 170.0 ms with the machine's uncertain numbers"
    expect(table["step"] == [f"150.0 ms, {between}simulated", "200.0 mssimulated"], f"steps: {table}")
    expect(table["floor of whole operations"] == ["120.5 mssimulated"] * 2, f"floors: {table}")
    expect(table["exposed communication"] == ["40.0 mssimulated", "90.0 mssimulated"], f"exposed: {table}")
    expect("predicted step" not in table, f"a simulated step has no other prediction: {table}")
    ratio = "sequential's step takes 1.33 times as long as Lancet's (simulated)."
    expect(seen["comparison"] == ratio, seen["comparison"])
    rows = seen["policies"]
    expect(rows[0] == ["Lancet", "150.0 mssimulated"], f"policies by their step: {rows}")
    expect(rows[-1] == ["FasterMoE", "out of memory"], f"policies by their step: {rows}")
    parts = ["computation alone 90.0 ms", "overlapped 20.0 ms", "communication alone 40.0 ms"]
    expect(seen["pieces"][0] == parts, seen["pieces"])
    expect(abs(seen["floors"][0] - 100 * 120.5 / (1.02 * 201)) < 0.01, f"where the floor is: {seen['floors']}")
    command = seen["commands"][0]
    expect("--ranks 32 " in command and command.endswith("overlap.policy=lancet"), f"its command: {command}")


def check_timeline(seen):
    timeline = seen["timeline"]
    rows = [[row["process"], row["stream"], row["events"][:2]] for row in timeline["rows"]]
    expect(rows == [["Lancet", "compute", [0, 100000]], ["Lancet", "all-to-all", [100000, 30000]],
                    ["sequential", "compute", [0, 100000]], ["sequential", "all-to-all", [100000, 80000]]], f"{rows}")
    start, length, name, kind = timeline["rows"][2]["events"][4:]
    expect((start, length, timeline["names"][name], timeline["kinds"][kind]) == (190000, 10000, "updates", "update"),
           f"sequential's two updates are one event: {timeline}")
    expect(timeline["names"][0] == "linear h.0.mlp/0", f"names: {timeline['names']}")
    expect(seen["colored"] > 0.1, f"the timeline is drawn, found a share of {seen['colored']}")


def check_chosen(tutel, eight, measured, emulated, devices, memory):
    expect(tutel["table"]["schedule"] == ["tutel, k = 2", "sequential"], f"the fastest Tutel: {tutel['table']}")
    expect("policy=Tutel" in tutel["address"], f"the page's address keeps the choice: {tutel['address']}")
    floor = "floor of whole operations"
    expect(eight["values"]["policy"] == "Lancet", f"there is no Tutel on 8 GPUs: {eight['values']}")
    expect(eight["table"][floor] == ["120.5 mssimulated"] * 2, f"the floor on 8: {eight['table']}")
    expect(eight["timeline"] is None and "No timeline is stored" in eight["hint"], "no timeline on 8 GPUs")
    expect(len(eight["commands"]) == 2, f"commands: {eight['commands']}")
    expect(measured["table"]["step"] == ["1,000.0 ms, runs from 990.0 ms to 1,100.0 msmeasured"],
           f"a run, one policy alone: {measured['table']}")
    expect(measured["table"]["predicted step"][0] == "970.0 mssimulated", f"its prediction: {measured['table']}")
    expect(floor not in measured["table"] and not measured["commands"], "a run has neither floor nor plan")
    expect(emulated["table"]["exposed communication"][0] == "900.0 msemulated", f"an emulated run: {emulated['table']}")
    expect(devices["table"]["step"] == ["102.0 ms, runs from 101.0 ms to 104.0 msemulated device"],
           f"a row of emulated.csv: {devices['table']}")
    expect(devices["values"]["setting"] == "2 layers, 2 ranks a host", f"its case: {devices['values']}")
    expect(devices["values"]["ranks"] == "8", f"its ranks: {devices['values']}")
    expect(memory["table"]["step"] == ["180.0 mssimulated", "out of memory"], f"one does not fit: {memory['table']}")
    expect(memory["comparison"] == "", "no comparison with it")


def check_page(chromium, page, keep):
    probe = PROBE.replace("of /*choices*/", "of " + json.dumps(CHOICES))
    for width, dark in ((360, False), (800, True), (1400, False)):
        shot = str(page.with_name(f"index-{width}.png")) if keep else None
        seen, console = browse(chromium, page, probe, width, 2400 if keep else 1000, shot, dark)
        where = f"at {width} pixels"
        expect(not console, f"{where}: the console says {console}")
        for state in (seen["first"], *seen["chosen"]):
            expect(state["state"] == "drawn" and not state["failure"], f"{where}: {state['state']}: {state['failure']}")
            expect(min(state["tracks"]) > 150, f"{where}: bars of {state['tracks']} pixels")
            expect(state["cut"] <= 0, f"{where}: the table is cut by {state['cut']} pixels")
            expect(state["wider"] <= 0, f"{where}: {state['values']}: {state['wider']} pixels wider than the window")
        expect(seen["first"]["theme"] == ("dark" if dark else "light"), f"{where}: theme {seen['first']['theme']}")
        check_first(seen["first"])
        check_timeline(seen["first"])
        check_chosen(*seen["chosen"])
        closer, right, wider, whole = seen["views"]
        expect((closer, right) == ([20000, 180000], [40000, 200000]), f"keys: {seen['views']}")
        expect(wider == whole == [0, 200000] and seen["focusable"] == 0, f"keys: {seen['views']}")


def check_real_plan(lancet):
    """The words of a real plan are read."""
    words = ["plan", "configs/bench-small.json", "--on", "p3dn-v100", "--ranks", "8",
             "--set", "overlap.policy=sequential"]
    step_ms, timeline = plans.planned(pathlib.Path(lancet).resolve(), words)
    ends = {stream: sum(events[0::4]) + sum(events[1::4]) for stream, events in timeline["rows"]}
    expect(set(ends) == {"compute", "expert", "reduce"}, f"streams: {ends}")
    expect(abs(max(ends.values()) / 1000 - step_ms) < 1e-3, f"the last event ends with {step_ms} ms, found {ends}")
    expect(timeline["kinds"] == ["forward", "dx", "dw", "sync", "update"], f"kinds: {timeline['kinds']}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("lancet")
    parser.add_argument("--keep")
    arguments = parser.parse_args()
    check_real_plan(arguments.lancet)
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(arguments.keep or scratch)
        make_page(folder)
        check_page(chromium_for_tests(), folder / "index.html", arguments.keep)
    print("the page shows what was chosen")


main()
