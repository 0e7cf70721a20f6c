#!/usr/bin/env python3
"""Writes docs/kernels.md: threads, registers and shared memory of every GPU kernel, for sm_80 and sm_90.

    kernel_table.py BUILD           fails if the page is not what --write would write
    kernel_table.py BUILD --write   writes the page
    kernel_table.py --self-test     reads a made-up machine code file

Reads the machine code (ELF files for the GPU) in the objects of BUILD's CUDA plugin, so that neither nvcc nor another
tool of the toolkit is needed. The page is compared only where it was made by the same version of CUDA; else the last
line is SKIPPED: why. tests/gpu_code/gpu_code.py reads the same objects for what must hold of each kernel.
"""
import re
import struct
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/kernels.md"
ARCHITECTURES = (80, 90)
MACHINE_CUDA = 190
# Attributes of the section .nv.info: a symbol and a number each. Of .nv.info.KERNEL: three numbers.
FRAME_SIZE, REGISTERS, MOST_THREADS = 0x11, 0x2F, 0x05
WITH_SIZE = 0x04  # the format of an attribute whose value follows its size
RESERVED_SHARED = {80: 0, 90: 1024}  # bytes that the system takes of each block, included in the section's size

Kernel = namedtuple("Kernel", "file name threads registers shared stack")


class Elf:
    """The sections and symbols of one ELF file of 64 bits at the beginning of `data`."""

    def __init__(self, data):
        self.data = data
        self.machine, = struct.unpack_from("<H", data, 18)
        table, flags = struct.unpack_from("<QI", data, 40)
        self.architecture = flags >> 8 & 0xFF
        size, count, names = struct.unpack_from("<HHH", data, 58)
        headers = [struct.unpack_from("<IIQQQQIIQQ", data, table + i * size) for i in range(count)]
        self.sections = {self.text(headers[names][4] + header[0]): header for header in headers}

    def text(self, at):
        return self.data[at:self.data.index(b"\0", at)].decode()

    def size(self, section):
        return self.sections[section][5] if section in self.sections else 0

    def symbols(self):
        start, strings = self.sections[".symtab"][4], self.sections[".strtab"][4]
        return [self.text(strings + struct.unpack_from("<I", self.data, start + 24 * i)[0])
                for i in range(self.size(".symtab") // 24)]

    def attributes(self, section):
        """Yields (attribute, offset of its value)."""
        at = self.sections[section][4]
        end = at + self.size(section)
        while at < end:
            form, attribute, size = struct.unpack_from("<BBH", self.data, at)
            yield attribute, at + 4
            at += 4 + (size if form == WITH_SIZE else 0)


def elves(data):
    at = data.find(b"\x7fELF")
    while at >= 0:
        if struct.unpack_from("<H", data, at + 18)[0] == MACHINE_CUDA:
            yield Elf(data[at:])
        at = data.find(b"\x7fELF", at + 4)


def kernels_of(elf, file):
    """Yields the kernels (mangled) of one ELF file. Functions that are not kernels have no .nv.info of their own."""
    symbols = elf.symbols()
    values = {}
    for attribute, at in elf.attributes(".nv.info"):
        if attribute in (FRAME_SIZE, REGISTERS):
            symbol, value = struct.unpack_from("<II", elf.data, at)
            values[symbols[symbol], attribute] = value
    for name in symbols:
        if f".nv.info.{name}" not in elf.sections:
            continue
        threads = [struct.unpack_from("<III", elf.data, at) for attribute, at in elf.attributes(f".nv.info.{name}")
                   if attribute == MOST_THREADS]
        shared = elf.size(f".nv.shared.{name}") - RESERVED_SHARED.get(elf.architecture, 0)
        yield Kernel(file, name, threads[0][0] if threads else 0, values[name, REGISTERS], max(shared, 0),
                     values[name, FRAME_SIZE])


def demangled(names):
    listing = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True).stdout
    return dict(zip(names, map(short, listing.splitlines())))


def short(name):
    """The functor of a launch, or the function, without namespaces and parameters."""
    name = re.sub(r"lancet::(?:\w+::)*|\(anonymous namespace\)::", "", name)
    name = re.sub(r"\(ExpertProduct\)(\d)", lambda kind: ("forward", "dx", "dw")[int(kind[1])], name)
    name = re.sub(r"\(Epilogue\)(\d)", lambda kind: ("round", "gelu")[int(kind[1])], name)
    launch = re.search(r"run_kernel<Block<\d+>, (.*)>\(", name)
    return launch[1].strip() if launch else re.sub(r"^void |\(.*", "", name)


def objects(build):
    """Yields (file, bytes) of the plugin's objects, without those that are left of removed sources."""
    for folder in (build / "CMakeFiles/lancet_cuda.dir", build / "CMakeFiles/lancet_warpgroup.dir"):
        for path in sorted(folder.rglob("*.cu.o")):
            source = path.relative_to(folder).with_suffix("")
            if (ROOT / source).exists():
                yield source.as_posix().removeprefix("src/").removesuffix("/cuda.cu"), path.read_bytes()


def read(build):
    """Returns {architecture: [Kernel]} of the plugin's objects."""
    found = {architecture: [] for architecture in ARCHITECTURES}
    for file, data in objects(build):
        for elf in elves(data):
            if elf.architecture in found:
                found[elf.architecture] += kernels_of(elf, file)
    names = demangled(sorted({kernel.name for kernels in found.values() for kernel in kernels}))
    return {architecture: sorted(kernel._replace(name=names[kernel.name]) for kernel in kernels)
            for architecture, kernels in found.items()}


def cuda_version(build):
    for path in build.glob("CMakeFiles/*/CMakeCUDACompiler.cmake"):
        version = re.search(r'CMAKE_CUDA_COMPILER_VERSION "(\d+\.\d+)', path.read_text())
        if version:
            return version[1]
    return None


def page(found, version):
    rows = []
    for low, high in zip(*found.values()):
        rows.append(f"| {low.file} | `{low.name}` | {low.threads or '-'} | {low.registers} | {high.registers} "
                    f"| {low.shared} |")
    return f"""# Kernels of the GPU plugin

Written by `scripts/kernel_table.py`, compiled with CUDA {version} for sm_80 and sm_90. No kernel uses stack memory, so
none spills registers; tests hold that and this page. Threads are of a block. Shared memory is what the compiler lays
out, in bytes; what a kernel requests at its launch (`Shared` in its source) comes on top. `src/` and `cuda.cu` are left
out of the names of files.

| file | kernel | threads | registers, sm_80 | sm_90 | shared memory |
|---|---|---|---|---|---|
""" + "\n".join(rows) + "\n"


def check(build, write):
    version = cuda_version(build)
    found = read(build)
    if not version or not all(found.values()):
        print(f"SKIPPED: {build} has no CUDA plugin for both sm_80 and sm_90")
        return 0
    names = [[(kernel.file, kernel.name) for kernel in kernels] for kernels in found.values()]
    if names[0] != names[1]:
        print(f"kernels of one architecture alone: {sorted(set(names[0]) ^ set(names[1]))}")
        return 1
    text = page(found, version)
    if write:
        PAGE.write_text(text)
    if PAGE.exists() and f"compiled with CUDA {version} " not in PAGE.read_text():
        print(f"SKIPPED: {PAGE.name} is not of CUDA {version}")
    elif not PAGE.exists() or PAGE.read_text() != text:
        print(f"{PAGE.name}: differs from this build; to update it: scripts/kernel_table.py {build} --write")
        return 1
    return 0


def self_test():
    name = "_ZN6kernelE"
    strings = f"\0.shstrtab\0.symtab\0.strtab\0.nv.info\0.nv.info.{name}\0.nv.shared.{name}\0".encode()
    symbol_names = f"\0{name}\0".encode()
    info = struct.pack("<BBHIIBBHBBHII", 4, FRAME_SIZE, 8, 1, 24, 3, 0x50, 7, 4, REGISTERS, 8, 1, 40)
    own = struct.pack("<BBHIII", 4, MOST_THREADS, 12, 256, 1, 1)
    contents = [(".shstrtab", strings), (".symtab", bytes(24) + struct.pack("<I", 1) + bytes(20)),
                (".strtab", symbol_names), (".nv.info", info), (f".nv.info.{name}", own),
                (f".nv.shared.{name}", bytes(1536))]
    data, headers = bytearray(64), []
    for section, content in contents:
        headers.append(struct.pack("<IIQQQQIIQQ", strings.index(f"\0{section}\0".encode()) + 1, 1, 0, 0, len(data),
                                   len(content), 0, 0, 1, 0))
        data += content
    table = len(data)
    data += b"".join(headers)
    data[:4] = b"\x7fELF"
    struct.pack_into("<H", data, 18, MACHINE_CUDA)
    struct.pack_into("<QI", data, 40, table, 0x5A04)
    struct.pack_into("<HHH", data, 58, 64, len(contents), 0)
    host = b"host code\x7fELF" + bytes(60)
    found = [kernel for elf in elves(host + data) for kernel in kernels_of(elf, "a/cuda.cu")]
    expected = [Kernel("a/cuda.cu", name, 256, 40, 512, 24)]
    named = short("void lancet::ops::device::run_kernel<lancet::ops::device::Block<256>, lancet::ops::device::Map<"
                  "lancet::bf16, 2, lancet::ops::(anonymous namespace)::Sum> >(lancet::ops::device::Map<lancet::bf16>)")
    if found != expected or named != "Map<bf16, 2, Sum>":
        print(f"expected {expected} and Map<bf16, 2, Sum>, found {found} and {named}")
        return 1
    return 0


if __name__ == "__main__":
    if sys.argv[1:] == ["--self-test"]:
        sys.exit(self_test())
    sys.exit(check(Path(sys.argv[1]), sys.argv[2:] == ["--write"]))
