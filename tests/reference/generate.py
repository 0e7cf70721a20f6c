#!/usr/bin/env python3
"""Reference training runs of GPT-2, of Llama's descendants, and of both with mixture-of-experts layers, in PyTorch.

Three steps of each case of CASES, or ten, computed in float64 and stored as float32 in <case>.safetensors beside this
script. The C++ tests read these files (reference.h), so they need no PyTorch. README.md describes their content.

    python3 generate.py
"""
import json
import math
import pathlib
import struct

import torch
import torch.nn.functional as F

import gates

STEPS = 3  # of a case that has no "steps"
ROUNDOFF = 1e-14  # a gradient below it is the roundoff of an exact zero (e.g. of the keys' bias): stored as zero

MODEL = dict(n_layer=4, n_head=2, n_embd=16, n_positions=20, vocab_size=61, layer_norm_epsilon=1e-5, moe_layer_freq=2,
             num_local_experts=4, router_aux_loss_coef=0.01, batch_size=4, sequence_length=16)
ADAMW = dict(optimizer="adamw", lr=1e-3, adam_beta1=0.9, adam_beta2=0.95, adam_eps=1e-8, weight_decay=0.1,
             clip_grad=1.0)
SGD = dict(optimizer="sgd", lr=0.05, momentum=0.9, weight_decay=0.0, clip_grad=0.0)  # clip_grad 0: no clipping
# Two narrow experts a token; gradients of the first step alone, so that the files are small.
SMALL = dict(MODEL, n_embd=8, n_positions=12, vocab_size=31, sequence_length=8, num_experts_per_tok=2,
             moe_intermediate_size=12, gradient_steps=1)
ROTARY = dict(steps=10, n_head=4, num_key_value_heads=2, head_dim=4, rope_theta=100.0)
CASES = {
    "switch_adamw": dict(MODEL, **ADAMW, seed=3, gate="switch", capacity_factor=1.25),
    "batch_prioritized_sgd": dict(MODEL, **SGD, seed=60, gate="batch_prioritized", capacity_factor=1.0),
    "dense_adamw": dict(MODEL, **ADAMW, seed=7, moe_layer_freq=0),
    "top_k_shared_adamw": dict(SMALL, **ADAMW, seed=1, gate="top_k", norm_topk_prob=True, capacity_factor=1.0,
                               n_layer=3, moe_layer_freq=1, first_k_dense_replace=1, n_shared_experts=2),
    "batch_prioritized_narrow_sgd": dict(SMALL, **SGD, seed=16, gate="batch_prioritized", capacity_factor=0.75,
                                         n_layer=2, moe_layer_freq=2, num_local_experts=6, n_shared_experts=1),
    "gshard_sgd": dict(SMALL, **SGD, seed=1, gate="gshard", router_second_expert="always", capacity_factor=1.0,
                       n_layer=2),
    "sigmoid_adamw": dict(SMALL, **ADAMW, seed=2, gate="sigmoid", capacity_factor=1.0, n_layer=2, num_local_experts=8,
                          norm_topk_prob=True, router_groups=4, router_topk_groups=2, routed_scaling_factor=1.5,
                          router_bias_update_rate=0.01, n_shared_experts=1),
    "expert_choice_sgd": dict(SMALL, **SGD, seed=2, gate="expert_choice", num_experts_per_tok=1, capacity_factor=1.5,
                              n_layer=2),
    "hash_adamw": dict(SMALL, **ADAMW, seed=2, gate="hash", num_experts_per_tok=1, capacity_factor=1.0, n_layer=2,
                       moe_layer_freq=1),
    # Rotary positions, RMS norms, grouped queries, SwiGLU.
    "llama_adamw": dict(SMALL, **ADAMW, **ROTARY, seed=4, model_type="llama", n_layer=2, moe_layer_freq=0, n_inner=20),
    "mixtral_sgd": dict(SMALL, **SGD, **ROTARY, seed=3, model_type="mixtral", n_layer=2, moe_layer_freq=1, n_inner=12,
                        gate="top_k", norm_topk_prob=True, capacity_factor=1.0),
    "qwen3_moe_adamw": dict(SMALL, **ADAMW, **dict(ROTARY, head_dim=6), seed=1, model_type="qwen3_moe", n_layer=3,
                            moe_layer_freq=2, n_inner=20, gate="top_k", capacity_factor=1.0, tie_word_embeddings=True),
    "qwen3_moe_dropless_sgd": dict(SMALL, **SGD, **ROTARY, seed=1, model_type="qwen3_moe", n_layer=2, moe_layer_freq=1,
                                   n_inner=20, gate="top_k", norm_topk_prob=True, capacity_factor=None),
    "dots1_sgd": dict(SMALL, **SGD, **dict(ROTARY, head_dim=6), seed=1221, model_type="dots1", n_layer=3,
                      moe_layer_freq=1, first_k_dense_replace=1, n_inner=20, gate="sigmoid", capacity_factor=1.0,
                      num_local_experts=8, norm_topk_prob=True, router_groups=4, router_topk_groups=2,
                      routed_scaling_factor=1.5, router_bias_update_rate=0.01, n_shared_experts=2),
    "olmoe_adamw": dict(SMALL, **ADAMW, **ROTARY, seed=4, model_type="olmoe", n_layer=2, moe_layer_freq=1, n_inner=12,
                        clip_qkv=0.9, gate="top_k", capacity_factor=1.0),
    "qwen2_moe_adamw": dict(SMALL, **ADAMW, **ROTARY, seed=4, model_type="qwen2_moe", n_layer=4, moe_layer_freq=1,
                            mlp_only_layers=[0, 2], n_inner=20, shared_expert_intermediate_size=10, qkv_bias=True,
                            gate="top_k", capacity_factor=1.0),
    "qwen3_sgd": dict(SMALL, **SGD, **dict(ROTARY, head_dim=12), seed=1, model_type="qwen3", n_layer=2,
                      moe_layer_freq=0, n_inner=20, attention_bias=True,
                      rope_scaling=dict(rope_type="yarn", factor=3.0, original_max_position_embeddings=6, beta_fast=2.0,
                                        beta_slow=0.25, mscale=1.0, mscale_all_dim=0.5)),
    "llama3_sgd": dict(SMALL, **SGD, **dict(ROTARY, head_dim=12), seed=2, model_type="llama", n_layer=2,
                       moe_layer_freq=0, n_inner=20,
                       rope_scaling=dict(rope_type="llama3", factor=4.0, original_max_position_embeddings=8,
                                         low_freq_factor=0.5, high_freq_factor=1.5)),
    "z_loss_sgd": dict(SMALL, **SGD, seed=1, gate="top_k", capacity_factor=1.0, n_layer=2, router_z_loss_coef=0.01),
}


# ---- the model


def is_rotary(c):
    return "model_type" in c


def norms_heads(c):
    return c.get("model_type", "").startswith(("qwen3", "dots1"))


def moe_layers(c):
    freq = c["moe_layer_freq"]
    first = c.get("first_k_dense_replace", 0)
    dense = c.get("mlp_only_layers", [])
    return [i for i in range(c["n_layer"])
            if freq > 0 and (i + is_rotary(c)) % freq == 0 and i >= first and i not in dense]


def parameter_shapes(c):
    """Names and shapes in the order in which the model uses them. Linear weights are [out, in]."""
    d, e = c["n_embd"], c["num_local_experts"]
    f = c.get("moe_intermediate_size", 4 * d)  # of an expert
    shared = c.get("shared_expert_intermediate_size", c.get("n_shared_experts", 0) * f)
    rotary = is_rotary(c)
    inner = c.get("n_inner", 4 * d)
    wide = 2 if rotary else 1  # gate and up of each feature side by side
    size = c.get("head_dim", d // c["n_head"])
    heads = c["n_head"] + 2 * c.get("num_key_value_heads", c["n_head"])  # of queries, keys and values
    if c.get("model_type") in ("mixtral", "olmoe"):
        f = inner
    shapes = {"wte.weight": [c["vocab_size"], d]}
    if not rotary:
        shapes["wpe.weight"] = [c["n_positions"], d]

    def norm(name, width=d):
        shapes[f"{name}.weight"] = [width]
        if not rotary:
            shapes[f"{name}.bias"] = [width]

    def linear(name, rows, columns, stack=(), bias=not rotary):
        shapes[f"{name}.weight"] = [*stack, rows, columns]
        if bias:
            shapes[f"{name}.bias"] = [*stack, rows]

    for i in range(c["n_layer"]):
        norm(f"h.{i}.ln_1")
        linear(f"h.{i}.attn.c_attn", heads * size, d, bias=not rotary or c.get("qkv_bias") or c.get("attention_bias"))
        if norms_heads(c):
            norm(f"h.{i}.attn.q_norm", size)
            norm(f"h.{i}.attn.k_norm", size)
        if c.get("model_type") == "olmoe":
            norm(f"h.{i}.attn.q_norm", c["n_head"] * size)
            norm(f"h.{i}.attn.k_norm", c["num_key_value_heads"] * size)
        linear(f"h.{i}.attn.c_proj", d, c["n_head"] * size, bias=not rotary or c.get("attention_bias"))
        norm(f"h.{i}.ln_2")
        if i in moe_layers(c):
            if c["gate"] != "hash":
                shapes[f"h.{i}.moe.gate.weight"] = [e, d]
            if "router_bias_update_rate" in c:
                shapes[f"h.{i}.moe.gate.bias"] = [e]
            linear(f"h.{i}.moe.experts.c_fc", wide * f, d, (e,))
            linear(f"h.{i}.moe.experts.c_proj", d, f, (e,))
            if shared:
                linear(f"h.{i}.moe.shared_experts.c_fc", wide * shared, d)
                linear(f"h.{i}.moe.shared_experts.c_proj", d, shared)
            if "shared_expert_intermediate_size" in c:
                shapes[f"h.{i}.moe.shared_experts.gate.weight"] = [1, d]
        else:
            linear(f"h.{i}.mlp.c_fc", wide * inner, d)
            linear(f"h.{i}.mlp.c_proj", d, inner)
    norm("ln_f")
    if rotary and not c.get("tie_word_embeddings", False):
        shapes["lm_head.weight"] = [c["vocab_size"], d]
    return shapes


def ffn(w, name, x, c):
    if is_rotary(c):
        hidden = F.linear(x, w(f"{name}c_fc.weight"))
        return F.linear(F.silu(hidden[..., 0::2]) * hidden[..., 1::2], w(f"{name}c_proj.weight"))
    hidden = F.gelu(F.linear(x, w(f"{name}c_fc.weight"), w(f"{name}c_fc.bias")), approximate="tanh")
    return F.linear(hidden, w(f"{name}c_proj.weight"), w(f"{name}c_proj.bias"))


def route(w, x, ids, block, c):
    """The Route of tokens x [T, D] with ids [T], and the router's z-loss."""
    if c["gate"] == "hash":
        return gates.hash_layer(x, c, ids, block), torch.zeros((), dtype=x.dtype)
    logits = x @ w("gate.weight").T
    operands = [w("gate.bias")] if "router_bias_update_rate" in c else []
    return gates.GATES[c["gate"]](logits, c, *operands), gates.z_loss(logits)


def moe(w, x, ids, block, c):
    """x [T, D] -> output [T, D], auxiliary loss, z-loss, the routing."""
    r, z = route(w, x, ids, block, c)
    out = torch.zeros_like(x)
    for e in range(c["num_local_experts"]):
        mine = (r.combine[:, e] != 0).nonzero()[:, 0]
        y = ffn(lambda name: w(name)[e], "experts.", x[mine], c)
        out = out.index_add(0, mine, r.combine[mine, e, None] * y)
    if c.get("n_shared_experts", 0) > 0:
        out = out + ffn(w, "shared_experts.", x, c)
    if "shared_expert_intermediate_size" in c:
        out = out + torch.sigmoid(x @ w("shared_experts.gate.weight").T) * ffn(w, "shared_experts.", x, c)
    return out, gates.balance_loss(r), z, r


def rms_norm(x, weight, c):
    return weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + c["layer_norm_epsilon"])


def scaled(frequency, c):
    """Inverse frequencies for positions beyond the original ones, and the factor of sine and cosine."""
    s = c.get("rope_scaling")
    if s is None:
        return frequency, 1.0
    old, factor = s["original_max_position_embeddings"], s["factor"]
    turns = old * frequency / (2 * math.pi)  # in the original positions
    if s["rope_type"] == "llama3":
        low, high = s["low_freq_factor"], s["high_freq_factor"]
        kept = ((turns - low) / (high - low)).clamp(0, 1)
        return kept * frequency + (1 - kept) * frequency / factor, 1.0
    count = len(frequency)

    def index(number):  # of the frequency that turns that often
        return count * math.log(old / (number * 2 * math.pi)) / math.log(c["rope_theta"])

    first, last = max(math.floor(index(s["beta_fast"])), 0), min(math.ceil(index(s["beta_slow"])), 2 * count - 1)
    assert first < last and any(first < i < last for i in range(count)), "no frequency on the ramp"
    kept = 1 - ((torch.arange(count, dtype=frequency.dtype) - first) / (last - first)).clamp(0, 1)
    amplitude = [0.1 * s[key] * math.log(factor) + 1 for key in ("mscale", "mscale_all_dim")]
    return kept * frequency + (1 - kept) * frequency / factor, amplitude[0] / amplitude[1]


def rotated(x, c):
    """x [B, S, H, hd] by its positions: the halves of a head are the two coordinates of hd/2 planes."""
    half = x.shape[-1] // 2
    frequency = c["rope_theta"] ** (-torch.arange(half, dtype=x.dtype) / half)
    frequency, amplitude = scaled(frequency, c)
    angle = (torch.arange(x.shape[1], dtype=x.dtype)[:, None] * frequency)[:, None]  # [S, 1, hd/2]
    cos, sin = amplitude * angle.cos(), amplitude * angle.sin()
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def grouped_attention(w, x, c):
    """Causal self-attention in which H / G query heads share a key head."""
    b, s, _ = x.shape
    h, g, size = c["n_head"], c["num_key_value_heads"], c["head_dim"]
    bias = w("c_attn.bias") if c.get("qkv_bias") or c.get("attention_bias") else None
    q, k, v = F.linear(x, w("c_attn.weight"), bias).view(b, s, h + 2 * g, size).split([h, g, g], 2)
    if norms_heads(c):
        q, k = rms_norm(q, w("q_norm.weight"), c), rms_norm(k, w("k_norm.weight"), c)
    if c.get("model_type") == "olmoe":
        q = rms_norm(q.flatten(2), w("q_norm.weight"), c).view_as(q)
        k = rms_norm(k.flatten(2), w("k_norm.weight"), c).view_as(k)
    if "clip_qkv" in c:
        q, k, v = (t.clamp(-c["clip_qkv"], c["clip_qkv"]) for t in (q, k, v))
    q, k = rotated(q, c), rotated(k, c)
    k, v = (t.repeat_interleave(h // g, dim=2) for t in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(size)
    future = torch.ones(s, s, dtype=torch.bool).triu(1)
    y = torch.einsum("bhqk,bkhd->bqhd", torch.softmax(scores.masked_fill(future, -math.inf), dim=3), v)
    bias = w("c_proj.bias") if c.get("attention_bias") else None
    return F.linear(y.reshape(b, s, h * size), w("c_proj.weight"), bias)


def attention(w, x, c):
    """Causal self-attention, x [B, S, D] -> [B, S, D]."""
    if is_rotary(c):
        return grouped_attention(w, x, c)
    b, s, d = x.shape
    qkv = F.linear(x, w("c_attn.weight"), w("c_attn.bias")).view(b, s, 3, c["n_head"], -1)
    q, k, v = qkv.permute(2, 0, 3, 1, 4)  # [B, H, S, D/H] each
    scores = q @ k.transpose(2, 3) / math.sqrt(d // c["n_head"])
    future = torch.ones(s, s, dtype=torch.bool).triu(1)
    y = torch.softmax(scores.masked_fill(future, -math.inf), dim=3) @ v
    return F.linear(y.transpose(1, 2).reshape(b, s, d), w("c_proj.weight"), w("c_proj.bias"))


def forward(params, tokens, targets, c):
    """tokens, targets [B, S] -> cross-entropy (mean over tokens), the routers' auxiliary loss and z-loss (sums of
    layers), routing by layer."""

    def under(prefix):
        return lambda name: params[f"{prefix}.{name}"]

    def norm(x, name):
        if is_rotary(c):
            return rms_norm(x, params[f"{name}.weight"], c)
        return F.layer_norm(x, x.shape[-1:], params[f"{name}.weight"], params[f"{name}.bias"], c["layer_norm_epsilon"])

    x = params["wte.weight"][tokens]  # [B, S, D]
    if not is_rotary(c):
        x = x + params["wpe.weight"][:tokens.shape[1]]
    aux, z, routing = torch.zeros((), dtype=x.dtype), torch.zeros((), dtype=x.dtype), {}
    for i in range(c["n_layer"]):
        x = x + attention(under(f"h.{i}.attn"), norm(x, f"h.{i}.ln_1"), c)
        y = norm(x, f"h.{i}.ln_2")
        if i in moe_layers(c):
            out, layer_aux, layer_z, routing[i] = moe(under(f"h.{i}.moe"), y.flatten(0, 1), tokens.flatten(), i, c)
            x = x + out.view_as(x)
            aux, z = aux + layer_aux, z + layer_z
        else:
            x = x + ffn(under(f"h.{i}.mlp"), "", y, c)
    logits = norm(x, "ln_f") @ params.get("lm_head.weight", params["wte.weight"]).T  # [B, S, V]
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten()), aux, z, routing


def objective(loss, aux, z, c):
    return loss + c["router_aux_loss_coef"] * aux + c.get("router_z_loss_coef", 0) * z


# ---- its data, from our own generator: the same on every machine and version


def random_words(seed, count):
    """count words of 24 bits (SplitMix64)."""
    mask = (1 << 64) - 1
    for i in range(count):
        z = ((seed << 40) + (i + 1) * 0x9E3779B97F4A7C15) & mask
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        yield (z ^ (z >> 31)) >> 40


def is_norm(name):
    return "ln_" in name or "_norm." in name


def initial_weights(c):
    """Exact in float32. Larger than a real initialisation, so that every term matters in the loss and gradients."""
    params = {}
    shapes = parameter_shapes(c)
    words = random_words(c["seed"], sum(math.prod(s) for s in shapes.values()))
    for name, shape in shapes.items():
        u = torch.tensor([next(words) * 2.0**-23 - 1 for _ in range(math.prod(shape))]).view(shape)  # in [-1, 1)
        if is_norm(name):
            value = u / 8 + (1 if name.endswith("weight") else 0)
        elif name.endswith("bias"):
            value = u / 8
        elif "gate" in name or name.startswith(("w", "lm_head")):
            value = u / 2
        else:
            value = u * (1.5 / math.sqrt(shape[-1]))
        params[name] = value.float().double()
    return params


def batches(c):
    """tokens, targets [steps, B, S]; a target is the following token."""
    b, s, steps = c["batch_size"], c["sequence_length"], c.get("steps", STEPS)
    words = random_words(c["seed"] + 1000, steps * b * (s + 1))
    text = torch.tensor([w % c["vocab_size"] for w in words]).view(steps, b, s + 1)
    return text[..., :-1].contiguous(), text[..., 1:].contiguous()


# ---- training


def is_trained(name):
    """False for the biases that balance without a loss."""
    return not name.endswith("gate.bias")


def decays(name):
    """Matrices decay; biases (also the experts', [E, out]) and layer norms do not."""
    return name.endswith(".weight") and not is_norm(name)


def make_optimizer(params, c):
    if c["optimizer"] == "sgd":
        return torch.optim.SGD(params.values(), lr=c["lr"], momentum=c["momentum"])
    groups = [dict(params=[p for n, p in params.items() if decays(n)], weight_decay=c["weight_decay"]),
              dict(params=[p for n, p in params.items() if not decays(n)], weight_decay=0.0)]
    return torch.optim.AdamW(groups, lr=c["lr"], betas=(c["adam_beta1"], c["adam_beta2"]), eps=c["adam_eps"])


def train(c):
    """The tensors of the case's file by name."""
    params = initial_weights(c)
    trained = {n: w.requires_grad_() for n, w in params.items() if is_trained(n)}
    tokens, targets = batches(c)
    out = {f"init/{n}": w.detach().clone() for n, w in params.items()}
    out.update(tokens=tokens, targets=targets)
    optimizer = make_optimizer(trained, c)
    for step in range(c.get("steps", STEPS)):
        loss, aux, z, routing = forward(params, tokens[step], targets[step], c)
        optimizer.zero_grad(set_to_none=True)
        objective(loss, aux, z, c).backward()
        norm = torch.sqrt(sum((w.grad**2).sum() for w in trained.values()))
        out.update({f"step{step}/loss": loss.detach(), f"step{step}/aux": aux.detach(), f"step{step}/grad_norm": norm})
        if "router_z_loss_coef" in c:
            out[f"step{step}/z_loss"] = z.detach()
        if step < c.get("gradient_steps", STEPS):
            out.update({f"step{step}/grad/{n}": w.grad.clone() for n, w in trained.items()})
        for i, r in routing.items():
            check_routing(r, c, f"step {step}, layer {i}")
            shape = [-1] if r.expert.shape[1] == 1 else r.expert.shape
            out.update({f"step{step}/expert/{i}": r.expert.view(shape), f"step{step}/slot/{i}": r.slot.view(shape)})
        if c["clip_grad"] > 0:
            scale = min(1.0, c["clip_grad"] / norm.item())
            for w in trained.values():
                w.grad *= scale
        optimizer.step()
        for i, r in routing.items():
            if "router_bias_update_rate" in c:
                bias = params[f"h.{i}.moe.gate.bias"]
                bias.copy_(gates.moved_bias(bias, r.expert, c["router_bias_update_rate"]))
    out.update({f"final/{n}": w.detach() for n, w in params.items()})
    return out


def check_routing(r, c, where):
    """Checks that other rounding cannot change a decision and that the case drops tokens, if it may; else choose
    another seed."""
    k = r.expert.shape[1]
    assert r.margin > (1e-3 if k == 1 else 1e-4), f"{where}: two experts within {r.margin:.1e}"
    counts = torch.bincount(r.expert.flatten(), minlength=c["num_local_experts"])
    assert counts.min() > 0, f"{where}: an expert without tokens"
    drops = c["capacity_factor"] is not None
    assert (r.slot < 0).any() == drops, f"{where}: {'nothing' if drops else 'a choice'} dropped"
    if c["gate"] == "batch_prioritized":  # the order decides which choices are dropped
        for e in range(len(counts)):
            first = r.scores.detach().max(1).values[(r.expert == e).any(1)]
            gap = first.sort().values.diff()
            assert gap.numel() == 0 or gap.min() > (1e-4 if k == 1 else 1e-5), \
                f"{where}, expert {e}: probabilities within {gap.min():.1e}"


# ---- the file


def write_safetensors(path, tensors, metadata):
    header, data = {"__metadata__": metadata}, bytearray()
    for name, t in tensors.items():
        kind, store = ("F32", "<f4") if t.is_floating_point() else ("I32", "<i4")
        if "/grad/" in name:
            t = torch.where(t.abs() < ROUNDOFF, torch.zeros_like(t), t)
        raw = t.numpy().astype(store).tobytes()
        header[name] = dict(dtype=kind, shape=list(t.shape), data_offsets=[len(data), len(data) + len(raw)])
        data += raw
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def summary(name, c, out, path):
    dropped = [int((t < 0).sum()) for n, t in out.items() if "/slot/" in n]
    losses = " ".join(f"{out[f'step{s}/loss'].item():.4f}" for s in range(c.get("steps", STEPS)))
    norms = " ".join(f"{out[f'step{s}/grad_norm'].item():.3f}" for s in range(c.get("steps", STEPS)))
    print(f"{name}: loss {losses}, gradient norm {norms}, dropped {dropped}, {path.stat().st_size} bytes")


def main():
    torch.set_num_threads(1)  # one order of summation, so the same bytes each time
    torch.use_deterministic_algorithms(True)
    for name, c in CASES.items():
        out = train(c)
        path = pathlib.Path(__file__).with_name(f"{name}.safetensors")
        settings = {k: json.dumps(v) if v is None or isinstance(v, dict) else str(v) for k, v in c.items()}
        write_safetensors(path, out, settings)
        summary(name, c, out, path)


if __name__ == "__main__":
    main()
