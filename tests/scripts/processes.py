"""Helpers of the scripts' tests: a run that lasts for minutes, and the processes that belong to it."""
import json
import os
import pathlib
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent

CONFIG = {
    "model": {"n_layer": 2, "n_head": 2, "n_embd": 32, "n_positions": 16, "vocab_size": 300, "moe_layer_freq": 2,
              "num_local_experts": 4, "capacity_factor": 4, "router_aux_loss_scope": "global"},
    "data": {"synthetic": True},
    "train": {"steps": 60000, "seq_len": 16, "micro_batch_size": 4, "lr": 1e-3, "clip_grad": 1.0, "save_minutes": 0},
    "log": {"peak_tflops": 1, "interval": 100000}, "threads": 1}


def write_config(folder):
    path = folder / "small.json"
    path.write_text(json.dumps(CONFIG))
    return path


def command_line(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
    except OSError:  # the process has ended
        return []


def processes_with(word, program=None):
    """The ids of processes that have this word on their command lines; with `program`, only those that run it."""
    lines = {int(pid): command_line(pid) for pid in os.listdir("/proc") if pid.isdigit() and int(pid) != os.getpid()}
    return sorted(pid for pid, line in lines.items() if word in line and (program is None or line[0] == str(program)))


def wait_until(holds, seconds=60):
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def records(run):
    try:
        return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    except (OSError, json.JSONDecodeError):  # not written yet, or a line is being written
        return []
