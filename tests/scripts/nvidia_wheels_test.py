#!/usr/bin/env python3
"""cuDNN and NCCL of a Python that only the PATH names: CMake finds them for the build, `bench gpu` for its programs."""
import os
import pathlib
import subprocess
import sys
import tempfile

from processes import ROOT

sys.path.insert(0, str(ROOT / "scripts"))
from bench import gpu_machine  # noqa: E402
from bench.run import Failed  # noqa: E402

PROJECT = f"""
cmake_minimum_required(VERSION 3.25)
project(small LANGUAGES NONE)
list(APPEND CMAKE_MODULE_PATH {ROOT}/cmake)
set(CUDAToolkit_VERSION_MAJOR 13)
find_package(CUDNN 9 QUIET)
find_package(NCCL 2.20 QUIET)
message(STATUS "found cuDNN ${{CUDNN_VERSION}} ${{CUDNN_LIBRARY}} NCCL ${{NCCL_VERSION}} ${{NCCL_LIBRARY}}")
"""
CUDNN_VERSION = "#define CUDNN_MAJOR 9\n#define CUDNN_MINOR 19\n#define CUDNN_PATCHLEVEL 1\n"
HEADERS = {"cudnn": {"cudnn.h": "", "cudnn_version.h": CUDNN_VERSION},
           "nccl": {"nccl.h": "#define NCCL_MAJOR 2\n#define NCCL_MINOR 28\n#define NCCL_PATCH 9\n"}}
FILES = {"cudnn": "libcudnn.so.9", "nccl": "libnccl.so.2"}


def wheels(site, cuda):
    """Puts wheels for this major version of CUDA into a folder of Python packages."""
    for name, headers in HEADERS.items():
        (site / f"nvidia_{name}_cu{cuda}-9.9.dist-info").mkdir(parents=True)
        for folder, files in (("include", headers), ("lib", {FILES[name]: ""})):
            (site / "nvidia" / name / folder).mkdir(parents=True)
            for file, text in files.items():
                (site / "nvidia" / name / folder / file).write_text(text)


def python_of(folder, site):
    """Makes a Python with these packages and returns a PATH with it in front."""
    folder.mkdir()
    python = folder / "python3"
    python.write_text(f"#!/bin/sh\nPYTHONPATH={site} exec {sys.executable} \"$@\"\n")
    python.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def configure(folder, path):
    folder.mkdir()
    (folder / "CMakeLists.txt").write_text(PROJECT)
    environment = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "CONDA_PREFIX")}
    done = subprocess.run(["cmake", "-S", folder, "-B", folder / "build"], capture_output=True, text=True,
                          env={**environment, "PATH": path})
    assert done.returncode == 0, done.stderr
    return next(line for line in done.stdout.splitlines() if line.startswith("-- found "))


def found(folder):
    site = folder / "site"
    wheels(site, 13)
    path = python_of(folder / "bin", site)
    lib = {name: site / "nvidia" / name / "lib" for name in FILES}
    expected = f"-- found cuDNN 9.19.1 {lib['cudnn']}/libcudnn.so.9 NCCL 2.28.9 {lib['nccl']}/libnccl.so.2"
    line = configure(folder / "project", path)
    assert line == expected, line
    folders = gpu_machine.wheel_folders([folder / "bin/python3"], "13")
    assert folders[:2] == [lib["cudnn"], lib["nccl"]], folders


def other_cuda(folder):
    """Files of the same names for another version of CUDA are no match."""
    site = folder / "site"
    wheels(site, 12)
    line = configure(folder / "project", python_of(folder / "bin", site))
    assert str(site) not in line, line
    folders = gpu_machine.wheel_folders([folder / "bin/python3"], "13")
    assert not any(site in place.parents for place in folders), folders


def compile_library(path, source, *words):
    path.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-", "-x", "none", f"-Wl,-soname,{path.name}",
                    "-Wl,--no-as-needed", *words, "-o", path], input=source, text=True, check=True)
    return path


def plugin_built_elsewhere(folder):
    """A plugin without a path to its libraries: wheels have two of them, the third is nowhere, and it needs no NCCL.
    No system library has these numbers."""
    site = folder / "site"
    wheels(site, 13)
    runtime = compile_library(site / "nvidia/cu13/lib/libcudart.so.13", "")
    cudnn = compile_library(site / "nvidia/cudnn/lib/libcudnn.so.99",
                            "unsigned long cudnnGetVersion(void) { return 91901; }")
    gone = compile_library(folder / "libgone.so.1", "")
    plugin = compile_library(folder / "plugin.so", "", runtime, cudnn, gone)
    gone.unlink()
    python_of(folder / "bin", site)
    libraries = gpu_machine.Libraries(plugin, [folder / "bin/python3"])
    assert libraries.facts()["cuDNN"] == {"version": "9.19.1", "path": str(cudnn)}, libraries.facts()
    assert cudnn.parent in libraries.folders, libraries.folders
    path = libraries.environment()["LD_LIBRARY_PATH"]
    assert path.startswith(":".join(map(str, libraries.folders))), path
    assert libraries.missing == [
        "NCCL: not found at the build, so messages go through the host's memory",
    ], libraries.missing
    try:
        libraries.require_all()
        assert False, "a plugin that does not load"
    except Failed as error:
        assert str(error) == (f"{plugin} does not load: found no libgone.so.1 in the toolkit, the system and Python's "
                              "wheels"), error


for case in (found, other_cuda, plugin_built_elsewhere):
    with tempfile.TemporaryDirectory() as name:
        case(pathlib.Path(name))
    print("passed:", case.__name__, flush=True)
