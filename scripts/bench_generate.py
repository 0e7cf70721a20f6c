#!/usr/bin/env python3
"""Greedy generation with GPT-2 and a KV cache in plain PyTorch: the other side of bench-generate.sh.

    bench_generate.py --make DIR [--shape tiny]              # a Hugging Face folder of GPT-2 small's shape, random weights
    bench_generate.py --from DIR --tokens 64 --threads 1 2   # every variant; prints one JSON object
    bench_generate.py --table DIR ...                        # what the rounds in DIR come to, as Markdown

Variants: products as Hugging Face's Conv1D computes them (addmm on [in, out] weights) or as nn.Linear does; keys and
values put together anew for every token, as transformers' generate does, or written into a buffer made once.
"""
import argparse
import json
import math
import pathlib
import re
import statistics
import struct
import time

import torch
import torch.nn.functional as F

GPT2 = dict(model_type="gpt2", architectures=["GPT2LMHeadModel"], activation_function="gelu_new", n_layer=12, n_head=12,
              n_embd=768, n_positions=1024, vocab_size=50257, n_inner=None, layer_norm_epsilon=1e-5,
              initializer_range=0.02)


TINY = {**GPT2, "n_layer": 2, "n_head": 4, "n_embd": 64, "vocab_size": 500}  # tries the script, measures nothing
CONFIG = dict(GPT2)


def shapes(c):
    d, result = c["n_embd"], {"wte.weight": [c["vocab_size"], c["n_embd"]], "wpe.weight": [c["n_positions"], c["n_embd"]]}
    for i in range(c["n_layer"]):
        for name, weight in (("ln_1", [d]), ("attn.c_attn", [d, 3 * d]), ("attn.c_proj", [d, d]), ("ln_2", [d]),
                             ("mlp.c_fc", [d, 4 * d]), ("mlp.c_proj", [4 * d, d])):
            result[f"h.{i}.{name}.weight"], result[f"h.{i}.{name}.bias"] = weight, weight[-1:]
    result["ln_f.weight"], result["ln_f.bias"] = [d], [d]
    return result


def make(folder):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2))
    generator, header, at = torch.Generator().manual_seed(1), {}, 0
    for name, shape in shapes(CONFIG).items():
        size = 4 * math.prod(shape)
        header[name] = dict(dtype="F32", shape=shape, data_offsets=[at, at + size])
        at += size
    text = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, shape in shapes(CONFIG).items():
            scale = 0.5 if name == "wpe.weight" else 0.05  # positions that matter: the text does not repeat itself
            values = torch.randn(shape, generator=generator) * scale + (".ln_" in name or name.startswith("ln_")) * 1.0
            file.write(values.numpy().tobytes())


def load(folder):
    raw = (folder / "model.safetensors").read_bytes()
    length = struct.unpack("<Q", raw[:8])[0]
    weights = {}
    for name, t in json.loads(raw[8:8 + length]).items():
        begin, end = (8 + length + o for o in t["data_offsets"])
        weights[name] = torch.frombuffer(bytearray(raw[begin:end]), dtype=torch.float32).view(t["shape"])
    return weights


class Model:
    def __init__(self, weights, linear, buffer):
        self.w, self.linear, self.buffer = dict(weights), linear, buffer
        if linear:
            for name in self.w:
                if ".c_" in name and name.endswith("weight"):
                    self.w[name] = self.w[name].T.contiguous()
        c = CONFIG
        self.cache = [torch.zeros(2, c["n_head"], c["n_positions"] if buffer else 0, c["n_embd"] // c["n_head"])
                      for _ in range(c["n_layer"])]
        self.length = 0

    def product(self, name, x):
        w, b = self.w[name + ".weight"], self.w[name + ".bias"]
        return F.linear(x, w, b) if self.linear else torch.addmm(b, x, w)

    def norm(self, name, x):
        return F.layer_norm(x, x.shape[-1:], self.w[name + ".weight"], self.w[name + ".bias"], 1e-5)

    def attention(self, i, x):
        s, d = x.shape
        heads, past = CONFIG["n_head"], self.length
        qkv = self.product(f"h.{i}.attn.c_attn", x).view(s, 3, heads, d // heads).permute(1, 2, 0, 3)
        if self.buffer:
            self.cache[i][:, :, past:past + s] = qkv[1:]
            k, v = self.cache[i][:, :, :past + s]
        else:
            self.cache[i] = torch.cat([self.cache[i], qkv[1:]], dim=2)
            k, v = self.cache[i]
        scores = qkv[0] @ k.transpose(1, 2) / math.sqrt(d // heads)
        if s > 1:
            scores = scores.masked_fill(torch.ones(s, past + s, dtype=torch.bool).triu(1 + past), -math.inf)
        y = torch.softmax(scores, dim=2) @ v
        return self.product(f"h.{i}.attn.c_proj", y.transpose(0, 1).reshape(s, d))

    def read(self, tokens):
        x = self.w["wte.weight"][tokens] + self.w["wpe.weight"][self.length:self.length + len(tokens)]
        for i in range(CONFIG["n_layer"]):
            x = x + self.attention(i, self.norm(f"h.{i}.ln_1", x))
            hidden = F.gelu(self.product(f"h.{i}.mlp.c_fc", self.norm(f"h.{i}.ln_2", x)), approximate="tanh")
            x = x + self.product(f"h.{i}.mlp.c_proj", hidden)
        self.length += len(tokens)
        return F.linear(self.norm("ln_f", x[-1:]), self.w["wte.weight"])[0]


def cpu():
    found = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    return found.group(1) if found else "unknown CPU"


def table(folder, rounds, threads, tokens, shape, commit):
    """Medians over rounds; ratios are taken round by round, of runs that follow one another."""
    lines, same = [], True
    for n in threads:
        logs = [(folder / f"log.{n}.{r}").read_text() for r in range(1, rounds + 1)]
        ours = [float(re.search(r"then ([\d.]+) tokens/s", log).group(1)) for log in logs]
        peers = [json.loads((folder / f"peer.{n}.{r}").read_text()) for r in range(1, rounds + 1)]
        lines.append(f"| {n} | `lancet generate` | {statistics.median(ours):.1f} | {min(ours):.1f} to {max(ours):.1f} | |")
        for name in peers[0]["rates"]:
            rates = [p["rates"][name] for p in peers]
            ratio = statistics.median(o / rate for o, rate in zip(ours, rates))
            lines.append(f"| {n} | PyTorch, {name.rsplit(',', 1)[0]} | {statistics.median(rates):.1f} | "
                         f"{min(rates):.1f} to {max(rates):.1f} | {ratio:.2f} |")
        ids = [[int(x) for x in (folder / f"ids.{n}.{r}").read_text().split()] for r in range(1, rounds + 1)]
        same &= all(mine == p["ids"] for mine, p in zip(ids, peers))
    model = "GPT-2 small's shape (124 M parameters)" if shape == "gpt2" else "A tiny shape, which measures nothing"
    return "\n".join([
        "# Generation on the CPU", "",
        f"`scripts/bench-generate.sh --rounds {rounds} --tokens {tokens} --threads \"{' '.join(map(str, threads))}\"`, commit {commit}, "
        f"{cpu()}, PyTorch {torch.__version__}.", "",
        f"{model}, random weights, fp32, one sequence, greedy: {tokens} tokens after a prompt of 3, timed from the first one on. Both",
        "run in turn with the same number of threads; medians of the rounds, ratios round by round. PyTorch in four ways: products",
        "as `transformers` has them (conv1d) or as `nn.Linear`, the KV cache put together anew for each token as `transformers`",
        "does (cat) or written in place (buffer).", "",
        "Both wrote the same tokens in every round." if same else "**The tokens differ.**", "",
        "| threads | program | tokens/s | from, to | Lancet over it |", "|---|---|---|---|---|", *lines])


def generate(model, prompt, count):
    """The tokens, and tokens a second after the first."""
    ids = list(prompt)
    logits = model.read(torch.tensor(ids))
    for i in range(count):
        ids.append(int(logits.argmax()))
        if i == 0:
            start = time.perf_counter()
        if i + 1 < count:
            logits = model.read(torch.tensor(ids[-1:]))
    return ids, (count - 1) / (time.perf_counter() - start)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--make", type=pathlib.Path)
    parser.add_argument("--table", type=pathlib.Path)
    parser.add_argument("--shape", choices=("gpt2", "tiny"), default="gpt2")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--from", dest="folder", type=pathlib.Path)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--prompt", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--repeats", type=int, default=2)
    arguments = parser.parse_args()
    if arguments.make:
        CONFIG.update(TINY if arguments.shape == "tiny" else GPT2)
        return make(arguments.make)
    if arguments.table:
        return print(table(arguments.table, arguments.rounds, arguments.threads, arguments.tokens, arguments.shape, arguments.commit))
    CONFIG.update(json.loads((arguments.folder / "config.json").read_text()))
    weights, result = load(arguments.folder), {"rates": {}}
    with torch.no_grad():
        for linear in (False, True):
            for buffer in (False, True):
                for threads in arguments.threads:
                    torch.set_num_threads(threads)
                    rates = []
                    for _ in range(arguments.repeats):
                        ids, rate = generate(Model(weights, linear, buffer), arguments.prompt, arguments.tokens)
                        rates.append(rate)
                    name = f"{'linear' if linear else 'conv1d'}, {'buffer' if buffer else 'cat'}, {threads} threads"
                    result["rates"][name] = statistics.median(rates)
                    result["ids"] = ids
    print(json.dumps(result))


if __name__ == "__main__":
    main()
