"""What `bench gpu` finds on a machine: its GPU, cores and memory, and where the plugin's libraries are."""
import json
import os
import re
import subprocess
import sys
from pathlib import Path

from bench import run
from bench.run import Failed

# The libraries that a build may lack: the start of the file's name, and what then happens.
OPTIONAL = {"cuDNN": ("libcudnn.so", "cuDNN: not found at the build, so attention runs on the tree's own kernels"),
            "NCCL": ("libnccl.so", "NCCL: not found at the build, so messages go through the host's memory")}
VERSION_CALLS = {"cuBLASLt": ("libcublasLt.so", "cublasLtGetVersion"), "cuDNN": ("libcudnn.so", "cudnnGetVersion"),
                 "NCCL": ("libnccl.so", "ncclGetVersion")}
# Prints a library's version. NCCL writes it to an int, the others return it.
ASK_VERSION = """
import ctypes, sys
call, version = getattr(ctypes.CDLL(sys.argv[1]), sys.argv[2]), ctypes.c_int(0)
call.restype = ctypes.c_size_t
returned = call(ctypes.byref(version))
print(version.value or returned)
"""
LOAD = """
import ctypes, os, sys
try:
    ctypes.CDLL(sys.argv[1], os.RTLD_NOW)
except OSError as error:
    sys.exit(str(error))
"""
# A program that is no Python prints something else.
ASK_TORCH = "import torch; print('PyTorch', 'with' if torch.cuda.is_available() else 'without', 'a GPU')"
NO_PEER = "so the speeds have no peer"


def output_of(command, seconds=20, **environment):
    """Returns a command's output; empty if the program is missing, fails or takes longer."""
    try:
        return subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True, timeout=seconds,
                              env={**os.environ, **environment}).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def gpu():
    """Returns nvidia-smi's fields of the first GPU; empty if there is none."""
    fields = ["name", "driver_version", "memory.total", "memory.used", "clocks.sm", "clocks.mem", "clocks.max.sm",
              "power.draw", "power.limit", "temperature.gpu"]
    for names in (fields + ["clocks_event_reasons.active"], fields, fields[:2]):  # older drivers lack some fields
        lines = output_of(["nvidia-smi", f"--query-gpu={','.join(names)}", "--format=csv,noheader"]).splitlines()
        if lines:
            return dict(zip(names, (word.strip() for word in lines[0].split(","))))
    return {}


def host():
    memory = dict(re.findall(r"^(\w+): +(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE))
    gib = {name: round(int(memory[field]) / 2**20, 1)
           for name, field in (("memory_gib", "MemTotal"), ("available_gib", "MemAvailable"))}
    return {"cores": len(os.sched_getaffinity(0)), **gib}


def wheel_folders(pythons, cuda):
    """Returns the lib folders of NVIDIA's wheels in the Pythons' search paths. Of cuDNN and NCCL, whose files have the
    same names for all versions of CUDA, only those whose record names this major version."""
    found = []
    for python in pythons:
        paths = output_of([python, "-c", "import json, sys; print(json.dumps(sys.path))"])
        for site in map(Path, filter(None, json.loads(paths or "[]"))):
            for folder in sorted(site.glob("nvidia/*/lib")):
                name = folder.parent.name
                if name not in ("cudnn", "nccl") or any(site.glob(f"nvidia_{name}_cu{cuda}-*.dist-info")):
                    found.append(folder)
    return found


def toolkit_folders():
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    return [Path(home) / lib for home in homes if home for lib in ("lib64", "lib")]


def peer_python(given, dry):
    """Returns a Python whose PyTorch uses the GPU (in a dry run, any PyTorch), or None with what is missing. given: the
    only Python to ask, which must have PyTorch, or None."""
    without = None
    for python in [given] if given else dict.fromkeys(run.pythons()):
        found = output_of([python, "-c", ASK_TORCH], seconds=60).strip()
        if found == "PyTorch with a GPU" or dry and found == "PyTorch without a GPU":
            return python, ""
        if found == "PyTorch without a GPU":
            without = without or python
    if without:
        return None, f"PyTorch: the one of {without} uses no GPU (torch.cuda.is_available()), {NO_PEER}"
    if given:
        raise Failed(f"--python: expected a Python with PyTorch, found {given}")
    return None, f"PyTorch: no Python has it, {NO_PEER}"


class Libraries:
    """The libraries that the plugin needs on this machine. paths: where each is, None if it is not there; folders:
    those to add to the search path of the program; places: those that may have them besides the system's; missing: what
    the head of the table must say."""

    def __init__(self, plugin, pythons):
        self.plugin, self.folders, self.missing = plugin, [], []
        self.paths = self.resolve()
        self.search(pythons)
        self.versions = {name: version for name in VERSION_CALLS if (version := self.version(name))}
        for name, (start, instead) in OPTIONAL.items():
            if self.paths and not any(file.startswith(start) for file in self.paths):
                self.missing.append(instead)

    def require_all(self):
        """Fails where the plugin does not load: for want of a library, or of a symbol that an older one lacks. Where
        the system's libraries are such older ones, those of the toolkit and the wheels go before them."""
        gone = [file for file, path in self.paths.items() if not path]
        if gone:
            raise Failed(f"{self.plugin} does not load: found no {', '.join(gone)} in the toolkit, the system and "
                         "Python's wheels")
        if self.load_error():
            self.folders = [place for place in self.places if place.is_dir()]
            self.paths = self.resolve()
        if error := self.load_error():
            raise Failed(f"{self.plugin} does not load: {error}")

    def load_error(self):
        """Returns what the loader says of the plugin, with all its symbols bound; empty if it loads."""
        done = subprocess.run([sys.executable, "-c", LOAD, self.plugin], capture_output=True, text=True,
                              env={**os.environ, **self.environment()})
        lines = done.stderr.strip().splitlines()
        return "" if done.returncode == 0 else lines[-1] if lines else f"the loader ended with {done.returncode}"

    def environment(self):
        old = os.environ.get("LD_LIBRARY_PATH")
        return {"LD_LIBRARY_PATH": ":".join([*map(str, self.folders), *([old] if old else [])])} if self.folders else {}

    def resolve(self):
        text = output_of(["ldd", self.plugin], **self.environment())
        lines = re.findall(r"^\s*(\S+) => (not found|\S+)", text, re.MULTILINE)
        return {file: None if path == "not found" else path for file, path in lines}

    def search(self, pythons):
        """Adds folders to the search path for the libraries that the system's loader does not find."""
        cuda = next((file.rpartition(".")[2] for file in self.paths if file.startswith("libcudart.so")), "")
        self.places = toolkit_folders() + wheel_folders(pythons, cuda)
        if all(self.paths.values()):
            return
        # cuDNN loads the compiler of kernels itself, so the plugin does not name it.
        for file in [*(file for file, path in self.paths.items() if not path), f"libnvrtc.so.{cuda}"]:
            place = next((place for place in self.places if (place / file).exists()), None)
            if place and place not in self.folders:
                self.folders.append(place)
        self.paths = self.resolve()

    def path(self, name):
        start = VERSION_CALLS[name][0]
        return next((path for file, path in self.paths.items() if path and file.startswith(start)), None)

    def version(self, name):
        path = self.path(name)
        if not path:
            return None
        text = output_of([sys.executable, "-c", ASK_VERSION, path, VERSION_CALLS[name][1]], **self.environment())
        number = int(text) if text.strip().isdecimal() else 0
        return f"{number // 10000}.{number // 100 % 100}.{number % 100}" if number else None

    def facts(self):
        return {name: {"version": self.versions.get(name), "path": self.path(name)} for name in VERSION_CALLS}


def pythons(first):
    return [first, *run.pythons()] if first else run.pythons()
