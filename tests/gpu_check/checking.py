"""What the tests of `bench gpu` share: how it is called, and what its result files must have."""
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(sys.argv[1]).resolve()
KEYS = {"dry", "commit", "device", "host", "libraries", "missing", "build"}  # of every result
PART_KEYS = {"part", "status", "note", "seconds", "device_after", "figures"}
FIGURE_KEYS = {"name", "value", "unit", "target", "target_is", "reached"}


def command(*words):
    return [sys.executable, ROOT / "scripts/bench", "gpu", *map(str, words)]


def check(*words, **environment):
    # A home folder of its own, so that measurements are not kept.
    with tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, "BUILD_DIR": str(PROGRAM.parent), "HOME": home, **environment}
        return subprocess.run(command(*words), capture_output=True, text=True, env=environment, timeout=280)


def expect(condition, what):
    if not condition:
        sys.exit(f"FAILED: {what}")


def same(found, expected, what):
    expect(found == expected, f"{what}: expected {expected!r}, found {found!r}")


def write(path, text):
    path.write_text(text)
    path.chmod(0o755)
    return path


def read(path):
    return json.loads(path.read_text())


def schema(folder, parts):
    """Checks the result files and returns the figures by name."""
    same(sorted(path.name for path in folder.iterdir()),
         sorted(["gpu-check.json", "logs.tar", "table.txt", *(f"{part}.json" for part in parts)]), "the files of --out")
    whole = read(folder / "gpu-check.json")
    same(set(whole), KEYS | {"parts"}, "the keys of gpu-check.json")
    same([record["part"] for record in whole["parts"]], parts, "the parts of gpu-check.json")
    figures = {}
    for record in whole["parts"]:
        own = read(folder / f"{record['part']}.json")
        same(set(own), KEYS | PART_KEYS, f"the keys of {record['part']}.json")
        same({key: own[key] for key in PART_KEYS}, record, f"gpu-check.json about {record['part']}")
        same({key: own[key] for key in KEYS}, {key: whole[key] for key in KEYS}, f"{record['part']}.json's facts")
        for figure in record["figures"]:
            same(set(figure), FIGURE_KEYS, "the keys of a figure")
            figures[figure["name"]] = figure
    return figures
