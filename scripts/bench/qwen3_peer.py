#!/usr/bin/env python3
"""Qwen3-MoE in plain PyTorch, without drops: the other side of `bench peer --shape qwen3-moe`.

    qwen3_peer.py make DIR CONFIG                        # a Hugging Face folder of the config's shape, random weights,
                                                         # and tokens.bin, the tokens of one step
    qwen3_peer.py run DIR --experts bmm --dtype bf16     # trains; prints RESULT and one JSON object

Experts are products of one expert's tokens after the other (loop), or one batched product of all experts' tokens, each
padded to the largest number (bmm). Every step trains on the same tokens.
"""
import argparse
import array
import json
import math
import pathlib
import statistics
import time

import torch
import torch.nn.functional as F

import peer_weights

LLMC = (20240520, 1)  # magic and version of llm.c's files of 16-bit tokens
HEADER = 256  # its words


# ---- the folder


def shapes(c):
    """Names and shapes of the tensors in Hugging Face's files."""
    d, size, inner = c["hidden_size"], c["head_dim"], c["moe_intermediate_size"]
    heads, keys = c["num_attention_heads"] * size, c["num_key_value_heads"] * size
    result = {"model.embed_tokens.weight": [c["vocab_size"], d]}
    for i in range(c["num_hidden_layers"]):
        block = {"input_layernorm": [d], "self_attn.q_proj": [heads, d], "self_attn.k_proj": [keys, d],
                 "self_attn.v_proj": [keys, d], "self_attn.q_norm": [size], "self_attn.k_norm": [size],
                 "self_attn.o_proj": [d, heads], "post_attention_layernorm": [d], "mlp.gate": [c["num_experts"], d]}
        for e in range(c["num_experts"]):
            block.update({f"mlp.experts.{e}.gate_proj": [inner, d], f"mlp.experts.{e}.up_proj": [inner, d],
                          f"mlp.experts.{e}.down_proj": [d, inner]})
        result.update({f"model.layers.{i}.{name}.weight": shape for name, shape in block.items()})
    return {**result, "model.norm.weight": [d], "lm_head.weight": [c["vocab_size"], d]}


def make(folder, config):
    model, train = config["model"], config["train"]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(model, indent=2))
    (folder / "train.json").write_text(json.dumps(train))
    generator = torch.Generator().manual_seed(1)

    def weight(name, shape):
        return torch.ones(shape) if "norm" in name else 0.02 * torch.randn(shape, generator=generator)

    peer_weights.write(folder, shapes(model), weight)
    # Small ids are frequent, as in real text.
    drawn = torch.randint(model["vocab_size"], (train["micro_batch_size"] * train["seq_len"] + 1,), generator=generator)
    tokens = drawn.square().div(model["vocab_size"], rounding_mode="floor").tolist()
    header = array.array("i", [*LLMC, len(tokens), *[0] * (HEADER - 3)])
    (folder / "tokens.bin").write_bytes(header.tobytes() + array.array("H", tokens).tobytes())


def batch(folder, seq_len):
    """tokens, targets [B, S]."""
    text = array.array("H", (folder / "tokens.bin").read_bytes()[4 * HEADER:])
    text = torch.tensor(text.tolist())
    return text[:-1].view(-1, seq_len), text[1:].view(-1, seq_len)


# ---- the model


def parameters(c, w):
    """Returns the weights that the model trains: those that are used together are one tensor."""
    result = {"embed": w["model.embed_tokens.weight"], "norm": w["model.norm.weight"], "head": w["lm_head.weight"]}
    for i in range(c["num_hidden_layers"]):
        def of(*names):
            return [w[f"model.layers.{i}.{name}.weight"] for name in names]

        experts = range(c["num_experts"])
        block = {"norm1": of("input_layernorm")[0], "norm2": of("post_attention_layernorm")[0],
                 "qkv": torch.cat(of("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")),
                 "q_norm": of("self_attn.q_norm")[0], "k_norm": of("self_attn.k_norm")[0],
                 "out": of("self_attn.o_proj")[0], "router": of("mlp.gate")[0],
                 "up": torch.stack([torch.cat(of(f"mlp.experts.{e}.gate_proj", f"mlp.experts.{e}.up_proj"))
                                    for e in experts]),                                           # [E, 2F, D]
                 "down": torch.stack([of(f"mlp.experts.{e}.down_proj")[0] for e in experts])}  # [E, D, F]
        result.update({f"{i}.{name}": value for name, value in block.items()})
    return {name: value.requires_grad_() for name, value in result.items()}


class Spread(torch.autograd.Function):
    """x [T, D] -> places [P, D] by their tokens (T: a row of zeros). Backward sums a token's places [T, K]."""

    @staticmethod
    def forward(ctx, x, token, place):
        ctx.save_for_backward(place)
        return torch.cat([x, x.new_zeros(1, x.shape[1])]).index_select(0, token)

    @staticmethod
    def backward(ctx, gradient):
        (place,) = ctx.saved_tensors
        return gradient.index_select(0, place.flatten()).view(*place.shape, -1).sum(1), None, None


class Collect(torch.autograd.Function):
    """places [P, D] -> each choice's [T * K, D]. Backward gathers by the choices of places (T * K: zeros)."""

    @staticmethod
    def forward(ctx, y, place, choice):
        ctx.save_for_backward(choice)
        return y.index_select(0, place.flatten())

    @staticmethod
    def backward(ctx, gradient):
        (choice,) = ctx.saved_tensors
        rows = torch.cat([gradient, gradient.new_zeros(1, gradient.shape[1])])
        return rows.index_select(0, choice), None, None


def swiglu(x):
    gate, up = x.chunk(2, -1)
    return F.silu(gate) * up


class Model:
    def __init__(self, config, weights, experts, dtype, seq_len):
        self.c, self.w, self.experts, self.dtype = config, parameters(config, weights), experts, dtype
        half = config["head_dim"] // 2
        frequency = config["rope_theta"] ** (-torch.arange(half) / half)
        angle = torch.arange(seq_len)[:, None] * torch.cat([frequency, frequency])
        self.cos, self.sin = angle.cos(), angle.sin()
        group = config["num_attention_heads"] // config["num_key_value_heads"]
        future = torch.full((seq_len, seq_len), -math.inf).triu(1)
        self.mask = future.repeat(group, 1).to(dtype)  # of the queries that share a key head

    def rms_norm(self, x, name):
        x = x.float()
        return self.w[name] * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.c.get("rms_norm_eps", 1e-6)))

    def rotated(self, x):  # [B, H, S, hd]
        first, second = x.chunk(2, -1)
        return (x * self.cos + torch.cat([-second, first], -1) * self.sin).to(self.dtype)

    def attention(self, i, x):
        b, s, _ = x.shape
        h, g, size = self.c["num_attention_heads"], self.c["num_key_value_heads"], self.c["head_dim"]
        qkv = F.linear(x, self.w[f"{i}.qkv"]).view(b, s, h + 2 * g, size).transpose(1, 2)
        q, k, v = qkv.split([h, g, g], 1)
        q = self.rotated(self.rms_norm(q, f"{i}.q_norm")).reshape(b * g, h // g * s, size)
        k = self.rotated(self.rms_norm(k, f"{i}.k_norm")).reshape(b * g, s, size)
        scores = torch.baddbmm(self.mask, q, k.transpose(1, 2), alpha=size ** -0.5)
        y = torch.bmm(scores.softmax(-1), v.reshape(b * g, s, size))
        return F.linear(y.view(b, h, s, size).transpose(1, 2).reshape(b, s, h * size), self.w[f"{i}.out"])

    def mixture(self, i, x):
        """x [T, D] -> output [T, D], auxiliary loss."""
        count, choices = self.c["num_experts"], self.c["num_experts_per_tok"]
        with torch.autocast("cpu", enabled=False):
            scores = F.linear(x, self.w[f"{i}.router"]).softmax(-1)
        weight, expert = scores.topk(choices, -1)
        weight = weight / weight.sum(-1, keepdim=True)
        order = expert.flatten().argsort(stable=True)  # of choices, by expert
        load = expert.flatten().bincount(minlength=count)
        aux = count * (load / expert.numel() * scores.mean(0)).sum()
        compute = self.batched if self.experts == "bmm" else self.looped
        return compute(i, x.to(self.dtype), weight.to(self.dtype), expert, order, load), aux

    def looped(self, i, x, weight, expert, order, load):
        up, down = (self.w[f"{i}.{name}"].to(self.dtype).unbind() for name in ("up", "down"))
        result, weights = torch.zeros_like(x), weight.flatten()
        for e, choice in enumerate(order.split(load.tolist())):
            token = choice // weight.shape[1]
            y = F.linear(swiglu(F.linear(x.index_select(0, token), up[e])), down[e])
            result = result.index_add(0, token, y * weights[choice, None])
        return result

    def batched(self, i, x, weight, expert, order, load):
        tokens, choices, most = *weight.shape, int(load.max())
        by = expert.flatten()[order]
        at = by * most + torch.arange(len(order)) - (load.cumsum(0) - load)[by]  # place of each choice in order
        place = torch.empty_like(order).scatter_(0, order, at).view(tokens, choices)
        choice = torch.full((len(load) * most,), len(order)).scatter_(0, at, order)  # of each place
        token = choice.div(choices, rounding_mode="floor")
        rows = Spread.apply(x, token, place).view(len(load), most, -1)
        hidden = swiglu(torch.bmm(rows, self.w[f"{i}.up"].transpose(1, 2)))
        y = torch.bmm(hidden, self.w[f"{i}.down"].transpose(1, 2)).view(len(load) * most, -1)
        y = Collect.apply(y, place, choice).view(tokens, choices, -1)
        return (y * weight[..., None]).sum(1)

    def loss(self, tokens, targets):
        """Returns the mean cross-entropy and the sum of the layers' auxiliary losses."""
        x, total = self.w["embed"][tokens], 0
        for i in range(self.c["num_hidden_layers"]):
            x = x + self.attention(i, self.rms_norm(x, f"{i}.norm1"))
            y, aux = self.mixture(i, self.rms_norm(x, f"{i}.norm2").flatten(0, 1))
            x, total = x + y.view_as(x), total + aux
        logits = F.linear(self.rms_norm(x, "norm"), self.w["head"])
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten()), total


def run(o):
    config, train = (json.loads((o.folder / name).read_text()) for name in ("config.json", "train.json"))
    dtype = torch.bfloat16 if o.dtype == "bf16" else torch.float32
    tokens, targets = batch(o.folder, train["seq_len"])
    model = Model(config, peer_weights.load(o.folder), o.experts, dtype, train["seq_len"])
    optimizer = torch.optim.AdamW(model.w.values(), lr=train["lr"], weight_decay=0)
    times, losses = [], []
    for _ in range(o.steps):
        start = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=o.dtype == "bf16"):
            loss, aux = model.loss(tokens, targets)
        (loss + config["router_aux_loss_coef"] * aux).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        times.append(time.perf_counter() - start)
        losses.append(loss.item())
    print("RESULT " + json.dumps({
        "torch": torch.__version__, "tokens_s": tokens.numel() / statistics.median(times[o.warmup:]), "losses": losses,
        "parameters": sum(each.numel() for each in model.w.values())}))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    actions = parser.add_subparsers(dest="action", required=True)
    maker, runner = actions.add_parser("make"), actions.add_parser("run")
    for action in (maker, runner):
        action.add_argument("folder", type=pathlib.Path)
    maker.add_argument("config", type=json.loads, help="a config of Lancet's as JSON, without comments")
    runner.add_argument("--experts", choices=("loop", "bmm"), default="bmm")
    runner.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32")
    runner.add_argument("--threads", type=int, default=2)
    runner.add_argument("--steps", type=int, default=5)
    runner.add_argument("--warmup", type=int, default=2)
    o = parser.parse_args()
    if o.action == "make":
        return make(o.folder, o.config)
    torch.set_num_threads(o.threads)
    run(o)


if __name__ == "__main__":
    main()
