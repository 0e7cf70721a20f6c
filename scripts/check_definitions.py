#!/usr/bin/env python3
"""Checks that no two files define a class, struct, union or enum of one name in one named namespace.

Such types break C++'s one-definition rule: templates over them, launch<F> for instance, have one symbol in both
objects, of which the linker keeps one. Where the compiler did not inline it, one file then runs the other's code on its
own layout. Types in anonymous namespaces are free. Reads src and include, prints one line per offence and exits 1 if
there is one. --self-test plants offences in a scratch tree and fails unless every one of them is caught.
"""
import re
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

# What has no meaning here: comments, raw strings, strings, characters, lines of the preprocessor.
NOISE = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"'
                   r"|(?<!\w)'(?:\\.|[^'\\\n])*'"
                   r"|^[ \t]*#(?:[^\n\\]|\\\n|\\.)*", re.DOTALL | re.MULTILINE)
NAMESPACE = re.compile(r"\bnamespace\s*([\w:]*)\s*$")
TYPE = re.compile(r"(?:^|[\s>])(?:struct|class|union|enum(?:\s+class)?)\s+"
                  r"(?:alignas\([^)]*\)\s*|\[\[[^\]]*\]\]\s*)*(\w+(?:\s*<.*>)?)\s*(?:final\s*)?(?::[^:].*)?$",
                  re.DOTALL)


def definitions(text):
    """Yields the full names of the types that a file defines in named namespaces."""
    text = NOISE.sub(" ", text)
    scopes = []  # the names of the enclosing namespaces; None for any other brace
    start = 0    # of the statement
    for match in re.finditer(r"[;{}]", text):
        head = text[start:match.start()].strip()
        start = match.end()
        if match[0] == "}":
            scopes and scopes.pop()
        elif match[0] == "{":
            space, of_type = NAMESPACE.search(head), TYPE.search(head)
            if of_type and all(scopes):
                yield "::".join([*scopes, re.sub(r"\s+", " ", of_type[1])])
            # An anonymous namespace is like a function's braces: nothing in it is named from outside.
            scopes.append(space[1] or None if space else None)


def check(root):
    files = defaultdict(set)
    for folder in ("include", "src"):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in {".h", ".cpp", ".cu", ".cuh"}:
                for name in definitions(path.read_text(encoding="utf-8", errors="replace")):
                    files[name].add(path.relative_to(root).as_posix())
    for name, where in sorted(files.items()):
        if len(where) > 1:
            yield f"{name}: expected one definition, found {', '.join(sorted(where))}"


def self_test():
    planted = {
        "src/ops/a/sums.h": "struct AddParts {\n  int lanes;\n};\n",
        "src/ops/b/sums.h": 'const char* brace = "{";\nclass AddParts final {};\n',
        "src/ops/c/cuda.cu": "namespace {\nstruct AddParts {};\n}\n",
        "src/ops/d/cuda.cu": "struct AddParts;\nAddParts* all() { struct Local {}; return 0; }\n",
        "src/ops/e/cuda.cu": "// struct Other {\nvoid f() { struct Local {}; }\nstruct Other {};\n",
        "include/lancet/f.h": "#define OPEN {\ntemplate <class T>\nstruct alignas(16) Piece : Base<T> {};\n",
        "src/ops/g/g.h": "enum class Piece { one, two };\ntemplate <>\nstruct Size<int> {};\n",
        "src/ops/h/h.h": "template <>\nstruct Size<char> {};\nstruct Outer { struct Other {}; };\n",
        "src/ops/i/i.h": "namespace device {\nstruct Other {};\n}\n",
    }
    expected = ["lancet::ops::AddParts: expected one definition, found src/ops/a/sums.h, src/ops/b/sums.h",
                "lancet::ops::Piece: expected one definition, found include/lancet/f.h, src/ops/g/g.h"]
    with tempfile.TemporaryDirectory() as folder:
        for name, text in planted.items():
            (Path(folder) / name).parent.mkdir(parents=True, exist_ok=True)
            spaces = ["lancet::ops"] if name < "src/ops/b" else ["lancet", "ops"]
            opened = "".join(f"namespace {space} {{\n" for space in spaces)
            (Path(folder) / name).write_text(opened + text + "}\n" * len(spaces))
        found = list(check(Path(folder)))
    if found != expected:
        print(f"expected {expected}, found {found}")
    return found != expected


if __name__ == "__main__":
    if sys.argv[1:] == ["--self-test"]:
        sys.exit(self_test())
    offences = list(check(Path(__file__).resolve().parent.parent))
    for line in offences:
        print(line)
    sys.exit(bool(offences))
