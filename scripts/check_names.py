#!/usr/bin/env python3
"""Checks that code which works on programs asks ops and tensors for their properties and never for their names.

In the modules below no op is compared with a literal name, and no prefix, suffix or part of a tensor's, output's or
instruction's name is looked for. Names are free in src/ops, in ir (which reads them from text), in hugging_face and in
tests. Prints one line per offence (file:line: text) and exits 1 if there is one.
--self-test plants offences in a scratch tree and fails unless every one of them is caught.
"""
import re
import sys
from pathlib import Path

from planted import failures_of, report

MODULES = ["cost", "model", "passes", "schedule", "planner", "planning", "placement", "profiler", "runtime", "world", "run", "train",
           "inference", "report", "cli"]
# Files whose subject is names.
EXEMPT = {"src/run/checkpoint_tensors.cpp",  # of tensors in checkpoints: h.0.moe.experts.3.fc.weight
          "src/schedule/partition/rewrite.cpp",  # labels that parts and their helpers get
          "src/schedule/schedule_report.cpp"}  # labels for people, without the part

NAME = r"\b(?:name|label|site|parameter)_?(?:\(\))?"
LITERAL = r'(?:std::string_view\(|std::string\()?"'
OFFENCES = [
    ("compares an op with a name; give OpDef a field that its folder sets",
     [rf"\bop\s*[!=]=\s*{LITERAL}", r'"\s*[!=]=\s*[\w.>-]*\bop\b',
      r"\bop\.(?:starts_with|ends_with|find|contains|substr)\("]),
    ("looks for a part of a name; make it a property of the tensor, output or instruction",
     [rf"{NAME}\.(?:starts_with|ends_with|contains|compare)\(", rf"{NAME}\.r?find\(",
      rf'{NAME}\s*[!=]=\s*{LITERAL}[^"]*\.', rf'"[^"]*\.[^"]*"\s*[!=]=\s*[\w.>-]*{NAME}']),
]
OFFENCES = [(what, [re.compile(pattern) for pattern in patterns]) for what, patterns in OFFENCES]
COMMENT = re.compile(r"//.*")


def check(root):
    for module in MODULES:
        for folder in (root / "src" / module, root / "include/lancet" / module):
            for path in sorted(folder.rglob("*")):
                known = path.relative_to(root).as_posix() in EXEMPT
                if path.suffix in {".h", ".cpp", ".cu", ".cuh"} and not known:
                    yield from check_file(root, path)


def check_file(root, path):
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        code = COMMENT.sub("", line)
        for what, patterns in OFFENCES:
            if any(pattern.search(code) for pattern in patterns):
                yield f"{path.relative_to(root).as_posix()}:{number}: {what}: {code.strip()}"


def self_test():
    # file, its text, a part of its one offence (None: no offence)
    planted = [
        ("src/passes/a.cpp", '// why\nif (at.op == "gelu") fuse(at);\n', "a.cpp:2: compares an op"),
        ("src/passes/b.cpp", 'if ("gelu" != instruction->op) return;\n', "compares an op"),
        ("src/cost/a.cpp", 'if (at.op.starts_with("attention")) return 1;\n', "compares an op"),
        ("src/cost/b.cpp", 'return op == std::string_view("all_to_all");\n', "compares an op"),
        ("include/lancet/planner/a.h", 'inline bool is(const At& at) { return at.op == "add"; }\n', "compares an op"),
        ("src/model/a.cpp", 'if (name.ends_with(".bias")) zero();\n', "part of a name"),
        ("src/model/b.cpp", 'if (tensor.name.find("ln_") != std::string::npos) one();\n', "part of a name"),
        ("src/model/d.cpp", 'const auto at = name.find(experts);\n', "part of a name"),
        ("src/planning/a.cpp", "return label.substr(0, label.rfind('/'));\n", "part of a name"),
        ("src/run/checkpoint_tensors.cpp", 'const auto at = name.find(experts);\n', None),
        ("src/model/c.cpp", 'if (name == "wte.weight") pad();\n', "part of a name"),
        ("src/passes/c.cpp", 'if (output.name.starts_with(prefix)) use(output);\n', "part of a name"),
        ("src/schedule/a.cpp", 'return at.label.starts_with("bucket.");\n', "part of a name"),
        ("src/run/a.cpp", 'if (tensor->name().ends_with(end)) skip();\n', "part of a name"),
        ("src/passes/d.cpp", '// op == "gelu" knows the op by its name\nreturn op(at).kind == Kind::product;\n', None),
        ("src/passes/e.cpp", 'append(program, "all_reduce", operands);\nprogram.find("wte.weight");\n', None),
        ("src/passes/f.cpp", 'if (fusion.reader == at.op) return &op;\nstore.find(name);\n', None),
        ("src/ops/gelu/op.cpp", 'if (at.op == "gelu_dx") return;\n', None),
        ("src/hugging_face/names.cpp", 'return name.starts_with("h.");\n', None),
        ("tests/passes/a.cpp", 'REQUIRE(at.op == "gelu");\n', None),
    ]
    return report(planted, failures_of(planted, check))


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    offences = list(check(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent))
    for line in offences:
        print(line)
    return 1 if offences else 0


if __name__ == "__main__":
    sys.exit(main())
