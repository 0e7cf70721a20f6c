#!/usr/bin/env python3
"""GPT-2, dense or with Switch MoE layers, in PyTorch: the baseline of `bench gpu`.

It is written for speed without custom kernels: torch.compile, scaled_dot_product_attention, bf16 autocast over fp32
weights, fused AdamW, clipped gradients. Experts compute batched products on buffers of a fixed capacity; tokens are
moved there and back by gathers, in the forward and the backward pass. If this PyTorch lacks the compiler, fused
attention or a GPU, the plain form runs and the result says so.

The last line of standard output is `RESULT {...}`: the fastest of --modes by its median step; its field
"deterministic" has the same for torch.use_deterministic_algorithms.
"""
import argparse
import inspect
import json
import math
import os
import statistics
import sys
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic products, at no cost in time

import torch
import torch.nn.functional as F
from torch import nn

CAPACITY = 1.25


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("layers", 12), ("width", 768), ("heads", 12), ("seq", 1024), ("batch", 16), ("vocab", 50304),
                        ("moe-every", 0), ("experts", 2), ("steps", 20), ("warmup", 5)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--modes", default="default", help="modes of torch.compile, with commas; eager: not compiled")
    return parser.parse_args()


class Move(torch.autograd.Function):
    """Gathers rows of x by `source`; index len(x) is a row of zeros. Backward gathers by `back`, without atomic
    additions."""

    @staticmethod
    def forward(ctx, x, source, back):
        ctx.save_for_backward(back)
        return rows(x, source)

    @staticmethod
    def backward(ctx, gradient):
        (back,) = ctx.saved_tensors
        return rows(gradient, back), None, None


def rows(x, source):
    return torch.cat([x, x.new_zeros(1, x.shape[1])])[source]


class Attention(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.heads = o.heads
        self.qkv, self.out = nn.Linear(o.width, 3 * o.width), nn.Linear(o.width, o.width)

    def forward(self, x):  # [batch, seq, width]
        batch, seq, width = x.shape
        q, k, v = self.qkv(x).view(batch, seq, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        if hasattr(F, "scaled_dot_product_attention"):
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = (q @ k.transpose(-1, -2)).float() / math.sqrt(q.shape[-1])
            future = torch.ones(seq, seq, dtype=torch.bool, device=x.device).triu(1)
            y = scores.masked_fill(future, float("-inf")).softmax(-1).to(v.dtype) @ v
        return self.out(y.transpose(1, 2).reshape(batch, seq, width))


def gelu(x):
    return F.gelu(x, approximate="tanh")


class Dense(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.up, self.down = nn.Linear(o.width, 4 * o.width), nn.Linear(4 * o.width, o.width)

    def forward(self, x):
        return self.down(gelu(self.up(x))), x.new_zeros(())


class Experts(nn.Module):
    """Experts with a top-1 gate and a fixed number of slots per expert. Dropped tokens take only the residual path."""

    def __init__(self, o):
        super().__init__()
        self.experts = o.experts
        self.slots = math.ceil(CAPACITY * o.batch * o.seq / o.experts)
        self.gate = nn.Parameter(0.02 * torch.randn(o.experts, o.width))
        self.up = nn.Parameter(0.02 * torch.randn(o.experts, o.width, 4 * o.width))
        self.up_bias = nn.Parameter(torch.zeros(o.experts, 1, 4 * o.width))
        self.down = nn.Parameter(0.02 * torch.randn(o.experts, 4 * o.width, o.width))
        self.down_bias = nn.Parameter(torch.zeros(o.experts, 1, o.width))

    def forward(self, x):
        shape = x.shape
        x = x.reshape(-1, shape[-1])
        tokens, places = x.shape[0], self.experts * self.slots
        probability = F.linear(x.float(), self.gate.float()).softmax(-1)
        weight, expert = probability.max(-1)
        chosen = F.one_hot(expert, self.experts)
        position = (chosen.cumsum(0) * chosen).sum(-1) - 1
        slot = torch.where(position < self.slots, expert * self.slots + position, torch.full_like(expert, places))
        token = torch.full((places + 1,), tokens, dtype=torch.long, device=x.device)
        token = token.scatter(0, slot, torch.arange(tokens, device=x.device))[:places]
        x = x.bfloat16()
        buffer = Move.apply(x, token, slot).view(self.experts, self.slots, -1)
        hidden = gelu(torch.bmm(buffer, self.up.to(buffer.dtype)) + self.up_bias.to(buffer.dtype))
        result = torch.bmm(hidden, self.down.to(hidden.dtype)) + self.down_bias.to(hidden.dtype)
        y = Move.apply(result.view(places, -1), slot, token) * weight.unsqueeze(-1).to(result.dtype)
        balance = self.experts * (probability.mean(0) * chosen.float().mean(0)).sum()
        return y.view(shape), balance


class Block(nn.Module):
    def __init__(self, o, sparse):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(o.width), nn.LayerNorm(o.width)
        self.attention = Attention(o)
        self.feed = Experts(o) if sparse else Dense(o)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        y, balance = self.feed(self.norm2(x))
        return x + y, balance


class Model(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(o.vocab, o.width), nn.Embedding(o.seq, o.width)
        self.blocks = nn.ModuleList(Block(o, o.moe_every > 0 and i % o.moe_every == 0) for i in range(o.layers))
        self.norm = nn.LayerNorm(o.width)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    def forward(self, ids, targets):
        x = self.tokens(ids) + self.positions.weight
        balance = 0
        for block in self.blocks:
            x, more = block(x)
            balance = balance + more
        logits = F.linear(self.norm(x), self.tokens.weight)
        loss = F.cross_entropy(logits.view(-1, logits.shape[-1]).float(), targets.reshape(-1))
        return loss + 0.01 * balance, loss


class Trainer:
    def __init__(self, o, mode):
        torch.manual_seed(1)
        self.o = o
        self.model = Model(o).to(o.device)
        adamw = torch.optim.AdamW
        fused = {"fused": True} if o.device == "cuda" and "fused" in inspect.signature(adamw).parameters else {}
        self.optimizer = adamw(self.model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1, **fused)
        self.graphs = mode == "reduce-overhead"
        self.run = self.model if mode == "eager" else torch.compile(self.model, mode=mode)
        ids = torch.randint(0, o.vocab, (8, o.batch, o.seq + 1), device=o.device)
        self.batches = [(x[:, :-1].contiguous(), x[:, 1:].contiguous()) for x in ids]

    def step(self, number):
        if self.graphs:
            torch.compiler.cudagraph_mark_step_begin()
        with torch.autocast(self.o.device, torch.bfloat16):
            total, loss = self.run(*self.batches[number % len(self.batches)])
        total.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def mark(self):
        if self.o.device == "cpu":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def time(self):
        """Returns the milliseconds of each of o.steps, on the GPU's clock if there is one, and the last loss."""
        for i in range(self.o.warmup):
            self.step(i)
        if self.o.device == "cuda":
            torch.cuda.synchronize()
        marks = [self.mark()]
        for i in range(self.o.steps):
            loss = self.step(i).clone()
            marks.append(self.mark())
        if self.o.device == "cpu":
            return [1e3 * (b - a) for a, b in zip(marks, marks[1:])], float(loss)
        torch.cuda.synchronize()
        return [a.elapsed_time(b) for a, b in zip(marks, marks[1:])], float(loss)


def fastest(o, modes):
    """Returns the result of the fastest mode, or the errors of all."""
    tried, best = {}, None
    for mode in modes:
        try:
            trainer = Trainer(o, mode)
            ms, loss = trainer.time()
        except Exception as error:  # a mode that this PyTorch lacks does not stop the others
            tried[mode] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:200]
            continue
        finally:
            trainer = None
            if o.device == "cuda":
                torch.cuda.empty_cache()
        tried[mode] = statistics.median(ms)
        if best is None or tried[mode] < best["step_ms"]:
            best = {"mode": mode, "step_ms": tried[mode], "slowest_ms": max(ms), "loss": loss}
    if best is None:
        return {"error": json.dumps(tried)}
    return {**best, "tokens_per_s": o.batch * o.seq / best["step_ms"] * 1e3, "modes": tried}


def main():
    o = arguments()
    if o.device == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = True
    modes = o.modes.split(",") if hasattr(torch, "compile") else ["eager"]
    result = fastest(o, modes)
    if "error" in result:
        print(f"error: no mode ran: {result['error']}", file=sys.stderr)
        return 1
    result.update(torch=torch.__version__, fused_attention=hasattr(F, "scaled_dot_product_attention"), device=o.device)
    if o.device == "cuda":
        result["peak_mb"] = torch.cuda.max_memory_allocated() / 1e6
    if hasattr(torch, "compile"):
        torch.compiler.reset()
    torch.use_deterministic_algorithms(True, warn_only=True)
    if hasattr(torch.utils, "deterministic"):
        torch.utils.deterministic.fill_uninitialized_memory = False  # it would fill every new tensor
    result["deterministic"] = fastest(o, modes)
    print("RESULT " + json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
