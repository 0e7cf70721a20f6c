"""model.safetensors of random float32 weights, as the PyTorch peers make and read it."""
import json
import math
import struct

import torch


def write(folder, shapes, make):
    """shapes: by name. make(name, shape): the tensor."""
    header, offset = {}, 0
    for name, shape in shapes.items():
        size = 4 * math.prod(shape)
        header[name] = dict(dtype="F32", shape=shape, data_offsets=[offset, offset + size])
        offset += size
    text = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, shape in shapes.items():
            file.write(make(name, shape).numpy().tobytes())


def load(folder):
    """Returns the tensors by name."""
    raw = memoryview((folder / "model.safetensors").read_bytes())
    length = struct.unpack("<Q", raw[:8])[0]
    weights = {}
    for name, t in json.loads(bytes(raw[8:8 + length])).items():
        begin, end = (8 + length + o for o in t["data_offsets"])
        weights[name] = torch.frombuffer(bytearray(raw[begin:end]), dtype=torch.float32).view(t["shape"])
    return weights
