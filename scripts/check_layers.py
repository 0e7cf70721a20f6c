#!/usr/bin/env python3
"""Checks that each module includes only the modules that its layer allows, and that includes form no cycles.

The table of modules in docs/architecture.md must give each module its layer in the table below.

Prints one line per offence (file:line: text) and exits 1 if there is one.
--self-test plants offences in a scratch tree and fails unless every one of them is caught.
"""
import re
import sys
from pathlib import Path

from planted import failures_of, report

# The layers, lowest first: module -> modules of lower layers that it may include (besides itself).
LAYERS = [
    {"base": []},
    {"mesh": ["base"], "backend": ["base"], "checkpoint": ["base"]},
    {"config": ["base", "mesh"], "ir": ["base", "mesh"]},
    {"data": ["base", "config"], "comm": ["base", "backend"], "ops": ["base", "mesh", "ir"]},
    {"cost": ["base", "mesh", "ir", "comm", "ops"], "model": ["base", "mesh", "config", "ir", "ops"], "passes": ["base", "mesh", "ir", "ops"]},
    {"schedule": ["base", "mesh", "config", "ir", "ops", "cost"], "runtime": ["base", "mesh", "ir", "ops", "backend", "comm", "cost"]},
    {"planner": ["base", "mesh", "config", "ir", "ops", "cost", "passes", "schedule"],
     "world": ["base", "mesh", "config", "ir", "backend", "comm", "cost", "runtime"]},
    {"profiler": ["base", "ir", "ops", "backend", "comm", "cost", "runtime", "world"]},
    {"planning": ["base", "mesh", "config", "ir", "backend", "comm", "ops", "cost", "model", "passes", "schedule", "planner", "runtime", "profiler",
                  "world"],
     "run": ["base", "mesh", "config", "ir", "backend", "checkpoint", "comm", "model", "runtime", "world"]},
    {"placement": ["base", "mesh", "config", "ir", "ops", "cost", "model", "passes", "schedule", "planner", "planning"],
     "hugging_face": ["base", "config", "ir", "data", "checkpoint", "model", "runtime", "world", "run"],
     "inference": ["base", "mesh", "config", "ir", "data", "checkpoint", "comm", "ops", "model", "runtime", "world", "planning", "run"]},
    {"train": ["base", "mesh", "config", "ir", "backend", "data", "checkpoint", "comm", "ops", "cost", "model", "schedule", "planner",
               "runtime", "profiler", "world", "planning", "run", "inference"],
     "report": ["base", "ir", "schedule"]},
    {"cli": ["base", "mesh", "config", "ir", "backend", "data", "checkpoint", "comm", "ops", "cost", "model", "passes", "schedule", "planner",
             "runtime", "profiler", "world", "planning", "placement", "run", "hugging_face", "inference", "train", "report"]},
]
MODULES = {module: others for layer in LAYERS for module, others in layer.items()}

# Kernels of an op and the helpers that they share (src/ops/cpu*, cuda*) may use the device and the network. The op's
# description (op.cpp, math.h, the rest of src/ops, and every private header that those include) may not.
KERNEL_MODULES = ["backend", "comm"]
KERNEL_FILE = re.compile(r"^src/ops/\w+/(?!op\.cpp$|math\.h$)|^src/ops/cpu\w*\.h$|^include/lancet/ops/kernel\w*\.h$|^tests/ops/")

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
CMAKE_MODULE = re.compile(r"lancet_module\((\w+)([^)]*)\)")


def module_of(path):
    """The module of a file given relative to the root: include/lancet/R/..., src/R/..., tests/R/...

    None for files of no module: src/main.cpp, and in tests the folders that modules share.
    """
    parts = path.split("/")
    at = {"include": 2, "src": 1, "tests": 1}.get(parts[0])
    if at is None or len(parts) <= at + 1 or (parts[0] == "tests" and parts[1] not in MODULES):
        return None
    return parts[at]


def allowed_modules(path, module):
    """The modules that a file may include. A test may use every module of a lower layer."""
    if path.startswith("tests/"):
        below = next(i for i, layer in enumerate(LAYERS) if module in layer)
        return {module, *(KERNEL_MODULES if module == "ops" else []), *(name for layer in LAYERS[:below] for name in layer)}
    allowed = {module, *MODULES[module]}
    if module == "ops" and KERNEL_FILE.search(path):
        allowed.update(KERNEL_MODULES)
    return allowed


def target_of(root, path, header, quoted):
    """(module, private) that an include names, or None if it is no header of this tree."""
    parts = header.split("/")
    if parts[0] == "lancet" and len(parts) > 2:
        return parts[1], False
    if not quoted:
        return None
    beside = (root / path).parent / header
    if beside.is_file():
        found = beside.resolve().relative_to(root.resolve()).as_posix()
        module = module_of(found)
        return (module, found.startswith("src/")) if module else None
    if len(parts) > 1 and parts[0] in MODULES:
        return parts[0], True
    return None


def check_file(root, path):
    module = module_of(path)
    if module is not None and module not in MODULES:
        yield f"{path}:1: '{module}' is no module; known: {', '.join(MODULES)}"
        return
    text = (root / path).read_text(encoding="utf-8", errors="replace")
    for number, line in enumerate(text.splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        header = match.group(2)
        where = f"{path}:{number}:"
        for what, pattern, corner in CORNERS:
            if pattern.search(header) and not corner.search(path):
                yield f"{where} {what} header {header} outside its folder"
        target = target_of(root, path, header, match.group(1) == '"')
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


def kernel_headers_of(root, path, seen):
    """Private headers that a description in ops includes, directly or not, and that include backend or comm."""
    for match in map(INCLUDE.match, (root / path).read_text(encoding="utf-8", errors="replace").splitlines()):
        if not match or match.group(1) != '"':
            continue
        header = match.group(2)
        for file in ((root / path).parent / header, root / "src" / header):
            if not file.is_file() or not file.resolve().is_relative_to((root / "src" / "ops").resolve()):
                continue
            name = file.resolve().relative_to(root.resolve()).as_posix()
            if name in seen:
                continue
            seen.add(name)
            if any(f'"lancet/{module}/' in file.read_text(errors="replace") for module in KERNEL_MODULES):
                yield name
            yield from kernel_headers_of(root, name, seen)


def check_descriptions(root):
    """Offences of op descriptions that include backend or comm through a private header."""
    for file in sorted((root / "src" / "ops").glob("**/*.cpp")):
        path = file.relative_to(root).as_posix()
        if not KERNEL_FILE.search(path):
            for header in kernel_headers_of(root, path, set()):
                yield f"{path}:1: ops may not include backend or comm, and {header} does"


def check_cmake(root):
    """Offences of CMake lists that allow more than the table."""
    path = root / "CMakeLists.txt"
    if not path.is_file():
        return
    text = path.read_text(encoding="utf-8")
    for match in CMAKE_MODULE.finditer(text):
        module, rest = match.groups()
        line = text.count("\n", 0, match.start()) + 1
        if module not in MODULES:
            yield f"CMakeLists.txt:{line}: '{module}' is no module"
            continue
        depends = re.search(r"DEPENDS((?:\s+\w+)*?)(?=\s+USES|\s*$)", rest)
        allowed = set(MODULES[module]) | (set(KERNEL_MODULES) if module == "ops" else set())
        for other in depends.group(1).split() if depends else []:
            if other not in allowed:
                yield f"CMakeLists.txt:{line}: {module} may not depend on {other}"


def files_of(root, tops=("include", "src")):
    for top in tops:
        for file in sorted((root / top).rglob("*")):
            if file.is_file() and file.suffix in SOURCE:
                yield file.relative_to(root).as_posix()


def included_file(root, path, header):
    """The file of this tree that an include names, relative to the root, or None."""
    for folder in ((root / path).parent, root / "include", root / "src"):
        if (folder / header).is_file():
            return (folder / header).resolve().relative_to(root.resolve()).as_posix()
    return None


def in_module(path):
    """The path inside its module, the same for a public header and a private file: planner/partition/ranges.h."""
    return path.removeprefix("include/lancet/").removeprefix("src/")


def unit_of(path):
    """The unit of a file: a header and its source are one."""
    return in_module(path).rsplit(".", 1)[0]


def folder_of(path):
    return in_module(path).rsplit("/", 1)[0]


def cycles(edges):
    """Strongly connected components of more than one node (Tarjan's algorithm), each sorted."""
    index, low, stack, on_stack, found = {}, {}, [], set(), []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        on_stack.add(node)
        for other in sorted(edges.get(node, {})):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in on_stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            component = []
            while not component or component[-1] != node:
                component.append(stack.pop())
                on_stack.remove(component[-1])
            if len(component) > 1:
                found.append(sorted(component))

    for node in sorted(edges):
        if node not in index:
            visit(node)
    return found


def check_cycles(root):
    """Offences of folders, or units (a header with its source), that include each other in a cycle."""
    units, folders = {}, {}  # from -> to -> "file:line"
    for path in files_of(root):
        text = (root / path).read_text(encoding="utf-8", errors="replace")
        for number, line in enumerate(text.splitlines(), 1):
            match = INCLUDE.match(line)
            other = included_file(root, path, match.group(2)) if match else None
            if other is None:
                continue
            for graph, name in ((units, unit_of), (folders, folder_of)):
                if name(path) != name(other):
                    graph.setdefault(name(path), {}).setdefault(name(other), f"{path}:{number}")
    for graph, what in ((units, "units"), (folders, "folders")):
        for component in cycles(graph):
            inside = set(component)
            where = next(place for node in component for other, place in sorted(graph[node].items()) if other in inside)
            yield f"{where}: the {what} {', '.join(component)} include each other"


def check_page(root):
    """Offences of the table of modules in docs/architecture.md, which gives each module its layer here."""
    path = root / "docs/architecture.md"
    if not path.is_file():
        return
    layers = {module: number for number, layer in enumerate(LAYERS) for module in layer}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        match = PAGE_ROW.match(line)
        if match and layers.get(match.group(2)) != int(match.group(1)):
            yield f"docs/architecture.md:{number}: expected {match.group(2)} in layer {layers.get(match.group(2))}"


def check(root):
    offences = [*check_cmake(root), *check_descriptions(root), *check_cycles(root), *check_page(root)]
    for path in files_of(root, ("include", "src", "tests")):
        offences += check_file(root, path)
    return offences


def self_test():
    # file, its text, words that its one offence must contain (None: no offence)
    planted = [
        ("include/lancet/base/a.h", '#include "lancet/ir/program.h"\n', "base may not include ir"),
        ("src/planner/a.cpp", '// why\n#include "lancet/runtime/arena.h"\n', "a.cpp:2: planner may not include runtime"),
        ("src/runtime/a.cpp", '#include <lancet/planner/pass.h>\n', "runtime may not include planner"),
        ("src/runtime/b.cpp", '#include "ops/tables.h"\n', "private to ops"),
        ("src/ir/a.cpp", '#  include "../config/fields.h"\n', "ir may not include config"),
        ("src/config/fields.h", "#pragma once\n", None),
        ("src/config/fields.cpp", '#include "fields.h"\n#include <map>\n#include "lancet/base/result.h"\n', None),
        ("include/lancet/ops/op.h", '#include "ops/tables.h"\n', "public header includes the private"),
        ("src/ops/gelu/op.cpp", '#include "lancet/backend/cpu/vector.h"\n', "ops may not include backend"),
        ("src/ops/gelu/cpu.cpp", '#include "lancet/backend/cpu/vector.h"\n#include "ops/gelu/math.h"\n', None),
        ("src/ops/gelu/slots.h", '#include "lancet/backend/cpu/vector.h"\n', None),
        ("src/ops/cpu.h", '#include "lancet/backend/cpu/vector.h"\n', None),
        ("src/ops/describe.h", '#include "lancet/comm/communicator.h"\n', "ops may not include comm"),
        ("src/ops/catalogue.cpp", '#include "ops/cpu.h"\n', "src/ops/cpu.h does"),
        ("src/ops/gelu/near.h", '#include "slots.h"\n', None),
        ("src/ops/add/op.cpp", '#include "ops/gelu/near.h"\n', "src/ops/gelu/slots.h does"),
        ("tests/shared/helper.h", '#include "lancet/train/loop.h"\n', None),
        ("src/comm/mpi/session.cpp", "#include <mpi.h>\n", None),
        ("src/comm/launch.cpp", "#include <mpi.h>\n", "MPI header mpi.h outside"),
        ("src/train/a.cpp", "#include <nccl.h>\n", "NCCL header"),
        ("src/runtime/c.cpp", "#include <cuda_runtime.h>\n", "CUDA header"),
        ("src/ops/gelu/cuda.cu", "#include <cuda_bf16.h>\n", None),
        ("tests/ir/a.cpp", '#include "lancet/planner/pass.h"\n', "ir may not include planner"),
        ("src/attic/a.cpp", "int x;\n", "'attic' is no module"),
        ("src/main.cpp", '#include "lancet/cli/main.h"\n', None),
        ("src/data/loop_a.h", '#include "loop_b.h"\n', "the units data/loop_a, data/loop_b include each other"),
        ("src/data/loop_b.h", "#pragma once\n", None),
        ("src/data/loop_b.cpp", '#include "loop_b.h"\n#include "loop_a.h"\n', None),
        ("src/model/a.h", '#include "inner/b.h"\n', "the folders model, model/inner include each other"),
        ("src/model/inner/b.h", "#pragma once\n", None),
        ("src/model/inner/c.h", '#include "../d.h"\n', None),
        ("src/model/d.h", "#pragma once\n", None),
        ("tests/planner/uses.cpp", '#include "lancet/passes/passes.h"\n#include "schedule/ranges.h"\n', None),
        ("CMakeLists.txt", "lancet_module(base USES fmt::fmt)\nlancet_module(planner DEPENDS base runtime USES x)\n",
         "CMakeLists.txt:2: planner may not depend on runtime"),
        ("docs/architecture.md", "| 0 | `base` | types |\n| 1 | `backend/cpu` | threads |\n| 4 | `ops` | ops |\n",
         "architecture.md:3: expected ops in layer 3"),
    ]
    failures = failures_of(planted, check)
    for module, others in MODULES.items():  # a module may include only modules before it in the table
        order = list(MODULES)
        failures += [f"table: {module} includes {o}, which comes later" for o in others if order.index(o) >= order.index(module)]
    return report(planted, failures)


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    offences = check(root)
    for line in offences:
        print(line)
    return 1 if offences else 0


if __name__ == "__main__":
    sys.exit(main())
