"""Reads the machine code (ELF files for the GPU) in the objects of a build's CUDA plugin, without tools of CUDA."""
import json
import re
import struct
import subprocess
from collections import namedtuple

ARCHITECTURES = (80, 90)
MACHINE_CUDA = 190
FRAME_SIZE = 0x11  # an attribute of the section .nv.info: a symbol and its bytes of stack
WITH_SIZE = 0x04  # the format of an attribute whose value follows its size

Kernel = namedtuple("Kernel", "file name stack")


class Elf:
    """The sections and symbols of one ELF file of 64 bits at the beginning of `data`."""

    def __init__(self, data):
        self.data = data
        table, flags = struct.unpack_from("<QI", data, 40)
        self.architecture = flags >> 8 & 0xFF
        size, count, names = struct.unpack_from("<HHH", data, 58)
        headers = [struct.unpack_from("<IIQQQQIIQQ", data, table + i * size) for i in range(count)]
        self.sections = {self.text(headers[names][4] + header[0]): header for header in headers}

    def text(self, at):
        return self.data[at:self.data.index(b"\0", at)].decode()

    def symbols(self):
        start, strings = self.sections[".symtab"][4], self.sections[".strtab"][4]
        return [self.text(strings + struct.unpack_from("<I", self.data, start + 24 * i)[0])
                for i in range(self.sections[".symtab"][5] // 24)]

    def attributes(self, section):
        """Yields (attribute, offset of its value)."""
        at = self.sections[section][4]
        end = at + self.sections[section][5]
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
    stacks = dict(struct.unpack_from("<II", elf.data, at) for attribute, at in elf.attributes(".nv.info")
                  if attribute == FRAME_SIZE)
    for symbol, name in enumerate(symbols):
        if f".nv.info.{name}" in elf.sections:
            yield Kernel(file, name, stacks[symbol])


def demangled(names):
    listing = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True).stdout
    return dict(zip(names, map(short, listing.splitlines())))


def short(name):
    """The functor of a launch, or the function, without namespaces and parameters."""
    name = re.sub(r"lancet::(?:\w+::)*|\(anonymous namespace\)::", "", name)
    name = re.sub(r"\(ExpertProduct\)(\d)", lambda kind: ("forward", "dx", "dw")[int(kind[1])], name)
    name = re.sub(r"\(Epilogue\)(\d)", lambda kind: ("round", "gelu", "sums")[int(kind[1])], name)
    launch = re.search(r"run_kernel<Block<\d+>, (.*)>\(", name)
    return launch[1].strip() if launch else re.sub(r"^void |\(.*", "", name)


def objects(build):
    """Yields (file, bytes) of the plugin's objects, without those that are left of removed sources."""
    for entry in json.loads((build / "compile_commands.json").read_text()):
        found = re.search(r" -o (CMakeFiles/lancet_(?:cuda|warpgroup)\.dir/(\S+)\.o)", entry["command"])
        if found and entry["file"].endswith(".cu") and (build / found[1]).exists():
            yield found[2].removeprefix("src/").removesuffix("/cuda.cu"), (build / found[1]).read_bytes()


def read(build):
    """Returns {architecture: [Kernel]} of the plugin's objects."""
    found = {architecture: [] for architecture in ARCHITECTURES}
    for file, data in objects(build):
        for elf in elves(data):
            if elf.architecture in found:
                found[elf.architecture] += kernels_of(elf, file)
    names = demangled(sorted({kernel.name for kernels in found.values() for kernel in kernels}))
    return {architecture: [kernel._replace(name=names[kernel.name]) for kernel in kernels]
            for architecture, kernels in found.items()}
