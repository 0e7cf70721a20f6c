"""A scratch folder in which the commands of a page run: build/lancet, scripts and configs as in a clone, but configs of
tiny models, so that each command takes a second or two; a text book.txt, its tokenizer and token files."""
import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

# The configs of a page are reduced to this size. The number of layers stays even, so that every other one has experts.
TINY = {
    "model": {"n_layer": 2, "n_head": 2, "n_embd": 16, "n_positions": 16},
    "train": {"steps": 6, "seq_len": 16, "micro_batch_size": 4, "eval_interval": 3, "save_interval": 3, "sample_tokens": 4},
    "data": {"train": "data/train.bin", "eval": "data/eval.bin", "tokenizer": "data/tok", "eval_sequences": 2},
    "log": {"peak_tflops": 0.1, "interval": 3},
}
# The sizes of the families whose fields have other names.
TINY_ROTARY = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "hidden_size": 16,
               "intermediate_size": 32, "max_position_embeddings": 16}
SECONDS = 240  # of one block; a build with sanitizers takes long


def plain(text):
    """JSON without the comments of our configs."""
    return json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.M))


def book():
    """Some English-like text, always the same: enough for a tokenizer of a few hundred ids."""
    words = "the name of a small word in this book is not what it was when she read it to him by the open sea".split()
    numbers = [(i * i + 7 * i) % 97 for i in range(4000)]
    return " ".join(words[n % len(words)] + (".\n" if n % 11 == 0 else "") for n in numbers) + "\n"


class Scratch:
    def __init__(self, root, lancet):
        self.root, self.lancet = root, lancet
        self.folder = Path(tempfile.mkdtemp(prefix="lancet-docs-"))
        self.environment = dict(os.environ, HOME=str(self.folder), OMPI_ALLOW_RUN_AS_ROOT="1",
                                OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")

    def __enter__(self):
        try:
            self.fill()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.folder, ignore_errors=True)

    def fill(self):
        (self.folder / "build").mkdir()
        (self.folder / "build/lancet").symlink_to(self.lancet)
        (self.folder / "scripts").symlink_to(self.root / "scripts")
        (self.folder / "disk").mkdir()
        (self.folder / "book.txt").write_text(book())
        code, output = self.run("build/lancet data train-tokenizer --vocab-size 8192 --out data/tok book.txt && "
                                "build/lancet data tokenize --tokenizer data/tok --out data/train.bin "
                                "--eval-out data/eval.bin --eval-fraction 0.1 book.txt")
        if code != 0:
            raise SystemExit(f"the scratch folder could not be made:\n{output}")
        ids = len(json.loads((self.folder / "data/tok/vocab.json").read_text()))
        shutil.copytree(self.root / "configs", self.folder / "configs")
        for file in (self.folder / "configs").glob("*.json"):
            file.write_text(json.dumps(self.tiny(plain(file.read_text()), ids)))

    def tiny(self, config, ids):
        for section, fields in TINY.items():
            rotary = section == "model" and "model_type" in config["model"]
            config.setdefault(section, {}).update(TINY_ROTARY if rotary else fields)
        config["model"]["vocab_size"] = ids
        config["model"].pop("n_inner", None)
        config["threads"] = 1
        return config

    def run(self, script):
        """Exit code and output, both streams, of a bash script in the folder."""
        try:
            done = subprocess.run(["bash", "-c", script], cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=SECONDS, check=False)
        except subprocess.TimeoutExpired as late:
            return "timeout", (late.stdout or b"").decode(errors="replace")
        return done.returncode, done.stdout.decode(errors="replace")
