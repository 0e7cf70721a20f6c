"""The parts of `bench gpu`: the trainer compared with its peer, on a declared network, on the GPU and the CPU, and
with every schedule; the tests of the plugin, alone and under compute-sanitizer; its kernels under a profiler."""
import filecmp
import gzip
import json
import os
import re
import shutil
import statistics
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench import run
from bench.gpu_check import CODE, Late, Missing
from bench.policies import without
from bench.run import Failed

PEER = Path(__file__).resolve().with_name("gpu_peer.py")
TINY = {"model.n_layer": 2, "model.n_head": 2, "model.n_embd": 32, "model.n_positions": 16, "model.vocab_size": 300,
        "model.moe_layer_freq": 2, "train.seq_len": 16, "train.micro_batch_size": 4}
# The width of a narrow model, so that products have many tiles, and eight experts.
SMALL_MOE = {**TINY, "model.n_head": 4, "model.n_embd": 256, "model.experts_per_rank": 8}
# 32,768 tokens a step, so that products fill the chip and launches do not count.
GPT2 = {"model.n_layer": 12, "model.n_head": 12, "model.n_embd": 768, "model.n_positions": 1024,
        "model.vocab_size": 50257, "model.moe_layer_freq": 0, "train.seq_len": 1024, "train.micro_batch_size": 32}
# No token is dropped, also where random tokens teach the router one expert: so every token costs its products. The
# peer's buffers of a fixed capacity cost the same for any routing.
MOE_32K = {**GPT2, "model.moe_layer_freq": 2, "model.experts_per_rank": 8, "model.capacity_factor": None,
           "model.dropless_imbalance": 8}
# 4,096 tokens a step: launches, and products that do not fill the chip, count as well.
MOE_4K = {**MOE_32K, "model.n_positions": 512, "model.experts_per_rank": 2, "model.dropless_imbalance": 2,
          "train.seq_len": 512, "train.micro_batch_size": 8}
# One layer of each kind at full width: every kernel of MOE_32K, few launches.
TWO_LAYERS = {**MOE_32K, "model.n_layer": 2}
LARGE_MOE = {**MOE_4K, "model.n_layer": 24, "model.n_head": 16, "model.n_embd": 1024, "train.micro_batch_size": 4}
# No checkpoint at the end: it would be 1.5 GB, and no part reads it.
COMMON = {"data.synthetic": True, "train.optimizer": "adamw", "train.lr": 6e-4, "train.weight_decay": 0.1,
          "train.adam_beta2": 0.95, "train.clip_grad": 1.0, "train.eval_interval": 0, "train.sample_tokens": 0,
          "train.save_minutes": 0}


def config_of(check, name, shape, steps, device=None, **settings):
    """Writes a run's config and returns its path."""
    dry = check.options.dry
    values = {**COMMON, **(TINY if dry else shape), "device": device or check.device, "train.steps": steps,
              "log.interval": steps, "train.dtype": "bf16", "overlap.profile": str(check.work / "costs.json"),
              **{key.replace("__", "."): value for key, value in settings.items()}}
    if dry:
        values.update({"threads": 1, "log.peak_tflops": 1,
                       "model.moe_layer_freq": shape.get("model.moe_layer_freq", 2)})
    nested = {}
    for key, value in values.items():
        section, _, field = key.rpartition(".")
        (nested.setdefault(section, {}) if section else nested)[field] = value
    config = check.work / f"{name}.json"
    config.write_text(json.dumps(nested, indent=1))
    return config


def train(check, name, shape, steps, device=None, profile=False, **settings):
    """Trains; returns the records of its steps, the run folder and the log. profile: first measures the ops, including
    the algorithms of products, and writes them to the file that the run reads."""
    config = config_of(check, name, shape, steps, device, **settings)
    run_dir = check.work / "runs" / name
    if profile:
        check.run(f"{name}-profile", [check.options.lancet, "profile", config, "--seconds", 1])
    text = check.run(name, [check.options.lancet, "train", config, "--run-dir", run_dir])
    return run.step_records(run_dir, steps), run_dir, text


def peer_words(shape):
    """Returns the arguments of gpu_peer.py for one of the shapes above."""
    padded = -(-shape["model.vocab_size"] // 64) * 64
    words = {"layers": shape["model.n_layer"], "width": shape["model.n_embd"], "heads": shape["model.n_head"],
             "seq": shape["train.seq_len"], "batch": shape["train.micro_batch_size"], "vocab": padded,
             "moe-every": shape["model.moe_layer_freq"], "experts": shape.get("model.experts_per_rank", 2)}
    return [word for key, value in words.items() for word in (f"--{key}", str(value))]


def train_peer(check, name, shape, modes):
    """Trains the peer, with and without deterministic algorithms, and returns its RESULT. It compiles its model first,
    which takes most of its time."""
    dry = check.options.dry
    python = check.peer()
    words = ["--device", "cpu", "--steps", 3, "--warmup", 1] if dry else ["--device", "cuda", "--modes", modes]
    shape = TINY if dry else shape
    libraries = {"LD_LIBRARY_PATH": os.environ.get("LD_LIBRARY_PATH", "")}  # PyTorch finds its own
    text = check.run(f"{name}-peer", [python, PEER, *peer_words(shape), *words], **libraries)
    return run.result_line(text, f"{name}-peer")


def settled(records, field):
    """Returns the median without the first steps, which load kernels, choose algorithms and record graphs."""
    values = [record[field] for record in records[max(2, len(records) // 4):] if record.get(field) is not None]
    if not values:
        raise Failed(f"expected {field} in metrics.jsonl, found none")
    return statistics.median(values)


def outside_kernels(records):
    """Returns the share of a step that the compute stream spends before, between and after its segments of work.
    Every eighth step from the second on is timed, with its segments launched as recorded (docs of `spans` in
    lancet/runtime/executor.h); the other steps repeat compute_ms of the last timed one."""
    return statistics.median(1 - record["compute_ms"] / record["step_ms"] for record in records[8::8])


MOST_LOST = 12  # rows of the table of floors that are figures; the log has all


def floors(check, name, shape):
    """Times every op of a step and records those that lose most beside their floors (`lancet bench ops`)."""
    config = config_of(check, f"{name}-floors", shape, 4, overlap__max_parts=1)
    text = check.run(f"{name}-floors", [check.options.lancet, "bench", "ops", config, "--steps", 3, "--json"])
    found, _ = json.JSONDecoder().raw_decode(text[text.index("\n{") + 1:])
    rows = [row for row in found["rows"] if row["lost_ms"] is not None]
    for row in sorted(rows, key=lambda row: -row["lost_ms"])[:MOST_LOST]:
        check.figure(f"{name} lost: {row['op']}, {row['role']}", row["lost_ms"],
                     unit=f"ms of {row['ms']:.2f} in {row['calls']} calls; floor {row['floor_ms']:.2f}")


def compare_speed(check, name, shape, ratio=None, mfu=None, outside=None, modes="default"):
    """Measures one shape and its peer, with attention that is deterministic in both and in neither. ratio, mfu,
    outside: targets; modes: of torch.compile, of which the fastest counts. One rank has nothing to overlap, so its
    profile, which chooses the algorithms of products, has no parts."""
    steps = 9 if check.options.dry else 26
    found = {}
    for order in ("deterministic", "any order"):
        settings = {"overlap__max_parts": 1, "train__deterministic": order == "deterministic"}
        label = name + ("" if order == "deterministic" else "-any-order")
        records, _, _ = train(check, label, shape, steps, profile=order == "deterministic", **settings)
        found[order] = settled(records, "tokens_per_s")
        check.figure(f"{name} tokens/s, {order}", found[order])
        check.figure(f"{name} MFU, {order}", settled(records, "mfu"), mfu if order == "any order" else None,
                     unit="% of the measured product ceiling")
        check.figure(f"{name} step outside kernels, {order}", 100 * max(0.0, outside_kernels(records)), outside,
                     at_least=False, unit="% of a timed step")
    try:
        note = compare_with_peer(check, name, shape, found, ratio, modes)
    except Late:
        raise
    except Failed as error:
        note = f"no peer: {error}"
    floors(check, name, shape)
    return note


def compare_with_peer(check, name, shape, found, ratio, modes):
    """Records the peer's speeds and the ratios to them. found: tokens/s by order. Returns what a figure cannot say."""
    peer = train_peer(check, name, shape, modes)
    compiled = True
    for order, result in (("any order", peer), ("deterministic", peer["deterministic"])):
        if "tokens_per_s" not in result:
            return f"the peer has no deterministic form: {result['error']}"
        check.figure(f"{name} peer tokens/s, {order}", result["tokens_per_s"],
                     unit=f"PyTorch {peer['torch']}, {result['mode']}")
        compiled = compiled and result["mode"] != "eager"
        check.figure(f"{name} over its peer, {order}", found[order] / result["tokens_per_s"],
                     ratio if result["mode"] != "eager" else None, unit="tokens/s over tokens/s")
    return "" if compiled else f"PyTorch {peer['torch']} compiles no model: no target against its plain form"


def follow_the_cpu(check):
    count = 0
    for width, shape in (("narrow", TINY), ("256 wide, 8 experts", SMALL_MOE)):
        for dtype, bound in (("fp32", 1e-4), ("bf16", 1e-2)):
            losses = []
            for device in ("cpu", check.device):
                count += 1
                records, _, _ = train(check, f"losses-{count}-{dtype}-{device}", shape, 20, device, train__dtype=dtype,
                                      overlap__profile=str(check.work / f"costs-{device}.json"))
                losses.append([record["loss"] for record in records])
            off = max(abs(a - b) / abs(a) for a, b in zip(*losses))
            check.figure(f"20 losses against the CPU's, {dtype}, {width}", off, bound, at_least=False, unit="relative")
    check.require(4)


def repeat_exactly(check):
    """Trains twice in bf16, and compares all that the runs leave."""
    folders, losses = [], []
    for turn in "ab":
        records, run_dir, _ = train(check, f"repeat-{turn}", SMALL_MOE, 20, train__save_interval=20,
                                    overlap__policy="lancet")
        losses.append([(record["loss"], record["grad_norm"]) for record in records])
        folders.append(run_dir / "checkpoints/step-000020")
    files = sorted(path.name for path in folders[0].glob("*.safetensors"))
    if not files:
        raise Failed(f"expected a checkpoint in {folders[0]}, found none")
    same = losses[0] == losses[1] and all(filecmp.cmp(folders[0] / f, folders[1] / f, shallow=False) for f in files)
    check.figure("two runs of 20 bf16 steps bit-equal", int(same), 1, unit="losses, norms, weights and optimizer")
    check.require(1)


# These add up rows, parts or shards in another order, so that their sums may round differently, and so may what lancet
# mixes or chooses.
ROUNDED = ("comet", "flowmoe", "collective_matmul", "lancet")


def follow_sequential(check):
    """Compares every policy in two parts with sequential, on one rank of four mirrored ones: streams, flags, copies of
    counts and all-to-alls in parts. A loss that is summed by parts may round differently, a gradient only
    under the policies of ROUNDED.
    Mirrored ranks save no weights, so the gradients of the next steps stand in for them."""
    def train_by(policy, name, **more):
        records, _, _ = train(check, f"schedules-{name}", TINY, 6, overlap__policy=policy, overlap__parts=2,
                              overlap__profile=str(check.work / "costs-schedules.json"), comm__transport="mirrored",
                              comm__network="p4de-a100", comm__mirrored_ranks=4, **more)
        return [(record["loss"], record["grad_norm"]) for record in records]

    expected = train_by("sequential", "sequential", profile=True)
    schedules, exact = without("sequential"), without("sequential", *ROUNDED)
    found = {policy: train_by(policy, policy) for policy in schedules}
    others = [p for p in exact if [norm for _, norm in found[p]] != [norm for _, norm in expected]]
    off = max(abs(a - b) / abs(a) for p in schedules for (a, _), (b, _) in zip(expected, found[p]))
    check.figure("schedules with the gradients of sequential", len(exact) - len(others), len(exact),
                 unit="norms of all steps, to the bit")
    check.figure("two runs of policy lancet bit-equal", int(train_by("lancet", "again") == found["lancet"]), 1,
                 unit="losses and norms")
    # Where cuBLASLt computes a part of a product by another algorithm than the whole, bits differ: that is told, and
    # fails only what differs by more than roundings of bf16.
    check.figure("losses of schedules against those of sequential", off, 1e-3, at_least=False, unit="relative")
    if others:
        print(f"schedules with other gradients than sequential: {', '.join(others)}", flush=True)
    check.require(2)


def overlap(check, network):
    """Runs policy lancet with up to two parts, since the ops of every number of parts are profiled first. Tokens choose
    experts at random: a router that learns on one rank's random tokens soon sends nearly all to one expert."""
    o = check.options
    steps, ranks = (8, 4) if o.dry else (24, 64)
    shape = {**MOE_4K, "model.capacity_factor": 1.25, "model.router": "random"}
    records, _, text = train(check, f"overlap-{network}", shape, steps, profile=True, overlap__policy="lancet",
                             overlap__max_parts=2, overlap__profile=str(check.work / f"costs-{network}.json"),
                             comm__transport="mirrored", comm__network=network, comm__mirrored_ranks=ranks)
    declared = re.search(r"^.*mirrored +\S+ declared ([\d.]+) ms of all-to-alls and ([\d.]+) ms of all-reduces",
                         text, re.MULTILINE)
    if not declared:
        raise Failed(f"overlap-{network}: expected a line of what the network declares, found none")
    if re.search(r"profile: measured .*communication", text):
        raise Failed(f"overlap-{network}: expected the communication of the profile before it, found it measured again")
    step, compute = settled(records, "step_ms"), settled(records, "compute_ms")
    network_ms = max(map(float, declared.groups())) / steps  # streams run in parallel; spans would include delays
    name = f"lancet, mirrored {ranks} ranks of {network}"
    check.figure(f"{name}: step over max(compute, network)", step / max(compute, network_ms), 1.10, at_least=False)
    predicted = settled(records, "predicted_ms")
    check.figure(f"{name}: |predicted / measured - 1|", 100 * abs(predicted / step - 1), 3, at_least=False, unit="%")
    policy = re.search(r"^.*policy +(\w+):", text, re.MULTILINE)
    chosen = policy.group(1) if policy else "?"
    if o.dry:
        return chosen
    return f"{chosen}: step {step:.2f} ms, compute {compute:.2f}, network {network_ms:.2f} (declared)"


def trace(check):
    """Traces a step of 24 layers, as one of four mirrored ranks, so that it has all-to-alls: the trace puts commands on
    every stream far ahead of the GPU, and a stream whose queue is full would stop the others."""
    _, run_dir, _ = train(check, "trace", {**LARGE_MOE, "model.capacity_factor": 1.25}, 4, log__trace=3,
                          comm__transport="mirrored", comm__network="p4de-a100", comm__mirrored_ranks=4)
    file = run_dir / "trace.json"
    if not file.exists():
        raise Failed("expected trace.json in the run folder, found none")
    shape = TINY if check.options.dry else LARGE_MOE
    least = 4 * (shape["model.n_layer"] // LARGE_MOE["model.moe_layer_freq"])  # there and back, forward and backward
    events = [event["name"] for event in json.loads(file.read_text())["traceEvents"] if event["ph"] == "X"]
    found = sum(name.startswith(("all_to_all ", "all_to_all_back ")) for name in events)
    if found < least:
        raise Failed(f"expected {least} all-to-alls in trace.json, found {found} among {len(events)} instructions")


# The tests of the plugin.


def test_program(check):
    if not os.access(check.options.test_cuda, os.X_OK):
        raise Missing(f"expected {check.options.test_cuda}, found none")
    return check.options.test_cuda


def cases(check, start=""):
    """Returns the names of the test cases that begin with `start`."""
    listed = subprocess.run([test_program(check), "--list-test-names-only"], capture_output=True, text=True,
                            env={**os.environ, **check.environment})  # its exit code is the number of cases
    found = [line.strip() for line in listed.stdout.splitlines() if line.strip().startswith(start)]
    if not found:
        raise Failed(f"expected test cases in {listed.args[0]}, found none: {listed.stderr.strip()[-300:]}")
    return found


def selection(name):
    """Returns a test case's name as Catch2 reads it on a command line."""
    return re.sub(r"([\\,\[])", r"\\\1", name)


def why_failed(text):
    """Returns the first failed expression or message, which Catch2 wraps to indented lines."""
    found = re.search(r"FAILED:\n(?:explicitly with message:\n)?((?: +\S.*\n?)+)", text)
    return " ".join(found.group(1).split())[:300] if found else ""


def by_reason(found):
    """found: pairs of a test case and a reason. Returns each reason once, with at most three of its cases."""
    cases_of = {}
    for name, reason in found:
        cases_of.setdefault(reason, []).append(name)
    return "; ".join(f"{reason} ({', '.join(names[:3])}{f' and {len(names) - 3} more' if len(names) > 3 else ''})"
                     for reason, names in cases_of.items())


CASES_AT_ONCE = 4  # most of a case's time is the start of its process


def run_cases(check, names):
    """Runs test cases, each in a process of its own: some start further ones, and a fault on the GPU ends all that its
    process does there. Several run at once; what fails beside others runs again alone, and that counts. A name that
    selects none is a failure (-w NoTests). Returns the failed, the skipped and the late ones, in pairs with their
    reasons."""
    failed, skipped, late = [], [], []

    def run_case(number, name, turn):
        log = f"case-{number}{turn}"
        try:
            text = check.run(log, [test_program(check), "-w", "NoTests", selection(name)])
        except Late as error:
            return late, str(error)
        except Failed as error:
            return failed, why_failed((check.work / f"{log}.log").read_text(errors="replace")) or str(error)
        reason = re.search(r"SKIPPED: (.*)", text)
        return (skipped, reason.group(1)) if reason else (None, "")

    with ThreadPoolExecutor(CASES_AT_ONCE) as pool:
        outcomes = list(pool.map(run_case, range(1, len(names) + 1), names, [""] * len(names)))
    for number, (name, (where, reason)) in enumerate(zip(names, outcomes), 1):
        if where is failed:
            where, reason = run_case(number, name, "-alone")
        if where is not None:
            where.append((name, reason))
    return failed, skipped, late


def require_device(check):
    if check.options.dry:
        raise Missing("dry: no device code runs")


def run_tests(check, names, what):
    failed, skipped, late = run_cases(check, names)
    passed = len(names) - len(failed) - len(skipped) - len(late)
    check.figure(f"{what} passed", passed, unit=f"of {len(names)}, {len(skipped)} skipped")
    if failed:
        raise Failed(by_reason(failed))
    if late:
        raise Late(by_reason(late))
    if not passed:
        raise Failed(f"all skipped: {by_reason(skipped)}")
    return f"skipped: {by_reason(skipped)}" if skipped else ""


def find_tool(name):
    """Returns the path of a tool of the CUDA toolkit, or None."""
    return shutil.which(name, path=os.environ["PATH"] + ":/usr/local/cuda/bin")


def tool(name):
    found = find_tool(name)
    if not found:
        raise Missing(f"expected {name} on the PATH or in /usr/local/cuda/bin, found none")
    return found


PROBE, RANKS = "probe: ", "two ranks train on one GPU"  # how the names of these parts' cases begin


def probe(check):
    """Where a probe fails, it runs once more with all that tells why: under memcheck, with the libraries' logs."""
    require_device(check)
    names = cases(check, PROBE)
    try:
        return run_tests(check, names, "probes")
    except Failed:
        logs = {"CUBLASLT_LOG_LEVEL": "5", "CUBLASLT_LOG_FILE": str(check.work / "cublaslt.log"),
                "CUDNN_LOGLEVEL_DBG": "2", "CUDNN_LOGDEST_DBG": str(check.work / "cudnn.log"),
                "CUDA_LOG_FILE": str(check.work / "cuda.log")}
        memcheck = [tool("compute-sanitizer"), "--tool", "memcheck"] if find_tool("compute-sanitizer") else []
        for number, name in enumerate(names, 1):
            try:
                check.run(f"why-{number}", [*memcheck, test_program(check), "-w", "NoTests", selection(name)], **logs)
            except Failed as error:
                run.log(f"probe, with the libraries' logs: {error}")
        raise


def tests(check):
    require_device(check)
    return run_tests(check, [name for name in cases(check) if not name.startswith((PROBE, RANKS))], "tests on the GPU")


def ranks(check):
    """Trains two ranks as threads of one process on this GPU, then two pipeline stages. All kernels are loaded before
    any stream waits."""
    require_device(check)
    check.environment = {**check.environment, "CUDA_MODULE_LOADING": "EAGER"}
    try:
        return run_tests(check, cases(check, RANKS), "trainings of two ranks on this GPU")
    finally:
        del check.environment["CUDA_MODULE_LOADING"]


def sanitize(check, checker):
    """Checks every op of the tree's own kernels on its samples. Other test cases are left out: one provokes a failed
    allocation, which is an error, and streams that wait for each other are made so slow that they exceed their
    deadlines. Kernels of libraries are not checked: that takes minutes, and racecheck fails in cuBLASLt's."""
    require_device(check)
    cases = "kernels on a GPU against*" + (",products on a GPU against*" if checker == "memcheck" else "")
    text = check.run(checker, [tool("compute-sanitizer"), "--tool", checker, "--kernel-name", "kns=run_kernel",
                               "--error-exitcode", "86", test_program(check), "-w", "NoTests", cases])
    summaries = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: (.*)", text)
    if not summaries:
        raise Failed(f"{checker}: expected a summary in its output, found none")
    return summaries[-1]


def counters(check):
    """Runs the first step of two layers under ncu: how near each of the tree's own kernels is to the rates of the
    chip. The log has the whole table."""
    require_device(check)
    config = config_of(check, "ncu", TWO_LAYERS, 1)
    ncu = [tool("ncu"), "--clock-control", "none", "--section", "SpeedOfLight", "--section", "Occupancy"]
    text = check.run("ncu", [*ncu, "--kernel-name", "regex:run_kernel", "--launch-count", "90", check.options.lancet,
                             "train", config, "--run-dir", check.work / "run"])
    kernels = len(re.findall(r"^ +Duration ", text, re.MULTILINE))
    check.figure("kernels under ncu", kernels, unit="launches of one step of two layers")
    if not kernels:
        raise Missing("ncu profiled no kernel, see its log")


def machine_code(check):
    """Keeps the plugin's machine code, for reading elsewhere."""
    require_device(check)
    sass = check.work / "sass"
    with open(sass, "wb") as file:
        subprocess.run([tool("cuobjdump"), "--dump-sass", check.options.plugin], stdout=file, check=True, timeout=60)
    with open(sass, "rb") as file, gzip.open(check.out / CODE, "wb", compresslevel=6) as packed:
        shutil.copyfileobj(file, packed)
    sass.unlink()
