#!/usr/bin/env python3
"""Checks that code which works on programs asks ops and tensors for their properties and never for their names.

No op is compared with a literal name, and no prefix, suffix or part of a tensor's, output's or instruction's name is
looked for. Names are free in ops, in ir (which reads them from text), base and checkpoint (whose names are of files),
in models and in tests. Prints one line per offence (file:line: text) and exits 1 if there is one.
"""
import re
import sys
from pathlib import Path

FREE = {"base", "checkpoint", "ir", "models", "ops"}  # modules
# Files whose subject is names.
EXEMPT = {"src/run/checkpoint_tensors.cpp",  # of tensors in checkpoints: h.0.moe.experts.3.fc.weight
          "src/schedule/rewrite.cpp",  # labels that parts and their helpers get
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
    for folder in ("src", "include/lancet"):
        for path in sorted((root / folder).rglob("*")):
            free = path.relative_to(root / folder).parts[0] in FREE or path.relative_to(root).as_posix() in EXEMPT
            if path.suffix not in {".h", ".cpp", ".cu", ".cuh"} or free:
                continue
            for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
                code = COMMENT.sub("", line)
                for what, patterns in OFFENCES:
                    if any(pattern.search(code) for pattern in patterns):
                        yield f"{path.relative_to(root).as_posix()}:{number}: {what}: {code.strip()}"


if __name__ == "__main__":
    offences = list(check(Path(__file__).resolve().parent.parent))
    print("".join(f"{line}\n" for line in offences), end="")
    sys.exit(1 if offences else 0)
