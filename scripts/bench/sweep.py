"""Makes every point of an experiment: a training step of a model, gate, number of ranks and policy, simulated on a
declared machine by `lancet plan`, or run here or on an emulated cluster by `lancet train`.

EXPERIMENT is a file, or the name of one in configs/experiments (docs/experiments.md). Points that are recorded in
points.jsonl are skipped; failed points run again. Exit code: 0, 1 if a point failed, 75 if a signal stopped the sweep:
the same command resumes it.
"""
import concurrent.futures
import contextlib
import fcntl
import hashlib
import itertools
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from bench import policies, run
from bench.run import Failed
from bench.table import markdown
from hardware_table import changed, read_commented

INTERRUPTED = 75
EXPERIMENTS, HARDWARE = run.ROOT / "configs/experiments", run.ROOT / "configs/hardware"
GRACE_S = 5  # from a request to end to the next
EXPERIMENT_KEYS = ("title", "settings", "warmup", "steps", "time_planning", "rate", "grids")
AXES = {"hardware": str, "models": str, "gates": str, "ranks": int, "policies": str}


class Point(NamedTuple):
    label: str
    model: str
    gate: str
    ranks: int
    policy: str
    on: str  # a hardware file, "this" or "emulated"
    variation: str  # changes to the hardware file's numbers; empty: none
    hosts: int
    config: Path
    fields: list  # FIELD=VALUE, in order
    hardware: Path  # the hardware file, with the changes; of runs None
    imbalance: float
    padded: bool
    plan: str  # the path of a plan file; empty: the policy makes one
    id: str = ""

    def network(self):
        return {"this": "measured", "emulated": "emulated"}.get(self.on, "simulated")

    def place(self):
        return self.on + (f":{self.variation}" if self.variation else "")

    def count(self):
        return f"{self.ranks} rank{'s' * (self.ranks > 1)}"

    def __str__(self):
        imbalance = f"imbalance {self.imbalance:g}" if self.imbalance != 1 else ""
        words = self.place(), self.label, self.model, self.gate, self.count(), self.policy, imbalance
        return ", ".join(filter(None, words))


class Experiment(NamedTuple):
    name: str
    points: list
    warmup: int = 2
    steps: int = 5
    rate: str = "200mbit"
    time_planning: bool = False


# Reading an experiment

def first_file(what, *places):
    for place in places:
        if place.is_file():
            return place
    raise Failed(f"expected {what} at {' or '.join(map(str, dict.fromkeys(places)))}, found none")


def read_json(path):
    try:
        return read_commented(path)
    except (OSError, ValueError) as error:
        raise Failed(f"{path}: {error}") from error


def check_keys(where, found, known):
    if not isinstance(found, dict):
        raise Failed(f"{where}: expected an object, found {found!r}")
    if unknown := [key for key in found if key not in known]:
        raise Failed(f"{where}: expected the fields {', '.join(known)}, found {unknown[0]!r}")


def lists_of(grid, where):
    """Returns the lists of a grid: variations, models, gates, ranks, policies."""
    grid = {"hardware": [""], **grid}
    for key, kind in AXES.items():
        values = grid.get(key)
        if not isinstance(values, list) or not values or not all(type(value) is kind for value in values):
            what = "integers" if kind is int else "texts"
            raise Failed(f"{where}.{key}: expected a list of {what}, found {values!r}")
    return [grid[key] for key in AXES]


def imbalance_of(grid, where):
    routing = grid.get("routing", "even")
    imbalance = 1 if routing == "even" else routing.get("imbalance") if isinstance(routing, dict) else None
    if not isinstance(imbalance, (int, float)) or not 1 <= imbalance <= 1000:
        raise Failed(f"{where}.routing: expected \"even\" or {{\"imbalance\": 1 to 1000}}, found {routing!r}")
    return imbalance


class Reader:
    """Expands the grids of an experiment's file into points. on: replaces the field of each grid; build: the hash of
    the sources that decide simulated numbers; machines: a folder for hardware files."""

    def __init__(self, name, on, build, machines):
        self.path = first_file("an experiment", Path(name), run.ROOT / name, EXPERIMENTS / f"{name}.json")
        self.on, self.build, self.folder_of_machines, self.machines = on, build, machines, {}
        self.root = read_json(self.path)
        check_keys(self.path, self.root, EXPERIMENT_KEYS)
        settings = self.root.get("settings", "settings.json")
        self.folder = self.path.parent
        if isinstance(settings, str):
            found = first_file("the settings of the experiment", self.folder / settings, Path(settings),
                               run.ROOT / settings)
            self.folder, settings = found.parent, read_json(found)
        check_keys(f"{self.path}: settings", settings, ("models", "policies"))
        self.settings = settings

    def read(self):
        experiment = Experiment(self.path.stem, [], **{
            key: self.root[key] for key in ("warmup", "steps", "rate", "time_planning") if key in self.root})
        for i, grid in enumerate(self.root.get("grids", [])):
            where = f"{self.path}: grids[{i}]"
            check_keys(where, grid, ("on", "label", *AXES, "set", "routing"))
            imbalance = imbalance_of(grid, where)
            for names in itertools.product(*lists_of(grid, where)):
                experiment.points.append(self.point(experiment, grid, where, imbalance, *names))
        if not experiment.points:
            raise Failed(f"{self.path}: expected grids, found none")
        return experiment

    def entry(self, where, kind, name, known):
        named = self.settings.get(kind, {})
        if name not in named:
            raise Failed(f"{where}.{kind}: expected some of {', '.join(named)}, found {name!r}")
        check_keys(f"{kind}.{name}", named[name], known)
        return named[name]

    def machine(self, place, where):
        """Writes a hardware file with changes to its numbers; returns its path and its JSON."""
        if place not in self.machines:
            name, _, changes = place.partition(":")
            known = ", ".join(sorted(path.stem for path in HARDWARE.glob("*.json")))
            path = first_file(f"a hardware file or one of {known}", *([Path(name), run.ROOT / name] if "/" in name or
                              name.endswith(".json") else [HARDWARE / f"{name}.json"]))
            written = self.folder_of_machines / str(len(self.machines)) / f"{path.stem}.json"
            try:
                document = changed(read_json(path), changes)
            except (KeyError, TypeError, ValueError) as error:
                raise Failed(f"{where}: {path}: {error}") from error
            written.parent.mkdir()
            written.write_text(json.dumps(document))
            self.machines[place] = written, document
        return self.machines[place]

    def point(self, experiment, grid, where, imbalance, variation, model, gate, ranks, policy):
        on, _, changes = (self.on or grid.get("on", "")).partition(":")
        of_model = self.entry(where, "models", model, ("config", "set"))
        of_policy = self.entry(where, "policies", policy, ("set", "padded", "plan"))
        name = Path(of_model["config"])
        point = Point(grid.get("label", ""), model, gate, ranks, policy, on,
                      ",".join(filter(None, (changes, variation))), 1,
                      first_file("a config", name, self.folder / name, run.ROOT / name).resolve(),
                      [*of_model.get("set", []), f"model.router={gate}", *grid.get("set", []),
                       *of_policy.get("set", [])],
                      None, imbalance, of_policy.get("padded", False), of_policy.get("plan", ""))
        if point.network() == "simulated":
            hardware, machine = self.machine(point.place(), where)
            point = point._replace(hardware=hardware, hosts=-(-ranks // int(machine["node"]["devices"]["value"])))
        elif point.variation or point.imbalance != 1 or point.padded or point.plan:
            raise Failed(f"{where}: expected even routing, no padding, no plan file and no changes of hardware where "
                         f"points are run, found {point}")
        else:
            point = point._replace(hosts=ranks if on == "emulated" else 1)
        return point._replace(id=self.id_of(experiment, point))

    def id_of(self, experiment, point):
        """Two points with one id have the same names and config and, simulated, the same hardware, routing, plan file
        and deciding sources; of runs, the same processor and numbers of steps."""
        config = read_json(point.config)
        for field in point.fields:
            name, _, value = field.partition("=")
            *sections, last = name.split(".")
            section = config
            for key in sections:
                section = section.setdefault(key, {})
            with contextlib.suppress(ValueError):
                value = json.loads(value)
            section[last] = value
        if point.network() == "simulated":
            how = [self.build, experiment.time_planning, point.imbalance, point.padded, self.machines[point.place()][1]]
            how += [first_file("a plan file", Path(point.plan)).read_text()] if point.plan else []
        else:
            how = [processor(), experiment.warmup, experiment.steps, experiment.rate * (point.on == "emulated")]
        names = [point.label, point.model, point.gate, point.policy, point.place(), point.ranks, point.hosts]
        return hashlib.sha256(json.dumps([how, names, config], sort_keys=True).encode()).hexdigest()[:16]


# The machine of a measured time

def value_in(path, key):
    found = re.search(rf"^{key}\s*: *(.*)$", Path(path).read_text(), re.MULTILINE)
    return found.group(1) if found else ""


def processor():
    """Returns the processor's name with its family and model, since the names on virtual machines are vague."""
    return f"{run.cpu()} (family {value_in('/proc/cpuinfo', 'cpu family')}, model {value_in('/proc/cpuinfo', 'model')})"


def machine_label(used):
    """Describes this machine: processor, cores used, memory. used: 0 for all cores."""
    cores, memory = len(os.sched_getaffinity(0)), int(value_in("/proc/meminfo", "MemTotal").split()[0]) / 2**20
    return f"{processor()}, {min(used or cores, cores)} of {cores} core{'s' * (cores > 1)}, {memory:.0f} GiB"


# Processes

class Processes:
    """Runs commands in sessions of their own, so that the terminal's Ctrl-C is for the sweep alone, and ends them."""

    def __init__(self):
        self.running = set()

    def run(self, words, limit_s=None):
        """Returns the exit code, stdout and the lines of stderr; the code is None if the command took too long."""
        try:
            process = subprocess.Popen(list(map(str, words)), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                       stderr=subprocess.PIPE, text=True, start_new_session=True)
        except OSError as error:
            raise Failed(f"cannot start {words[0]}: {error.strerror}") from error
        self.running.add(process)
        try:
            out, err = process.communicate(timeout=limit_s)
            return process.returncode, out, err.splitlines()
        except subprocess.TimeoutExpired:
            self.end(process)
            out = err = ""
            with contextlib.suppress(subprocess.TimeoutExpired):  # a descendant may still hold the pipes
                out, err = process.communicate(timeout=GRACE_S)
            return None, out, err.splitlines()
        finally:
            if process.poll() is None:
                self.end(process)
            self.running.discard(process)

    def json(self, words, what):
        """Returns what a command prints as JSON."""
        code, out, err = self.run(words)
        if code != 0:
            raise Failed(f"{what}: {reason_in(err)}")
        return json.loads(out)

    @staticmethod
    def end(process):
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S)
                return

    def end_all(self):
        for process in list(self.running):
            self.end(process)


def reason_in(lines):
    """Returns the first line that speaks of an error, or the last one."""
    lines = [line for line in lines if line.strip()]
    return next((line for line in lines if "error" in line), lines[-1] if lines else "no output")


# Outcomes

TIMES = ("step_ms", "compute_ms", "all_to_all_ms", "all_reduce_ms", "communication_ms", "exposed_ms")
OF_RUNS = {**{name: name for name in TIMES[1:]}, "all_to_all_ms": "a2a_ms", "all_reduce_ms": "allreduce_ms",
           "predicted_ms": "predicted_ms"}  # fields of a run's steps


def plan_words(point, *more):
    return ["plan", point.config, "--ranks", point.ranks, *more, "--alone", "--json", *run.sets(point.fields)]


def build_of(processes, lancet):
    """Returns the hash of the program's sources that decide simulated numbers."""
    return processes.json([lancet, "plan", run.ROOT / "configs/quickstart.json", "--on", "ethernet-10g-cpu", "--alone",
                           "--json", *run.sets(["overlap.policy=sequential"])], f"{lancet} plan --json")["build"]


def simulate(processes, lancet, experiment, point):
    """Plans the point's step on its hardware, and returns what a record says of it."""
    words = plan_words(point, "--on", point.hardware, *["--padded"] * point.padded,
                       *(["--imbalance", point.imbalance] if point.imbalance != 1 else []),
                       *(["--plan", point.plan] if point.plan else []))
    try:
        plan = processes.json([lancet, *words], point)
    except Failed as error:
        raise Failed(str(error).replace(str(point.hardware), point.place())) from None
    if "pipeline" in plan:
        raise Failed(f"{point}: expected mesh.stage = 1 where points are simulated")
    row = next(row for row in plan["policies"] if row["policy"] == plan["chosen"])
    routing = "even: every expert gets the same tokens, none is dropped"
    if point.imbalance != 1:
        routing = (f"imbalance {point.imbalance:g}: the fullest expert has {point.imbalance:g} times the mean load; "
                   f"{100 * plan['kept']:.1f}% of the tokens fit")
    found = {"status": "ok" if plan["fits"] else "out of memory",
             "runs": "a plan file" if point.plan else plan["chosen"], "k": row["parts"]}
    if plan["fits"]:
        found |= {**{name: row[name] for name in TIMES}, "forward_ms": plan["forward_ms"],
                  "experts_ms": plan["experts_ms"]}
        found |= {"bound_ms": plan["bound_ms"]} if plan["bound_ms"] is not None else {}
    found |= {"memory_gib": plan["memory_bytes"] / 2**30, "steps": 0, "imbalance": point.imbalance,
              "padded": point.padded, "routing": routing + "; whole buffers are sent and multiplied" * point.padded}
    measured = {"planning_ms": plan["planning_ms"], "place": machine_label(1)} if experiment.time_planning else {}
    return found | measured


class Runs:
    """Runs points on this machine, or on an emulated cluster, which is set up before the first and after a failure."""

    def __init__(self, processes, lancet, experiment, folder, timeout_s, fresh):
        self.processes, self.lancet, self.experiment, self.folder = processes, lancet, experiment, folder
        self.timeout_s, self.measured = timeout_s, not fresh
        self.cluster, self.launcher = contextlib.ExitStack(), None

    def launcher_of(self, point):
        if point.on == "this":
            return [run.ROOT / "scripts/mpirun.sh", point.ranks]
        if not self.launcher:
            hosts = max(each.hosts for each in self.experiment.points if each.on == "emulated")
            self.launcher = self.cluster.enter_context(
                policies.Cluster("sweep", "--hosts", hosts, "--rate", self.experiment.rate))
        return [*self.launcher[:-1], "--hosts", point.hosts, self.launcher[-1]]

    def end(self):
        self.launcher = None
        self.cluster.close()

    def costs_of(self, point):
        """Returns the file of measured costs for this number of ranks and link rate."""
        rate = f"-{self.experiment.rate}" if point.on == "emulated" else ""
        return (self.folder / f"profile{rate}-{point.ranks}-ranks.json").resolve()

    def run(self, point):
        """Profiles and trains, and returns what a record says of it."""
        if not self.measured:  # --fresh measures the costs again
            self.measured = True
            for each in self.experiment.points:
                self.costs_of(each).unlink(missing_ok=True)
        launcher = self.launcher_of(point)
        try:
            return self.trained(point, launcher)
        except Failed as error:
            self.end()  # the run may have left processes behind
            return {"status": "failed", "why": str(error), "runs": "", "k": 1, "memory_gib": 0, "steps": 0}

    def trained(self, point, launcher):
        out, costs = (self.folder / "runs" / point.id).resolve(), self.costs_of(point)
        out.mkdir(parents=True, exist_ok=True)
        (out / "metrics.jsonl").unlink(missing_ok=True)
        steps = self.experiment.warmup + self.experiment.steps
        profiled = [*point.fields, f"overlap.profile={costs}", "data.synthetic=true"]
        quiet = ["train.eval_interval=0", "train.sample_tokens=0", "train.save_minutes=0", "train.save_interval=0",
                 f"train.steps={steps}", "log.interval=1000000"]
        for words in (["profile", point.config, *run.sets(profiled)],
                      ["train", "--run-dir", out, point.config, *run.sets(profiled + quiet)]):
            code, text, err = self.processes.run([*launcher, self.lancet, *words], self.timeout_s)
            if code is None:
                raise Failed(f"killed after {self.timeout_s} s (--timeout); its last line: {reason_in(err)}")
            if code != 0:
                raise Failed(f"exit code {code}: {reason_in([*err, *text.splitlines()])}")
        return self.outcome(point, run.step_records(out, steps)[self.experiment.warmup:], out / "plan.ir", costs)

    def outcome(self, point, records, plan, costs):
        planned = self.processes.json([self.lancet, *plan_words(point, "--hosts", point.hosts, "--profile", costs,
                                                                "--plan", plan)], "the run's plan")
        row, steps = planned["policies"][0], [record["step_ms"] for record in records]
        found = {"status": "ok", "runs": planned["chosen"], "k": row["parts"], "step_ms": statistics.median(steps),
                 "least_step_ms": min(steps), "most_step_ms": max(steps),
                 **{name: run.median(records, field) for name, field in OF_RUNS.items()},
                 "predicted_compute_ms": row["compute_ms"], "predicted_communication_ms": row["communication_ms"],
                 "forward_ms": None, "experts_ms": None, "memory_gib": row["arena_bytes"] / 2**30,
                 "steps": len(records), "routing": "as the gate decides on synthetic tokens"}
        loads = [record["load_max_over_mean"] for record in records if record.get("load_max_over_mean")]
        found |= {"imbalance": statistics.median(loads)} if loads else {}
        threads = next((int(field[8:]) for field in reversed(point.fields) if field.startswith("threads=")), 0)
        return {**found, "place": machine_label(threads * point.ranks)}


# Records

def record_of(experiment, point, outcome, commit):
    batches = [field.partition("=")[2] for field in point.fields if field.startswith("train.micro_batch_size=")]
    record = {"id": point.id, "experiment": experiment.name, "network": point.network(), "hardware": point.on,
              **({"variation": point.variation} if point.variation else {}), "label": point.label, "model": point.model,
              "gate": point.gate, "ranks": point.ranks, "hosts": point.hosts,
              **({"rate": experiment.rate} if point.on == "emulated" else {}),
              "batch": int(batches[-1]) if batches else read_json(point.config)["train"]["micro_batch_size"],
              "policy": point.policy, **outcome, "commit": commit}
    return {key: round(value, 3) if isinstance(value, float) else value for key, value in record.items()}


class Records:
    """points.jsonl of a folder, which is locked against other sweeps."""

    def __init__(self, folder, points, fresh):
        folder.mkdir(parents=True, exist_ok=True)
        self.path, self.lock = folder / "points.jsonl", os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Failed(f"{folder}: expected a folder that no other sweep writes to, found one at work") from None
        self.results, text = {}, self.path.read_text() if self.path.is_file() else ""
        kept, others = ("", text) if fresh else self.split(text, {point.id for point in points})
        if others:
            free = next(path for path in (Path(f"{self.path}.{n}") for n in itertools.count(1)) if not path.exists())
            free.write_text(others)
        if kept != text or not self.path.is_file():
            new = Path(f"{self.path}.new")
            new.write_text(kept)
            os.replace(new, self.path)
        self.file = open(self.path, "a")

    def split(self, text, wanted):
        """Returns the records of wanted points and those of others; failed points have none."""
        kept = others = ""
        lines = text.splitlines(keepends=True)
        for number, line in enumerate(lines, 1):
            try:
                record = json.loads(line)
                found, status = record["id"], record["status"]
            except (KeyError, TypeError, ValueError):
                if number == len(lines) and not line.endswith("\n"):
                    run.log(f"{self.path}:{number}: an interruption cut this record short; its point runs again")
                    continue
                raise Failed(f"{self.path}:{number}: expected a record of a sweep; delete the line to run its point "
                             "again, or use --fresh to run all points again") from None
            if found in wanted and status == "failed":
                continue
            line = line.rstrip("\n") + "\n"
            if found in wanted and found not in self.results:
                self.results[found] = record
                kept += line
            else:
                others += line
        return kept, others

    def append(self, record):
        self.file.write(json.dumps(record, separators=(",", ":"), ensure_ascii=False) + "\n")
        self.file.flush()
        os.fsync(self.file.fileno())
        self.results[record["id"]] = record

    def close(self):
        self.file.close()
        os.close(self.lock)


def result_of(record):
    return f"{record['step_ms']:.1f}" if record["status"] == "ok" else record["status"]


def table_of(points, records):
    """Returns the steps' times as text: a row for each place, model, gate and number of ranks, a column a policy."""
    policies, rows = list(dict.fromkeys(point.policy for point in points)), {}
    for point in points:
        name = ", ".join(filter(None, (point.place(), point.model, point.gate, point.label, point.count())))
        rows.setdefault(name, {}).setdefault(point.policy, result_of(records[point.id]))
    cells = [[name, *(row.get(policy, "-") for policy in policies)] for name, row in rows.items()]
    return "\n".join(markdown(["step, ms", *policies], cells))


def outcomes(points, processes, runs, jobs):
    """Yields the points with their outcomes, in order; neighbouring simulated points run beside one another."""
    for is_simulated, here in itertools.groupby(points, key=lambda point: point.network() == "simulated"):
        if not is_simulated:
            yield from ((point, runs.run(point)) for point in here)
            continue
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            found = [(point, pool.submit(simulate, processes, runs.lancet, runs.experiment, point)) for point in here]
            try:
                yield from ((point, outcome.result()) for point, outcome in found)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                processes.end_all()
                raise


def sweep(name, lancet, out=None, on="", fresh=False, only_list=False, timeout_s=1800, jobs=None):
    """Makes the points of an experiment and returns the exit code."""
    processes = Processes()
    with tempfile.TemporaryDirectory() as machines:
        experiment = Reader(name, on, build_of(processes, lancet), Path(machines)).read()
        if only_list:
            print("\n".join(f"{point.id}  {point}" for point in experiment.points))
            return 0
        file, colon, changes = on.partition(":")
        place = f"-on-{Path(file).stem}{colon and '-'}{changes}" if on else ""
        folder = Path(out or f"runs/sweeps/{experiment.name}{place}")
        records = Records(folder, experiment.points, fresh)
        runs = Runs(processes, lancet, experiment, folder, timeout_s, fresh)
        return make_points(processes, experiment, records, runs, jobs)


def make_points(processes, experiment, records, runs, jobs):
    left = list({point.id: point for point in experiment.points if point.id not in records.results}.values())
    name, total, commit, failed = experiment.name, len(experiment.points), run.program_commit(), []
    before, start = total - len(left), time.monotonic()
    try:
        for number, (point, outcome) in enumerate(outcomes(left, processes, runs, jobs), 1):
            record = record_of(experiment, point, outcome, commit)
            records.append(record)
            if record["status"] == "failed":
                failed.append(f"{point}: {record['why']}")
            rest = (time.monotonic() - start) / number * (len(left) - number)
            print(f"{name} {number}/{len(left)}: {point}: {record.get('why') or result_of(record)}"
                  f"{f', {rest:.0f} s left' if number < len(left) else ''}", file=sys.stderr, flush=True)
    except (KeyboardInterrupt, SystemExit):
        print(f"stopped: {len(records.results)} of {total} points are in {records.path}; the same command resumes",
              file=sys.stderr)
        return INTERRUPTED
    finally:
        processes.end_all()
        runs.end()
        records.close()
    print(table_of(experiment.points, records.results))
    lacking = sum(record["status"] == "out of memory" for record in records.results.values())
    print(f"{name}: {total} points, {before} recorded before, {lacking} out of memory, {len(failed)} failed: "
          f"{records.path}")
    if failed:
        print(f"error: the same command tries the failed points again; the first: {failed[0]}", file=sys.stderr)
    return 1 if failed else 0


def add_arguments(parser):
    parser.add_argument("experiment", help="a file, or a name in configs/experiments")
    parser.add_argument("--on", default="", help="replaces the file's field: this (run here), emulated (run on a "
                        "cluster of network namespaces, as root), or a machine, also with changes to its numbers")
    parser.add_argument("--out", type=Path, help="folder of points.jsonl; default: runs/sweeps/EXPERIMENT[-on-PLACE]")
    parser.add_argument("--timeout", type=run.at_least(1), default=1800,
                        help="seconds of a run's profiling, and again of its training; default: %(default)s")
    parser.add_argument("--jobs", type=run.at_least(1), default=len(os.sched_getaffinity(0)),
                        help="simulated points at a time; default: the cores")
    parser.add_argument("--fresh", action="store_true", help="make all points and measure all costs again")
    parser.add_argument("--list", action="store_true", help="print the points and their ids, make none")
    run.add_program(parser)


def main(options):
    return sweep(options.experiment, run.program(options), options.out, options.on, options.fresh, options.list,
                 options.timeout, options.jobs)
