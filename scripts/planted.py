"""Self-tests of the check scripts: files with offences, planted in a scratch tree."""
import tempfile
from pathlib import Path


def failures_of(planted, check):
    """What is wrong with check(root), which yields offences "file:line: text", as a list of lines.

    planted: (file, its text, words that its one offence must contain; None: it has no offence).
    """
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name, text, _ in planted:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        offences = list(check(root))
    failures = []
    for name, _, words in planted:
        mine = [offence for offence in offences if offence.startswith(name + ":")]
        if len(mine) != (words is not None) or (words and words not in mine[0]):
            failures.append(f"{name}: expected {'no offence' if words is None else f'one with {words!r}'}, found {mine}")
    return failures


def report(planted, failures):
    """Prints the failures; returns the exit code."""
    for line in failures:
        print(line)
    print(f"self-test: {len(planted)} plants, {len(failures)} failures")
    return 1 if failures else 0
