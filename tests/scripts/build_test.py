#!/usr/bin/env python3
"""scripts/build.sh on a small project: the build output in its log, the number of jobs, and the
tests that a build folder keeps. The folders in which built and installed programs search libraries."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from processes import ROOT

STEPS = 50
PROJECT = """
cmake_minimum_required(VERSION 3.25)
project(small LANGUAGES NONE)
option(LANCET_TESTS "" ON)
set(LANCET_CUDA AUTO CACHE STRING "")
message(STATUS "CUDA: left out, since no nvcc was found")
foreach(i RANGE 1 %d)
  add_custom_command(OUTPUT ${i} COMMAND ${CMAKE_COMMAND} -E touch ${i})
  list(APPEND outputs ${i})
endforeach()
add_custom_target(lancet DEPENDS ${outputs})
add_custom_target(broken COMMAND ${CMAKE_COMMAND} -E cat /no/such/file DEPENDS ${outputs})
""" % STEPS
INSTALLED = f"""
cmake_minimum_required(VERSION 3.25)
project(installed LANGUAGES C)
include({ROOT}/cmake/LancetInstall.cmake)
add_executable(lancet main.c)
target_link_libraries(lancet PRIVATE ${{NEEDED}})
lancet_shipped_files()
"""


def build(root, *arguments, targets="lancet"):
    environment = {**os.environ, "LANCET_TARGETS": targets}
    for name in ("BUILD_DIR", "LANCET_SANITIZE"):
        environment.pop(name, None)
    return subprocess.run([root / "scripts/build.sh", *arguments], capture_output=True, text=True, env=environment,
                          timeout=60)


def has_tests(root):
    return "LANCET_TESTS:BOOL=ON\n" in (root / "build/CMakeCache.txt").read_text()


def short_log(root):
    done = build(root, "--no-tests")
    lines = done.stderr.splitlines()
    assert done.returncode == 0, done
    assert lines[0] == "-- CUDA: left out, since no nvcc was found", done.stderr
    assert len(lines) == 11, f"expected the line of CUDA and one for each tenth\n{done.stderr}"
    assert lines[-1].startswith(f"   [{STEPS}/{STEPS} "), done.stderr
    assert done.stdout == "", done.stdout


def failure(root):
    done = build(root, "--no-tests", targets="broken")
    assert done.returncode != 0, done
    assert "FAILED:" in done.stderr and "/no/such/file" in done.stderr, done.stderr


def number_of_jobs(root):
    for given, expected in (({"JOBS": "3"}, "3"), ({}, str(len(os.sched_getaffinity(0))))):
        environment = {name: value for name, value in os.environ.items() if name != "JOBS"}
        found = subprocess.run(["bash", "-c", ". scripts/common.sh; job_count"], cwd=root, capture_output=True,
                               text=True, env={**environment, **given}).stdout.strip()
        assert found == expected, f"JOBS {given}: expected {expected} jobs, found {found}"


def kept_tests(root):
    assert not has_tests(root), "--no-tests configured the tests"
    assert build(root).returncode == 0
    assert has_tests(root), "a build without --no-tests has no tests"
    assert build(root, "--no-tests").returncode == 0
    assert has_tests(root), "--no-tests took the tests of a build folder that had them"


def search_path(root):
    """A program searches the folders of its libraries and no other: an empty entry would be the current folder."""
    folder = root / "installed"
    for place in (folder, root / "elsewhere"):
        place.mkdir()
    (folder / "main.c").write_text("int needed(void); int main(void) { return needed(); }\n")
    (folder / "CMakeLists.txt").write_text(INSTALLED)
    subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", root / "elsewhere/libneeded.so"],
                   input="int needed(void) { return 0; }", text=True, check=True)
    for shipped in ("configs", "scripts"):
        shutil.copytree(ROOT / shipped, folder / shipped)
    for words in (("-S", folder, "-B", folder / "build", f"-DNEEDED={root}/elsewhere/libneeded.so"),
                  ("--build", folder / "build"), ("--install", folder / "build", "--prefix", folder / "prefix")):
        subprocess.run(["cmake", *words], check=True, stdout=subprocess.DEVNULL)
    for program in (folder / "build/lancet", folder / "prefix/bin/lancet"):
        text = subprocess.run(["readelf", "-d", program], capture_output=True, text=True, check=True).stdout
        found = re.findall(r"\(R(?:UN)?PATH\).*\[(.*)\]", text)
        assert found == [str(root / "elsewhere")], f"{program}: {found}"


if not shutil.which("ninja"):
    print("SKIPPED: no ninja here")
    sys.exit()
with tempfile.TemporaryDirectory() as name:
    root = pathlib.Path(name)
    (root / "scripts").mkdir()
    for script in ("build.sh", "common.sh"):
        shutil.copy(ROOT / "scripts" / script, root / "scripts")
    (root / "CMakeLists.txt").write_text(PROJECT)
    for case in (short_log, failure, number_of_jobs, kept_tests, search_path):
        case(root)
        print("passed:", case.__name__, flush=True)
