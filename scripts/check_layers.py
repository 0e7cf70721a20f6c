#!/usr/bin/env python3
"""Checks that each module includes only modules that CMakeLists.txt lists behind its DEPENDS, and that includes form no
cycles.

A module depends only on modules that CMakeLists.txt lists before it. Its tests may use all of those. The table of
modules in docs/architecture.md must have every module, in a higher layer than the modules on which it depends.

Prints one line per offence (file:line: text) and exits 1 if there is one.
"""
import graphlib
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Kernels of an op and the helpers that they share (src/ops/cpu*, cuda*) may use the device and the network. The op's
# description (op.cpp, math.h, the rest of src/ops, and every private header that those include) may not.
KERNEL_MODULES = {"backend", "comm"}
KERNEL_FILE = re.compile(r"^src/ops/\w+/\w+/(?!op\.cpp$|math\.h$)|^src/ops/device/|^src/ops/cpu\w*\.h$"
                         r"|^include/lancet/ops/kernel\w*\.h$")

# Headers of other libraries that only some folders may include: (library, header, files).
CORNERS = [
    ("MPI", re.compile(r"^mpi\.h$"), re.compile(r"^(src|tests)/comm/mpi/")),
    ("NCCL", re.compile(r"^nccl\.h$"), re.compile(r"^(src/comm/nccl|tests/cuda_doubles)/")),
    ("CUDA", re.compile(r"^(cuda|cublas|cudnn|curand|nvml|nvtx3?|cub/|cooperative_groups|thrust/)"),
     re.compile(r"^(src/(backend/cuda|comm/nccl)|tests/cuda_doubles)/|\.cuh?$")),
    ("CBC", re.compile(r"^(coin/)?(Cbc|Osi|Coin)[A-Z]\w*\.h"), re.compile(r"^src/placement/linear_solver\.cpp$")),
    ("oneDNN", re.compile(r"^(oneapi/dnnl|dnnl)"), re.compile(r"^src/backend/cpu/")),
]

SOURCE = {".h", ".hpp", ".cpp", ".cu", ".cuh"}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
PAGE_ROW = re.compile(r"\| (\d+) \| `(\w+)")
CMAKE_MODULE = re.compile(r"^lancet_module\((\w+)(?:\s+DEPENDS((?:\s+\w+)*?))?(?:\s+USES[^)]*)?\)", re.MULTILINE)

# Module: the modules on which it depends, in the order of CMakeLists.txt.
MODULES = {name: depends.split() for name, depends in CMAKE_MODULE.findall((ROOT / "CMakeLists.txt").read_text())}


def module_of(path):
    """The module of a file given relative to the root: include/lancet/R/..., src/R/..., tests/R/... None for files of
    no module: src/main.cpp, and in tests the folders that modules share."""
    parts = path.removeprefix("include/lancet/").removeprefix("src/").split("/")
    if parts[0] == "tests":
        parts = parts[1:] if parts[1] in MODULES else []
    return parts[0] if len(parts) > 1 else None


def allowed_modules(path, module):
    """The modules that a file may include."""
    if path.startswith("tests/"):
        order = list(MODULES)
        return set(order[:order.index(module) + 1])
    allowed = {module, *MODULES[module]}
    return allowed - KERNEL_MODULES if module == "ops" and not KERNEL_FILE.search(path) else allowed


def target_of(path, header, quoted):
    """(module, private) that an include names, or None if it is no header of this tree."""
    parts = header.split("/")
    if parts[0] == "lancet" and len(parts) > 2:
        return parts[1], False
    if quoted and ((ROOT / path).parent / header).is_file():
        found = ((ROOT / path).parent / header).resolve().relative_to(ROOT).as_posix()
        return (module_of(found), found.startswith("src/")) if module_of(found) else None
    return (parts[0], True) if quoted and len(parts) > 1 and parts[0] in MODULES else None


def files_of(*folders):
    for folder in folders:
        for file in sorted((ROOT / folder).rglob("*")):
            if file.is_file() and file.suffix in SOURCE:
                yield file.relative_to(ROOT).as_posix()


def includes_of(path):
    """Yields (line, header, whether it is quoted) of each include of a file."""
    for number, line in enumerate((ROOT / path).read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        if match := INCLUDE.match(line):
            yield number, match.group(2), match.group(1) == '"'


def check_file(path):
    module = module_of(path)
    if module is not None and module not in MODULES:
        yield f"{path}:1: '{module}' is no module; known: {', '.join(MODULES)}"
        return
    for number, header, quoted in includes_of(path):
        where = f"{path}:{number}:"
        for what, pattern, corner in CORNERS:
            if pattern.search(header) and not corner.search(path):
                yield f"{where} {what} header {header} outside its folder"
        target = target_of(path, header, quoted)
        if module is None or target is None:
            continue
        other, private = target
        if other not in MODULES:
            yield f"{where} {header}: '{other}' is no module"
        elif other not in allowed_modules(path, module):
            yield f"{where} {module} may not include {other} ({header})"
        elif private and other != module and not path.startswith("tests/"):
            yield f"{where} {header} is private to {other}; others use include/lancet/{other}/"
        elif private and path.startswith("include/"):
            yield f"{where} a public header includes the private {header}"


def included_file(path, header):
    """The file of this tree that an include names, relative to the root, or None."""
    for folder in ((ROOT / path).parent, ROOT / "include", ROOT / "src"):
        if (folder / header).is_file():
            return (folder / header).resolve().relative_to(ROOT).as_posix()
    return None


def kernel_headers_of(path, seen):
    """Private headers that a description in ops includes, directly or not, and that include backend or comm."""
    for _, header, _ in includes_of(path):
        name = included_file(path, header)
        if name and name not in seen and name.startswith("src/ops/"):
            seen.add(name)
            if any(other.startswith(("lancet/backend/", "lancet/comm/")) for _, other, _ in includes_of(name)):
                yield name
            yield from kernel_headers_of(name, seen)


def check_descriptions():
    """Offences of op descriptions that include backend or comm through a private header."""
    for path in files_of("src/ops"):
        if path.endswith(".cpp") and not KERNEL_FILE.search(path):
            for header in kernel_headers_of(path, set()):
                yield f"{path}:1: ops may not include backend or comm, and {header} does"


def check_cycles():
    """Offences of folders, or units (a header with its source), that include each other in a cycle."""
    units, folders = {}, {}
    for path in files_of("include", "src"):
        for _, header, _ in includes_of(path):
            if other := included_file(path, header):
                # A public header and a private file have the same names inside their module.
                pair = [name.removeprefix("include/lancet/").removeprefix("src/") for name in (path, other)]
                for graph, separator in ((units, "."), (folders, "/")):
                    user, used = (name.rsplit(separator, 1)[0] for name in pair)
                    if user != used:
                        graph.setdefault(user, set()).add(used)
    for graph, what in ((units, "units"), (folders, "folders")):
        try:
            graphlib.TopologicalSorter(graph).prepare()
        except graphlib.CycleError as error:
            yield f"src:1: the {what} {', '.join(error.args[1][:-1])} include each other"


def check_order():
    """Offences of CMakeLists.txt, and of the table of modules in docs/architecture.md."""
    rows = PAGE_ROW.findall((ROOT / "docs/architecture.md").read_text(encoding="utf-8"))
    order, layers = list(MODULES), {module: int(layer) for layer, module in rows}
    if set(layers) != set(MODULES):
        yield f"docs/architecture.md:1: modules of the page or CMakeLists.txt alone: {set(layers) ^ set(MODULES)}"
    for module, other in ((module, other) for module, others in MODULES.items() for other in others):
        if other not in order[:order.index(module)]:
            yield f"CMakeLists.txt:1: {module} depends on {other}, which is not listed before it"
        if layers.get(other, 0) >= layers.get(module, 1):
            yield f"docs/architecture.md:1: {module} depends on {other}, which is not in a lower layer"


if __name__ == "__main__":
    offences = [*check_order(), *check_descriptions(), *check_cycles()]
    offences += [line for path in files_of("include", "src", "tests") for line in check_file(path)]
    print("".join(f"{line}\n" for line in offences), end="")
    sys.exit(1 if offences else 0)
