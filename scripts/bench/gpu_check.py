"""Runs the parts of `bench gpu` with a time limit each. Every part that ends leaves its results in PART.json, at once,
so that they survive whatever happens to the next one; gpu-check.json has those of all parts, logs.tar the logs. --copy
names a folder that gets few and small files, for machines from which only such files come back."""
import contextlib
import json
import math
import os
import shlex
import shutil
import subprocess
import tarfile
import time

from bench import gpu_machine, run
from bench.run import Failed

KEPT_LOG_BYTES = 4 << 20
CODE = "sass.gz"  # the plugin's machine code: large and compressed, so it is a file of its own wherever results go
END_WITH_PARENT = ("setpriv", "--pdeathsig", "KILL")  # a program ends with this process, also where that is killed
STATUSES = ("not run", "postponed", "late", "failed", "ran")  # worst first
MOST_ARCHIVE_BYTES = 15 << 20  # of --copy: larger files do not come back from some machines


class Late(Failed):
    """A part exceeded its time."""


class Missing(Failed):
    """A part needs something that this machine lacks."""


class Postponed(Failed):
    """A part had no time."""


def last_line(path):
    lines = [line for line in path.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines or ["no output"])[-1][:300]


def write_json(path, value):
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(json.dumps(value, indent=1) + "\n")
    temporary.replace(path)


def kept(info):
    return None if info.size > KEPT_LOG_BYTES or "/checkpoints" in info.name else info


class Check:
    """options: those of the command; scratch: a folder for logs and runs; facts: what every PART.json says of the
    machine and the build; environment: variables of all programs that are started."""

    def __init__(self, options, scratch, facts):
        self.options, self.out, self.scratch, self.facts = options, options.out, scratch, facts
        self.device = "cpu" if options.dry else "cuda"
        self.environment, self.figures, self.peer_python = {}, [], None
        self.called = {}  # records by part, of this call
        self.results = {}  # the best records by part, with those of earlier calls for the same build

    def read_earlier(self, names):
        """Reads the results of earlier calls, and passes over files that no call has written."""
        for name in names:
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
                record = json.loads((self.out / f"{name}.json").read_text())
                if all(record[key] == self.facts[key] for key in ("dry", "build")) and \
                        STATUSES.index(record["status"]) >= STATUSES.index("late"):
                    self.results[name] = record

    def other_device(self, record):
        """Returns the name of the device that an earlier call's result is of, if it is not the one that is here."""
        name = record["device"].get("name", "no GPU")
        return name if name != self.facts["device"].get("name", "no GPU") else None

    def peer(self):
        """Returns the Python of the peer, which is looked for once."""
        if self.peer_python is None:
            python, without = gpu_machine.peer_python(self.options.python, self.options.dry)
            self.peer_python = python or ""
            if without:
                self.facts["missing"].append(without)
        if not self.peer_python:
            raise Missing("no Python with PyTorch")
        return self.peer_python

    def left(self):
        return self.options.end - time.monotonic()

    @contextlib.contextmanager
    def folder(self, name):
        """A folder for logs and runs, whose logs are appended to logs.tar at the end."""
        self.work = self.scratch / name
        self.work.mkdir()
        try:
            yield
        finally:
            with tarfile.open(self.out / "logs.tar", "a") as archive:
                archive.add(self.work, name, filter=kept)
            shutil.rmtree(self.work)

    def part(self, name, needs, most, body):
        """Runs body(). needs: seconds that must be left to start it; most: its time limit in seconds."""
        record = {"part": name, "status": "ran", "note": "", "seconds": 0.0, **self.facts, "figures": []}
        self.figures = record["figures"]
        start = time.monotonic()
        self.until = start + min(most, self.left())
        try:
            if self.left() < needs:
                raise Postponed(f"{max(0, int(self.left()))} s left, it needs {needs}")
            with self.folder(name):
                record["note"] = body() or ""
        except Failed as error:
            status = {Late: "late", Missing: "not run", Postponed: "postponed"}.get(type(error), "failed")
            record.update(status=status, note=str(error))
        except Exception as error:  # an error of this code or an unexpected file; the other parts still run
            record.update(status="failed", note=f"{type(error).__name__}: {error}")
        record["seconds"] = round(time.monotonic() - start, 1)
        record["device_after"] = gpu_machine.gpu()
        run.log(f"{name}: {record['status']} in {record['seconds']:.0f} s {record['note']}")
        self.keep(record)

    def keep(self, record):
        name = record["part"]
        self.called[name] = record
        earlier = self.results.get(name, record)
        if STATUSES.index(record["status"]) < STATUSES.index(earlier["status"]):
            return  # an earlier call has the better result
        self.results[name] = record
        write_json(self.out / f"{name}.json", record)
        own = [{key: value for key, value in result.items()
                if key not in self.facts or key == "device" and self.other_device(result)}
               for result in self.results.values()]
        write_json(self.out / "gpu-check.json", {**self.facts, "parts": own})

    def copy(self, table):
        """Copies the results into the folder of --copy: figures, table, machine code, and an archive of --out, from
        which a call on another machine resumes."""
        try:
            if self.options.copy:
                self.copy_to(self.options.copy, table)
        except OSError as error:  # the parts go on, and their results are in --out
            run.log(f"cannot copy results into {self.options.copy}: {error.strerror or error}")

    def copy_to(self, to, table):
        (to / "table.txt").write_text(table)
        for name in ("gpu-check.json", CODE):
            if (self.out / name).exists():
                shutil.copy(self.out / name, to / name)
        archive = to / "visit.tar.gz.tmp"
        for left_out in ((CODE,), (CODE, "logs.tar")):  # results without logs are better than none
            with tarfile.open(archive, "w:gz", compresslevel=1) as file:
                file.add(self.out, ".", filter=lambda info: None if info.name[2:] in left_out else info)
            if archive.stat().st_size <= MOST_ARCHIVE_BYTES:
                break
        archive.replace(to / "visit.tar.gz")

    def run(self, name, command, seconds=None, **environment):
        """Runs a command and returns its output, which is also written to NAME.log. seconds: time limit; default: the
        part's rest."""
        log = self.work / f"{name}.log"
        seconds = self.until - time.monotonic() if seconds is None else seconds
        if seconds <= 1:
            raise Late(f"no time was left for {name}")
        with open(log, "w") as file:
            file.write(f"$ {shlex.join(map(str, command))}\n")
            file.flush()
            process = subprocess.Popen([*END_WITH_PARENT, *map(str, command)], cwd=run.ROOT, stdout=file,
                                       stderr=subprocess.STDOUT, start_new_session=True,
                                       env={**os.environ, **self.environment, **environment})
            try:
                code = process.wait(seconds)
            except subprocess.TimeoutExpired:
                raise Late(f"{name} was ended after {seconds:.0f} s, see {self.work.name}/{log.name} in logs.tar"
                           ) from None
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, 9)
                    process.wait()
        if code != 0:
            raise Failed(f"{name} ended with {code}: {last_line(log)}")
        return log.read_text(errors="replace")

    def figure(self, name, value, target=None, at_least=True, unit=""):
        """Records a number and its target, both unrounded."""
        if not math.isfinite(value):
            raise Failed(f"{name}: expected a number, found {value}")
        reached = None
        if target is not None and not self.options.dry:
            reached = value >= target if at_least else value <= target
        self.figures.append({"name": name, "value": value, "unit": unit, "target": target,
                             "target_is": None if target is None else "at least" if at_least else "at most",
                             "reached": reached})

    def require(self, count):
        """Fails if one of the newest `count` figures missed its target; for figures that every correct program
        reaches."""
        for figure in self.figures[-count:]:
            if figure["reached"] is False:
                raise Failed(f"{figure['name']}: expected {figure['target_is']} {figure['target']}, "
                             f"found {figure['value']}")
