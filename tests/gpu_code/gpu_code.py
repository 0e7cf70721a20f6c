#!/usr/bin/env python3
"""Rules of the GPU's code that the host's emulation of kernels cannot see, read from the objects of a CUDA plugin.

    gpu_code.py BUILD   fails if a kernel of BUILD's plugin breaks a rule

Of the machine code: no kernel uses stack memory, to which registers are spilled. The other rules are of the PTX that
objects embed for later GPUs: the instructions that the sources count on are there, and others are not. The kernels of
sm_90a, which are empty in that PTX, are compiled to PTX of their own. Where a build embeds no PTX, or it cannot be
unpacked, the last line is SKIPPED: why.
"""
import collections
import ctypes
import json
import re
import shlex
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True
import machine_code  # noqa: E402

# Instructions that sources state by inline assembly, or by the toolkit's headers. tests/ops/references/instructions.cpp
# has a model of those with values.
STATED = {
    "cp.async.cg.shared.global.L2::128B", "cp.async.commit_group", "cp.async.wait_group", "cvt.rn.bf16x2.f32",
    "ex2.approx.ftz.f32", "ld.acquire.sys.u32", "ldmatrix.sync.aligned.m8n8.x4.shared.b16",
    "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16", "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32",
    "mov.b64", "mov.u64", "nanosleep.u32", "red.release.sys.add.u32", "st.global.wb.v2.u32", "st.global.wb.v4.u32",
    "st.release.sys.u32"}
# Kernels that load and store 16 bytes by one instruction where addresses allow it (`wide`), and those that do one.
MOVE = (r"(Updates|Map|MapRows|SumInRankOrder|CopyShards<Pack|Combine|CombineDx|Copy|CopyPart|Sum|Embed|StoreRow|TakeRow|"
        r"AddPositions|AddRuns|JoinRuns|RoundRows|Jitter|NormRows|NormRowsDx|NormBackward|MergeSlots|"
        r"MoveColumns|LogitGradient|GateRows|WideNorm|WideNormDx|WideSquaresDx|"
        r"Row<\w+, true|RouterDx|RouterDw|Resize<Pack|PushRows|run_copies)\b")
LOAD = r"(Squares|Row<\w+, false|AttendRow|NormRowsDw|GateRowsDgate|WideNormDw|WideSquares|ColumnSums|LogSums|Router)\b"
STORE = r"GroupedTensorProduct<(forward|dx), (round|gelu)>"
WIDE = r"(\.global)?(\.wb)?\.(v4\.[bufs]32|v2\.[bufs]64)"
# Kernels that access neighbours one by one, since their rows begin anywhere.
NEIGHBOURS = r"(Attention\w+<float>|LayRows|CapacityRows)"
# Each rank's arena is its window, so a peer may write any tensor while a kernel runs; NCCL's own tables are constant.
READS_CONSTANTS = r"find_windows"

# Of the kernels by warpgroups (src/ops/moe/expert_linear/warpgroup_product.h): products of 64x256 for the four steps of
# a slice, for dw with and without the sums of rows, which are products of 64x8; copies of a stage's boxes; fences between
# ordinary stores to shared memory and what reads it next.
WARPGROUP = {name: dict(zip(("wgmma.mma_async.sync.aligned.m64n256k16", "wgmma.mma_async.sync.aligned.m64n8k16",
                             "cp.async.bulk.tensor", "fence.proxy.async", "setmaxnreg"), counts))
             for name, counts in {"forward, round": (4, 0, 3, 1, 2), "forward, gelu": (4, 0, 3, 1, 2),
                                  "dx, round": (4, 0, 5, 1, 2), "dx, gelu": (4, 0, 7, 1, 2),
                                  "dw, round": (8, 4, 6, 3, 2)}.items()}

Code = collections.namedtuple("Code", "file name body")


def tile(edge, depth=32, stages=4, row_sums=False):
    """The tensor core instructions of a SquareTile: a slice of k in the loop, and what is fetched before it."""
    down, across, steps = edge // 2 // 16, edge // 2 // 8, depth // 16  # fragments of a warp; steps of a slice
    return collections.Counter({"mma.sync": (down * across + (down if row_sums else 0)) * steps,
                                "ldmatrix": (down + across // 2) * (steps + 1),
                                "cp.async.cg": 2 * edge * depth // 8 // 128 * stages})


def tensor_instructions(kernel):
    """What a kernel must have by its tiles (src/ops/moe/expert_linear/tile_product.h) or its ring; none in most."""
    if ring := re.match(r"NormBackward<\w+, \w+, (\d)>", kernel):  # packs of three tensors, at three places
        return collections.Counter({"cp.async.cg": 9 * int(ring[1])})
    product = re.match(r"GroupedTensorProduct<(\w+), (\w+)>", kernel)
    if not product:
        return collections.Counter()
    if product[1] == "dw":  # tiles, or their quarters
        return tile(128, row_sums=True) + tile(64, row_sums=True)
    return tile(128) + collections.Counter({"cp.async.cg": product.groups() == ("dx", "gelu")})  # GELU's argument


def split_packs(body):
    """Yields the accesses of 16 neighbouring bytes one element at a time, between two branches or barriers."""
    for block in re.split(r"(?m)^\$L\S*:|\bbra\b.*|\bbar\.sync.*", body):
        offsets = collections.defaultdict(set)
        for access, bits, register, offset in re.findall(
                r"\b((?:ld|st)\.global)(?:\.\w+)*\.[bufs](\d+)\s+(?:%\w+, )?\[(%\w+)\+?(-?\d*)\]", block):
            offsets[access, register, int(bits) // 8].add(int(offset or 0))
        for (access, _, size), found in offsets.items():
            if size < 16 and any(all(at + i in found for i in range(0, 16, size)) for at in found):
                yield access


def faults_of(code):
    count = collections.Counter(re.findall(r"(?m)^\s*(?:@!?%\w+\s+)?([a-z]\w*(?:\.[\w:]+)+)", code.body))

    def number(pattern):
        return sum(found for name, found in count.items() if re.fullmatch(pattern, name))

    if ".local" in code.body:
        yield "local memory"
    if number(r"ld\.global\.nc.*") and not re.match(READS_CONSTANTS, code.name):
        yield "ld.global.nc: a peer's write may not be seen"
    for access, kernels in (("ld", f"{MOVE}|{LOAD}"), ("st", f"{MOVE}|{STORE}")):
        if re.match(kernels, code.name) and not number(access + WIDE):
            yield f"no {access} of 16 bytes"
    if not re.match(NEIGHBOURS, code.name):
        yield from (f"16 bytes by several {access}" for access in sorted(set(split_packs(code.body))))
    if code.name == "PushRows":  # announces what it has written to peers, and waits for what they have written
        yield from (f"no {name}" for name in ("st.release.sys.u32", "ld.acquire.sys.u32") if not count[name])
    if product := re.match(r"GroupedWarpgroupProduct<(.*)>", code.name):
        if "wgmma" in code.body or code.file == WARPGROUP_PTX:  # PTX for other architectures has empty bodies
            for name, expected in WARPGROUP[product[1]].items():
                if (found := number(re.escape(name) + r"\..*")) != expected:
                    yield f"{found} {name}, expected {expected}"
        return
    expected = tensor_instructions(code.name)
    for name in ("mma.sync", "ldmatrix", "cp.async.cg"):
        if (found := number(re.escape(name) + r"\..*")) != expected[name]:
            yield f"{found} {name}, expected {expected[name]}"
    for assembly in re.findall(r"// begin inline asm\n(.*?)// end inline asm", code.body, re.S):
        for name in re.findall(r"(?m)^\s*\{?\s*([a-z]\w*(?:\.[\w:]+)+)", assembly):
            if name not in STATED and not re.match(READS_CONSTANTS, code.name):
                yield f"{name}, an instruction that STATED does not list"


def stack_faults(found):
    return [f"{kernel.file}, {kernel.name}, sm_{architecture}: {kernel.stack} bytes of stack"
            for architecture, kernels in found.items() for kernel in kernels if kernel.stack]


class Unreadable(Exception):
    pass


def unpacked(data, size):
    if data.lstrip().startswith((b"//", b".version")):
        return data
    if not data.startswith(b"\x28\xb5\x2f\xfd"):
        raise Unreadable("the embedded PTX is packed by another way than Zstandard")
    try:
        library = ctypes.CDLL("libzstd.so.1")
    except OSError as error:
        raise Unreadable(str(error)) from error
    text = ctypes.create_string_buffer(size)
    library.ZSTD_decompress.restype = ctypes.c_size_t
    if library.ZSTD_decompress(text, ctypes.c_size_t(size), data, ctypes.c_size_t(len(data))) != size:
        raise Unreadable("the embedded PTX cannot be unpacked")
    return text.raw


def embedded(data):
    """Yields the PTX in the fat binaries (CUDA's container of code for several GPUs) of an object file."""
    for found in re.finditer(rb"\x50\xed\x55\xba", data):
        header, size = struct.unpack_from("<HQ", data, found.start() + 6)
        at = found.start() + header
        end = at + size
        while at < end:
            kind, _, header, size, packed = struct.unpack_from("<HHIQI", data, at)
            if kind == 1:
                whole, = struct.unpack_from("<Q", data, at + 56)
                yield unpacked(data[at + header:at + header + (packed or size)], whole).decode(errors="replace")
            at += header + size


def kernels_of(file, ptx):
    parts = re.split(r"\.entry (\w+)\(", ptx)
    names = machine_code.demangled(parts[1::2])
    return [Code(file, names[name], body) for name, body in zip(parts[1::2], parts[2::2])]


WARPGROUP_PTX = "PTX of sm_90a"


def warpgroup_kernels(build):
    """Compiles the source for sm_90a to PTX, of which the plugin holds the machine code alone."""
    for entry in json.loads((build / "compile_commands.json").read_text()):
        words = shlex.split(entry["command"])
        if "-DLANCET_SM_90A" in words:
            options = [word for word in words[:words.index("-c")] if not word.startswith("--generate-code")]
            with tempfile.NamedTemporaryFile(suffix=".ptx") as file:
                subprocess.run([*options, "-ptx", "-arch=compute_90a", entry["file"], "-o", file.name],
                               cwd=entry["directory"], check=True)
                return kernels_of(WARPGROUP_PTX, Path(file.name).read_text())
    return []


def check(build):
    faults = stack_faults(machine_code.read(build))
    kernels, skipped = [], ""
    try:
        for file, data in machine_code.objects(build):
            for ptx in embedded(data):
                kernels += kernels_of(file, ptx)
    except Unreadable as reason:
        skipped = str(reason)
    kernels += warpgroup_kernels(build)
    faults += [f"{code.file}, {code.name}: {fault}" for code in kernels for fault in faults_of(code)]
    for fault in faults:
        print(fault)
    print(f"{len(kernels)} kernels of PTX")
    if not faults and (skipped or not kernels):
        print(f"SKIPPED: {skipped or f'{build} has no CUDA plugin with PTX'}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(check(Path(sys.argv[1])))
