#!/usr/bin/env python3
"""Small models of the families with rotary positions as Hugging Face folders, and their logits, in plain PyTorch.

Writes beside this script hugging_face/MODEL/{config.json,model.safetensors} of each model of MODELS, and
logits.safetensors (tokens int32 [S], logits float32 [S, V], computed in float64 from the file's values). The forward
pass works on the files' tensors and is written from the families' published definitions, not from this project's code.

    python3 generate_families.py
"""
import json
import math
import pathlib

import torch
import torch.nn.functional as F

from generate_hugging_face import write

SIZES = dict(hidden_act="silu", hidden_size=16, intermediate_size=20, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=32, vocab_size=71, rms_norm_eps=1e-6, rope_theta=10000.0,
             rope_scaling=None, attention_dropout=0.0, initializer_range=0.02, use_cache=True, bos_token_id=1,
             eos_token_id=2, torch_dtype="float32", transformers_version="4.57.1")
QWEN3 = dict(SIZES, attention_bias=False, head_dim=8, sliding_window=None, max_window_layers=2,
             use_sliding_window=False)
MODELS = {  # name: config, seed
    "llama": (dict(SIZES, model_type="llama", architectures=["LlamaForCausalLM"], attention_bias=False, mlp_bias=False,
                   pretraining_tp=1, tie_word_embeddings=False), 21),
    "qwen3": (dict(QWEN3, model_type="qwen3", architectures=["Qwen3ForCausalLM"], tie_word_embeddings=True), 22),
    "mixtral": (dict(SIZES, model_type="mixtral", architectures=["MixtralForCausalLM"], rope_theta=1e6,
                     rms_norm_eps=1e-5, head_dim=None, num_local_experts=4, num_experts_per_tok=2,
                     output_router_logits=False, router_aux_loss_coef=0.02, router_jitter_noise=0.0,
                     sliding_window=None, tie_word_embeddings=False, torch_dtype="bfloat16"), 23),
    "qwen3_moe": (dict(QWEN3, model_type="qwen3_moe", architectures=["Qwen3MoeForCausalLM"], num_hidden_layers=3,
                       decoder_sparse_step=2, mlp_only_layers=[], moe_intermediate_size=12, num_experts=6,
                       num_experts_per_tok=3, norm_topk_prob=True, output_router_logits=False,
                       router_aux_loss_coef=0.001, tie_word_embeddings=False), 24),
    "qwen2_moe": (dict(SIZES, model_type="qwen2_moe", architectures=["Qwen2MoeForCausalLM"], num_hidden_layers=3,
                       decoder_sparse_step=1, mlp_only_layers=[1], moe_intermediate_size=12, num_experts=6,
                       num_experts_per_tok=3, norm_topk_prob=False, output_router_logits=False, qkv_bias=True,
                       shared_expert_intermediate_size=28, router_aux_loss_coef=0.001, sliding_window=32,
                       max_window_layers=2, use_sliding_window=False, tie_word_embeddings=False), 25),
    "olmoe": (dict(SIZES, model_type="olmoe", architectures=["OlmoeForCausalLM"], attention_bias=False, clip_qkv=1.5,
                   num_experts=6, num_experts_per_tok=3, norm_topk_prob=False, output_router_logits=False,
                   router_aux_loss_coef=0.01, rms_norm_eps=1e-5, tie_word_embeddings=False), 26),
    "dots1": (dict(SIZES, model_type="dots1", architectures=["Dots1ForCausalLM"], num_hidden_layers=3,
                   attention_bias=False, first_k_dense_replace=1, n_routed_experts=8, n_shared_experts=2,
                   num_experts_per_tok=3, moe_intermediate_size=12, n_group=4, topk_group=2, norm_topk_prob=True,
                   routed_scaling_factor=2.5, scoring_func="noaux_tc", sliding_window=None, max_window_layers=3,
                   layer_types=["full_attention"] * 3, tie_word_embeddings=False), 30),
}
# Positions beyond those of the training, and biases of attention.
SCALED = dict(attention_bias=True, num_hidden_layers=1, head_dim=12, rope_theta=100.0)
MODELS |= {
    "llama_llama3": (dict(MODELS["llama"][0], **SCALED,
                          rope_scaling=dict(rope_type="llama3", factor=4.0, low_freq_factor=0.25, high_freq_factor=1.0,
                                            original_max_position_embeddings=16)), 27),
    "qwen3_linear": (dict(MODELS["qwen3"][0], **SCALED, rope_scaling=dict(rope_type="linear", factor=4.0)), 28),
    "qwen3_moe_yarn": (dict(MODELS["qwen3_moe"][0], **dict(SCALED, num_hidden_layers=2),
                            rope_scaling=dict(rope_type="yarn", factor=4.0, beta_fast=2.0, beta_slow=0.25,
                                              original_max_position_embeddings=8)), 29),
}


def head_dim(c):
    return c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]


def is_sparse(c, block):
    if c["model_type"] in ("mixtral", "olmoe"):
        return True
    if c["model_type"] == "dots1":
        return block >= c["first_k_dense_replace"]
    return "num_experts" in c and block not in c["mlp_only_layers"] and (block + 1) % c["decoder_sparse_step"] == 0


def rms_norm(x, weight, c):
    return weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + c["rms_norm_eps"])


def scaled(inverse, c):
    """The inverse frequencies for more positions, and the factor of cos and sin."""
    s = c["rope_scaling"]
    if s is None:
        return inverse, 1.0
    longer = inverse / s["factor"]  # interpolates positions
    if s["rope_type"] == "linear":
        return longer, 1.0
    old = s["original_max_position_embeddings"]
    if s["rope_type"] == "llama3":
        wavelength, low, high = 2 * math.pi / inverse, s["low_freq_factor"], s["high_freq_factor"]
        smooth = (old / wavelength - low) / (high - low)
        between = (1 - smooth) * longer + smooth * inverse
        result = torch.where(wavelength > old / low, longer, torch.where(wavelength < old / high, inverse, between))
        assert ((0 < smooth) & (smooth < 1)).any() and (smooth <= 0).any() and (smooth >= 1).any()
        return result, 1.0
    size = 2 * len(inverse)

    def dimension(rotations):  # of a head, that rotates so often within the old positions
        return size * math.log(old / (rotations * 2 * math.pi)) / (2 * math.log(c["rope_theta"]))

    low, high = max(math.floor(dimension(s["beta_fast"])), 0), min(math.ceil(dimension(s["beta_slow"])), size - 1)
    ramp = ((torch.arange(len(inverse), dtype=inverse.dtype) - low) / (high - low)).clamp(0, 1)
    assert ((0 < ramp) & (ramp < 1)).any() and (ramp == 0).any() and (ramp == 1).any()
    return longer * ramp + inverse * (1 - ramp), 0.1 * math.log(s["factor"]) + 1


def rotated(x, c):
    """x [S, heads, hd]: x cos + rotate_half(x) sin, where rotate_half(x) is [-x2, x1] of the two halves."""
    size = x.shape[-1]
    inverse, factor = scaled(c["rope_theta"] ** (-torch.arange(0, size, 2, dtype=x.dtype) / size), c)
    angle = torch.outer(torch.arange(len(x), dtype=x.dtype), inverse)
    angle = torch.cat([angle, angle], -1)[:, None]
    x1, x2 = x.chunk(2, -1)
    return x * (factor * angle.cos()) + torch.cat([-x2, x1], -1) * (factor * angle.sin())


def attention(w, name, x, c):
    s, size, groups = len(x), head_dim(c), c["num_attention_heads"] // c["num_key_value_heads"]
    q, k, v = (F.linear(x, w[f"{name}.{p}_proj.weight"], w.get(f"{name}.{p}_proj.bias")) for p in "qkv")
    if c["model_type"] == "olmoe":  # over all heads
        q, k = rms_norm(q, w[name + ".q_norm.weight"], c), rms_norm(k, w[name + ".k_norm.weight"], c)
        q, k, v = (t.clamp(-c["clip_qkv"], c["clip_qkv"]) for t in (q, k, v))
    q, k, v = (t.view(s, -1, size) for t in (q, k, v))
    if c["model_type"].startswith(("qwen3", "dots1")):
        q, k = rms_norm(q, w[name + ".q_norm.weight"], c), rms_norm(k, w[name + ".k_norm.weight"], c)
    q, k = rotated(q, c), rotated(k, c)
    out = []
    for h in range(c["num_attention_heads"]):
        scores = q[:, h] @ k[:, h // groups].T * size ** -0.5
        scores = scores.masked_fill(torch.ones(s, s, dtype=torch.bool).triu(1), -math.inf)
        out.append(torch.softmax(scores, -1) @ v[:, h // groups])
    return F.linear(torch.cat(out, -1), w[name + ".o_proj.weight"], w.get(name + ".o_proj.bias"))


def swiglu(w, x, gate, up, down):
    return F.linear(F.silu(F.linear(x, w[gate + ".weight"])) * F.linear(x, w[up + ".weight"]), w[down + ".weight"])


def names_of_ffn(c, name):
    return [f"{name}.{n}" for n in (("w1", "w3", "w2") if "block_sparse_moe" in name else
                                    ("gate_proj", "up_proj", "down_proj"))]


def route(w, name, x, c):
    """The weights and the experts of each token, [S, K]."""
    logits = F.linear(x, w[name + ".gate.weight"])
    if c["model_type"] != "dots1":
        best = torch.softmax(logits, -1).topk(c["num_experts_per_tok"], -1)
        return best.values, best.indices
    scores = torch.sigmoid(logits)
    choice = scores + w[name + ".gate.e_score_correction_bias"]  # of which a token may take those of its best groups
    groups = choice.view(len(x), c["n_group"], -1)
    best = groups.topk(2, -1).values.sum(-1).topk(c["topk_group"], -1).indices
    is_open = torch.zeros(groups.shape[:2], dtype=torch.bool).scatter(1, best, True)
    experts = groups.masked_fill(~is_open[:, :, None], -math.inf).flatten(1).topk(c["num_experts_per_tok"], -1).indices
    assert (experts != scores.topk(c["num_experts_per_tok"], -1).indices).any()
    return scores.gather(1, experts), experts


def sparse(w, name, x, c):
    weights, experts = route(w, name, x, c)
    if c["model_type"] == "mixtral" or c["norm_topk_prob"]:
        weights = weights / weights.sum(-1, keepdim=True)
    weights = weights * c.get("routed_scaling_factor", 1)
    y = torch.stack([sum(weight * swiglu(w, x[t], *names_of_ffn(c, f"{name}.experts.{e}"))
                         for weight, e in zip(weights[t], experts[t].tolist())) for t in range(len(x))])
    if c["model_type"] == "qwen2_moe":
        gate = torch.sigmoid(F.linear(x, w[name + ".shared_expert_gate.weight"]))
        y = y + gate * swiglu(w, x, *names_of_ffn(c, name + ".shared_expert"))
    if c["model_type"] == "dots1":
        y = y + swiglu(w, x, *names_of_ffn(c, name + ".shared_experts"))
    return y


def forward(w, tokens, c):
    """tokens [S] -> logits [S, V]"""
    x = w["model.embed_tokens.weight"][tokens]
    for i in range(c["num_hidden_layers"]):
        name = f"model.layers.{i}"
        x = x + attention(w, name + ".self_attn", rms_norm(x, w[name + ".input_layernorm.weight"], c), c)
        y = rms_norm(x, w[name + ".post_attention_layernorm.weight"], c)
        block = name + (".block_sparse_moe" if c["model_type"] == "mixtral" else ".mlp")
        x = x + (sparse(w, block, y, c) if is_sparse(c, i) else swiglu(w, y, *names_of_ffn(c, block)))
    head = w["model.embed_tokens.weight" if c["tie_word_embeddings"] else "lm_head.weight"]
    return F.linear(rms_norm(x, w["model.norm.weight"], c), head)


def shapes(c):
    d, heads, keys, size = c["hidden_size"], c["num_attention_heads"], c["num_key_value_heads"], head_dim(c)
    result = {"model.embed_tokens.weight": [c["vocab_size"], d]}

    def ffn(name, width):
        gate, up, down = names_of_ffn(c, name)
        result.update({gate + ".weight": [width, d], up + ".weight": [width, d], down + ".weight": [d, width]})

    for i in range(c["num_hidden_layers"]):
        name = f"model.layers.{i}"
        result[name + ".input_layernorm.weight"] = [d]
        for p, count in (("q", heads), ("k", keys), ("v", keys)):
            result[f"{name}.self_attn.{p}_proj.weight"] = [count * size, d]
            if c.get("qkv_bias") or c.get("attention_bias"):
                result[f"{name}.self_attn.{p}_proj.bias"] = [count * size]
        result[name + ".self_attn.o_proj.weight"] = [d, heads * size]
        if c.get("attention_bias"):
            result[name + ".self_attn.o_proj.bias"] = [d]
        if c["model_type"].startswith(("qwen3", "dots1")):
            for p in "qk":
                result[f"{name}.self_attn.{p}_norm.weight"] = [size]
        if c["model_type"] == "olmoe":
            result[name + ".self_attn.q_norm.weight"] = [heads * size]
            result[name + ".self_attn.k_norm.weight"] = [keys * size]
        result[name + ".post_attention_layernorm.weight"] = [d]
        block = name + (".block_sparse_moe" if c["model_type"] == "mixtral" else ".mlp")
        if not is_sparse(c, i):
            ffn(block, c["intermediate_size"])
            continue
        experts = next(c[n] for n in ("num_experts", "num_local_experts", "n_routed_experts") if n in c)
        result[block + ".gate.weight"] = [experts, d]
        if c["model_type"] == "dots1":
            result[block + ".gate.e_score_correction_bias"] = [experts]
        for e in range(experts):
            ffn(f"{block}.experts.{e}", c.get("moe_intermediate_size", c["intermediate_size"]))
        if c["model_type"] == "qwen2_moe":
            ffn(block + ".shared_expert", c["shared_expert_intermediate_size"])
            result[block + ".shared_expert_gate.weight"] = [1, d]
        if c["model_type"] == "dots1":
            ffn(block + ".shared_experts", c["n_shared_experts"] * c["moe_intermediate_size"])
    result["model.norm.weight"] = [d]
    if not c["tie_word_embeddings"]:
        result["lm_head.weight"] = [c["vocab_size"], d]
    return result


def make(folder, c, seed):
    folder.mkdir(parents=True, exist_ok=True)
    g = torch.Generator().manual_seed(seed)
    w = {}
    for name, shape in shapes(c).items():
        t = torch.randn(shape, generator=g) * 0.3 + (1 if len(shape) == 1 else 0)
        narrow = c["torch_dtype"] == "bfloat16" and not name.endswith(".gate.weight")  # routers are often left in fp32
        w[name] = t.bfloat16() if narrow else t
    tokens = torch.randint(0, c["vocab_size"], (c["max_position_embeddings"],), generator=g)
    logits = forward({n: t.double() for n, t in w.items()}, tokens, c).float()
    (folder / "config.json").write_text(json.dumps(c, indent=2) + "\n")
    write(folder / "model.safetensors", w, {"format": "pt"})
    write(folder / "logits.safetensors", dict(tokens=tokens.int(), logits=logits), {})


if __name__ == "__main__":
    for model, (config, number) in MODELS.items():
        make(pathlib.Path(__file__).resolve().parent / "hugging_face" / model, config, number)
