#!/usr/bin/env python3
"""Greedy generation with GPT-2 and a KV cache in plain PyTorch: the other side of `bench generate`.

    generate_peer.py make DIR                          # a Hugging Face folder of GPT-2 small's shape, random weights
    generate_peer.py run DIR --tokens 64 --threads 2   # every variant; prints RESULT and one JSON object

Variants: products as Hugging Face's Conv1D computes them (addmm on [in, out] weights) or as nn.Linear does; keys and
values concatenated again for every token, as transformers' generate does, or written into one buffer.
"""
import argparse
import json
import math
import pathlib
import time

import torch
import torch.nn.functional as F

import peer_weights

GPT2 = dict(model_type="gpt2", architectures=["GPT2LMHeadModel"], activation_function="gelu_new", n_layer=12, n_head=12,
            n_embd=768, n_positions=1024, vocab_size=50257, n_inner=None, layer_norm_epsilon=1e-5,
            initializer_range=0.02)


def shapes(c):
    d = c["n_embd"]
    result = {"wte.weight": [c["vocab_size"], d], "wpe.weight": [c["n_positions"], d]}
    for i in range(c["n_layer"]):
        for name, weight in (("ln_1", [d]), ("attn.c_attn", [d, 3 * d]), ("attn.c_proj", [d, d]), ("ln_2", [d]),
                             ("mlp.c_fc", [d, 4 * d]), ("mlp.c_proj", [4 * d, d])):
            result[f"h.{i}.{name}.weight"], result[f"h.{i}.{name}.bias"] = weight, weight[-1:]
    result["ln_f.weight"], result["ln_f.bias"] = [d], [d]
    return result


def make(folder, config):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    generator = torch.Generator().manual_seed(1)

    def weight(name, shape):
        scale = 0.5 if name == "wpe.weight" else 0.05  # large position embeddings keep the text from repeating
        return torch.randn(shape, generator=generator) * scale + (".ln_" in name or name.startswith("ln_")) * 1.0

    peer_weights.write(folder, shapes(config), weight)


class Model:
    def __init__(self, config, weights, linear, buffer):
        self.config, self.w, self.linear, self.buffer = config, dict(weights), linear, buffer
        if linear:
            for name in self.w:
                if ".c_" in name and name.endswith("weight"):
                    self.w[name] = self.w[name].T.contiguous()
        c = config
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
        heads, past = self.config["n_head"], self.length
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
        for i in range(self.config["n_layer"]):
            x = x + self.attention(i, self.norm(f"h.{i}.ln_1", x))
            hidden = F.gelu(self.product(f"h.{i}.mlp.c_fc", self.norm(f"h.{i}.ln_2", x)), approximate="tanh")
            x = x + self.product(f"h.{i}.mlp.c_proj", hidden)
        self.length += len(tokens)
        return F.linear(self.norm("ln_f", x[-1:]), self.w["wte.weight"])[0]


def generate(model, prompt, count):
    """Returns the tokens, and the tokens per second after the first."""
    ids = list(prompt)
    logits = model.read(torch.tensor(ids))
    for i in range(count):
        ids.append(int(logits.argmax()))
        if i == 0:
            start = time.perf_counter()
        if i + 1 < count:
            logits = model.read(torch.tensor(ids[-1:]))
    return ids, (count - 1) / (time.perf_counter() - start)


def run(folder, prompt, tokens):
    """Returns the tokens per second of every variant, and the tokens of the last."""
    config, weights = json.loads((folder / "config.json").read_text()), peer_weights.load(folder)
    result = {"torch": torch.__version__, "rates": {}}
    with torch.no_grad():
        for linear in (False, True):
            for buffer in (False, True):
                result["ids"], rate = generate(Model(config, weights, linear, buffer), prompt, tokens)
                result["rates"][f"{'linear' if linear else 'conv1d'}, {'buffer' if buffer else 'cat'}"] = rate
    return result


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("action", choices=("make", "run"))
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--prompt", type=int, nargs="+", default=[1, 2, 3])
    arguments = parser.parse_args()
    if arguments.action == "make":
        return make(arguments.folder, GPT2)
    torch.set_num_threads(arguments.threads)
    print("RESULT " + json.dumps(run(arguments.folder, arguments.prompt, arguments.tokens)))


if __name__ == "__main__":
    main()
