#!/usr/bin/env python3
"""Tests the project's pages: README.md, CONTRIBUTING.md, docs/*.md, docs/howto/*.md, docs/results/README.md.

    pages.py LANCET PAGE...   runs the commands of each page
    pages.py --check          sizes, links, paths, the index

Commands: blocks ```sh run unchanged, all blocks of a page in one scratch folder (scratch.py) in which build/lancet is
LANCET. In blocks ```console each line after "$ " runs, and the lines below it must be in its output; "..." stands for
anything. A comment "<!-- not run: REASON -->" before a block leaves it out; a block of commands that is neither is
an error, and so is a block without a language. Prints one line per failure, PAGE:LINE: FAILURE, and exits 1 if there
is one.
"""
import re
import sys
from pathlib import Path

sys.dont_write_bytecode = True
from scratch import Scratch

ROOT = Path(__file__).resolve().parents[2]
README_WORDS = 700
COLUMNS = 120
LANGUAGES = {"sh", "console", "text", "json", "cpp"}
COMMAND = re.compile(r"^\s*(\$ |(\./)?(build/\w|scripts/\w|tests/\w+/)|lancet \w|mpirun |cmake |ctest |sbatch )")
LINK = re.compile(r"\]\(([^)\s]+)\)")
PATH = re.compile(r"(?<![\w./-])(?:include|src|tests|scripts|configs|cmake|third_party|docs)/[\w./-]*\w")


def pages():
    """All pages except those of docs/results that scripts write."""
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "docs/results/README.md"]
    return [page for page in found if page.exists()] + sorted((ROOT / "docs").glob("*.md")) + sorted((ROOT / "docs/howto").glob("*.md"))


class Block:
    """A fenced block: language, lines, the line of its fence, and why it is not run (None: it is)."""

    def __init__(self, language, line, not_run):
        self.language, self.line, self.not_run, self.lines = language, line, not_run, []


class Page:
    def __init__(self, path):
        self.path = path
        self.name = str(path.relative_to(ROOT))
        self.lines = path.read_text(encoding="utf-8").split("\n")
        self.failures = []
        self.blocks = []
        self.prose = []  # (line number, text) outside of blocks
        self.read_blocks()

    def fail(self, line, what):
        self.failures.append(f"{self.name}:{line}: {what}")

    def read_blocks(self):
        block, comment = None, None
        for number, line in enumerate(self.lines, 1):
            if line.startswith("```"):
                if block is None:
                    block = Block(line[3:].strip(), number, comment)
                    self.blocks.append(block)
                else:
                    block = comment = None
            elif block is not None:
                block.lines.append(line)
            else:
                self.prose.append((number, line))
                if line.strip():
                    marker = re.match(r"<!-- not run: (.+) -->$", line)
                    comment = marker.group(1) if marker else None
        if block is not None:
            self.fail(block.line, "a block that does not end")

    def anchors(self):
        """GitHub's anchors of the headings."""
        names = set()
        for _, line in self.prose:
            heading = re.match(r"#+ (.*)", line)
            if heading:
                text = re.sub(r"[^\w\- ]", "", heading.group(1).lower())
                names.add(text.replace(" ", "-"))
        return names

    # The checks.

    def check_blocks(self):
        for block in self.blocks:
            if block.language not in LANGUAGES:
                self.fail(block.line, f"a block needs one of the languages {', '.join(sorted(LANGUAGES))}")
            if block.language in ("text", "json", "cpp") and any(COMMAND.match(line) for line in block.lines):
                self.fail(block.line, "commands are in a block sh or console, run or marked <!-- not run: why -->")
        previous = ""
        for number, line in self.prose:
            if line.startswith("    ") and not previous.strip():
                self.fail(number, "a block is fenced, not indented")
            previous = line

    def check_columns(self):
        for number, line in enumerate(self.lines, 1):
            if len(line) > COLUMNS:
                self.fail(number, f"a line of {len(line)} columns; at most {COLUMNS}")

    def check_links(self, anchors):
        for number, line in self.prose:
            for target in LINK.findall(line):
                if re.match(r"[a-z]+:", target):
                    continue
                file, _, anchor = target.partition("#")
                path = (self.path.parent / file).resolve() if file else self.path
                if not path.exists():
                    self.fail(number, f"a link to {target}, which does not exist")
                elif anchor and path in anchors and anchor not in anchors[path]:
                    self.fail(number, f"a link to {target}: no such heading")

    def check_paths(self):
        """Checks that every path of the tree that is named exists, also in commands that are not run."""
        named = [(number, name) for number, line in self.prose for name in PATH.findall(re.sub(r"\]\([^)]*\)", "]", line))]
        for block in self.blocks:
            if block.language in ("sh", "console"):
                for number, line in enumerate(block.lines, block.line + 1):
                    named += [(number, name) for name in PATH.findall(line) if not name.startswith("docs/")]
        for number, name in named:
            if "NAME" not in name and not (ROOT / name).exists():
                self.fail(number, f"{name} does not exist")


def check():
    all_pages = [Page(path) for path in pages()]
    anchors = {page.path: page.anchors() for page in all_pages}
    for page in all_pages:
        page.check_blocks()
        page.check_columns()
        page.check_links(anchors)
        page.check_paths()
    readme, index = all_pages[0], ROOT / "docs/README.md"
    words = len(readme.path.read_text(encoding="utf-8").split())
    if words > README_WORDS:
        readme.fail(1, f"{words} words; at most {README_WORDS}")
    listed = {(index.parent / target.partition("#")[0]).resolve() for target in LINK.findall(index.read_text())}
    for page in all_pages:
        if page.path not in listed | {index, ROOT / "README.md"}:
            page.fail(1, "docs/README.md does not list this page")
    return [failure for page in all_pages for failure in page.failures]


def sessions(block):
    """The commands of a console block: (line, command, expected lines)."""
    found = []
    for number, line in enumerate(block.lines, block.line + 1):
        if line.startswith("$ "):
            found.append((number, line[2:], []))
        elif found:
            found[-1][2].append(line)
    return found


def fits(expected, output):
    pattern = ".*".join(re.escape(piece) for piece in expected.split("..."))
    return any(re.search(pattern, line) for line in output.split("\n"))


def run_block(page, block, scratch):
    if block.language == "sh":
        code, output = scratch.run("set -eu\n" + "\n".join(block.lines))
        if code != 0:
            page.fail(block.line, f"a command of this block ended with code {code}:\n{output[-2000:]}")
        return
    for number, command, expected in sessions(block):
        _, output = scratch.run(command)
        for line in expected:
            if not fits(line, output):
                page.fail(number, f"expected the output to have '{line}', found:\n{output[-2000:]}")


def run(lancet, path):
    page = Page((ROOT / path).resolve())
    todo = [block for block in page.blocks if block.language in ("sh", "console") and not block.not_run]
    if todo:
        with Scratch(ROOT, lancet) as scratch:
            for block in todo:
                run_block(page, block, scratch)
    return page.failures


def main():
    arguments = sys.argv[1:]
    if arguments == ["--check"]:
        failures = check()
    elif len(arguments) >= 2:
        failures = [failure for path in arguments[1:] for failure in run(Path(arguments[0]).resolve(), path)]
    else:
        sys.exit("usage: pages.py LANCET PAGE... | pages.py --check")
    for failure in failures:
        print(failure)
    sys.exit(1 if failures else 0)


main()
