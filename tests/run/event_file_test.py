#!/usr/bin/env python3
"""Compares a run's TensorBoard event file, decoded from the format's description alone, with its metrics.jsonl.

    event_file_test.py LANCET
"""
import json
import pathlib
import struct
import subprocess
import sys
import tempfile

CONFIG = """{
  "model": {"n_layer": 2, "n_head": 2, "n_embd": 32, "n_positions": 16, "vocab_size": 300, "moe_layer_freq": 2,
            "num_local_experts": 4, "capacity_factor": 1},
  "data": {"synthetic": true},
  "train": {"steps": 300, "seq_len": 16, "micro_batch_size": 4, "lr": 1e-3},
  "log": {"peak_tflops": 1, "interval": 100}, "threads": 1}"""


def crc32c(data):  # bit by bit: reflected polynomial 0x1EDC6F41
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(crc):
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def records(data):
    at = 0
    while at < len(data):
        length, length_crc = struct.unpack_from("<QI", data, at)
        assert masked(crc32c(data[at:at + 8])) == length_crc, f"the length at byte {at} has another CRC"
        body = data[at + 12:at + 12 + length]
        assert len(body) == length, f"the record at byte {at} is cut short"
        (body_crc,) = struct.unpack_from("<I", data, at + 12 + length)
        assert masked(crc32c(body)) == body_crc, f"the record at byte {at} has another CRC"
        yield body
        at += 16 + length


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def fields(data):
    """(number, value) of a protocol buffer's message; a value is an int or raw bytes."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        wire = key & 7
        if wire == 0:
            value, at = varint(data, at)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
            value, at = data[at:at + size], at + size
        elif wire == 2:
            size, at = varint(data, at)
            assert at + size <= len(data), "a field longer than its message"
            value, at = data[at:at + size], at + size
        else:
            raise AssertionError(f"wire type {wire}")
        yield key >> 3, value
    assert at == len(data)


def events(path):
    found = []
    for body in records(path.read_bytes()):
        event = dict(fields(body))
        scalars = {}
        for number, value in fields(event.get(5, b"")):
            assert number == 1, f"field {number} of a summary"
            entry = dict(fields(value))
            scalars[entry[1].decode()] = struct.unpack("<f", entry[2])[0]
        found.append((struct.unpack("<d", event[1])[0], event.get(2, 0), event.get(3), scalars, event.get(7)))
    return found


def main():
    lancet = sys.argv[1]
    assert crc32c(b"123456789") == 0xE3069283
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        (folder / "c.json").write_text(CONFIG)
        train = [lancet, "train", str(folder / "c.json"), "--run-dir"]
        subprocess.run(train + [str(folder / "plain")], check=True, capture_output=True)
        assert not list((folder / "plain").glob("events*")), "an event file that was not requested"
        run = folder / "run"
        subprocess.run(train + [str(run), "--set", "log.tensorboard=true"], check=True, capture_output=True)
        (path,) = run.glob("events.out.tfevents.*")
        metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines() if '"loss"' in line]
        first, *rest = events(path)
        assert first[2] == b"brain.Event:2" and not first[3], first
        assert len(rest) == len(metrics) == 300
        names = {"train/loss": "loss", "train/aux_loss": "aux_loss", "train/grad_norm": "grad_norm", "train/lr": "lr", "speed/step_ms": "step_ms",
                 "speed/tokens_per_s": "tokens_per_s", "speed/mfu": "mfu", "speed/exposed_ms": "exposed_ms", "speed/compute_ms": "compute_ms",
                 "experts/load_max_over_mean": "load_max_over_mean", "experts/drop_pct": "drop_pct", "experts/dead_experts": "dead_experts",
                 "experts/router_entropy": "router_entropy", "experts/experts_per_token": "experts_per_token"}
        layers = {f"layers/{key}/0": f"layer_{key}" for key in ("load_max_over_mean", "drop_pct", "dead_experts", "router_entropy", "experts_per_token")}
        before = first[0]
        for (time, step, _, scalars, _), record in zip(rest, metrics):
            assert step == record["step"], (step, record["step"])
            assert time >= before, "time runs backwards"
            before = time
            expected = {tag: record[key] for tag, key in names.items()} | {tag: record[key][0] for tag, key in layers.items()}
            for tag, value in expected.items():
                assert abs(scalars[tag] - value) <= 1e-6 * abs(value), f"step {step}: {tag} is {scalars[tag]}, the record says {value}"
        # A resumed run writes SessionLog { status = START } first, at the first step that runs again.
        again = folder / "again"
        stopped = subprocess.run(train + [str(again), "--set", "log.tensorboard=true", "--set", "train.steps=6", "--set", "train.stop_after=4"], capture_output=True)
        assert stopped.returncode == 75, stopped.stderr
        (before,) = again.glob("events.out.tfevents.*")
        subprocess.run(train + [str(again), "--set", "log.tensorboard=true", "--set", "train.steps=6"], check=True, capture_output=True)
        (after,) = set(again.glob("events.out.tfevents.*")) - {before}
        assert [event[4] for event in events(before)] == [None] * 5
        assert [event[1] for event in events(after)] == [0, 5, 5, 6]
        assert [event[4] for event in events(after)] == [None, b"\x08\x01", None, None]
    print(f"{len(rest)} events of {len(rest[0][3])} scalars")


main()
