#!/usr/bin/env python3
"""Small models as Hugging Face folders, and their logits, in plain PyTorch.

Writes beside this script hugging_face/MODEL/{config.json,model.safetensors} of each model of MODELS, and
logits.safetensors (tokens int32 [S], logits float32 [S, V], computed in float64). The forward pass is written from the
published description of GPT-2 and from docs/formats.md, not from this project's code.

    python3 generate_hugging_face.py                 # writes the files
    python3 generate_hugging_face.py --check FOLDER TOKENS...   # prints the last position's logits of any such folder
"""
import argparse
import json
import math
import pathlib
import struct

import torch
import torch.nn.functional as F

import gates

SIZES = dict(n_layer=3, n_head=2, n_embd=24, n_positions=32, vocab_size=71, layer_norm_epsilon=1e-5,
             initializer_range=0.02, n_inner=None)
GPT2 = dict(SIZES, model_type="gpt2", architectures=["GPT2LMHeadModel"], activation_function="gelu_new",
            tie_word_embeddings=True, scale_attn_weights=True, attn_pdrop=0.1, torch_dtype="float32",
            task_specific_params={"text-generation": {"do_sample": True, "max_length": 50}})
MOE = dict(SIZES, model_type="gpt2_moe", architectures=["GPT2MoELMHeadModel"], activation_function="gelu_new",
           tie_word_embeddings=True, moe_layer_freq=2, num_local_experts=4, num_experts_per_tok=1, router="switch",
           capacity_factor=1.25, router_aux_loss_coef=0.01, router_aux_loss_scope="rank", torch_dtype="float32")
SHARED = dict(MOE, n_embd=16, moe_layer_freq=1, first_k_dense_replace=1, num_experts_per_tok=2, norm_topk_prob=True,
              router="top_k", moe_intermediate_size=12, n_shared_experts=2)
SIGMOID = dict(SHARED, router="sigmoid", num_local_experts=8, router_groups=4, router_topk_groups=2,
               routed_scaling_factor=1.5, router_bias_update_rate=0.01)
PLAIN = dict(SHARED, norm_topk_prob=False, n_shared_experts=0)
GSHARD = dict(PLAIN, router="gshard")
HASH = dict(PLAIN, router="hash", num_experts_per_tok=1)
EXPERT_CHOICE = dict(PLAIN, router="expert_choice", num_experts_per_tok=1, capacity_factor=1.5)
MODELS = {  # name: config, seed
    "gpt2": (GPT2, 5), "gpt2_moe": (MOE, 6), "gpt2_moe_shared": (SHARED, 7), "gpt2_moe_sigmoid": (SIGMOID, 8),
    "gpt2_moe_gshard": (GSHARD, 9), "gpt2_moe_hash": (HASH, 10), "gpt2_moe_expert_choice": (EXPERT_CHOICE, 12),
}
TYPES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int32: "I32", torch.uint8: "U8"}


def is_moe(c, block):
    freq = c.get("moe_layer_freq", 0)
    return freq > 0 and block % freq == 0 and block >= c.get("first_k_dense_replace", 0)


# ---- the model, on a dictionary of tensors by their names in the file


def conv1d(w, name, x):
    return x @ w[name + ".weight"] + w[name + ".bias"]  # weight [in, out]


def ffn(w, name, x):
    return conv1d(w, name + ".c_proj", F.gelu(conv1d(w, name + ".c_fc", x), approximate="tanh"))


def has_scores(c):
    return c["router"] not in ("hash", "random")  # without positions in a run, random is hash


def chosen(rank, k):
    """Which k of each row are the largest, as booleans."""
    return torch.zeros_like(rank, dtype=torch.bool).scatter(1, rank.topk(k, dim=1).indices, True)


def sigmoid_choice(scores, c, bias):
    """Which experts [S, E] the tokens choose by score + bias, in the groups with the two best experts."""
    grouped = (scores + bias).view(len(scores), c.get("router_groups", 1), -1)
    of_group = grouped.topk(min(2, grouped.shape[2]), dim=2).values.sum(dim=2)
    is_open = chosen(of_group, c.get("router_topk_groups") or of_group.shape[1])
    return chosen(grouped.masked_fill(~is_open[:, :, None], -math.inf).flatten(1), c["num_experts_per_tok"])


def expert_weights(w, name, x, ids, block, c):
    """[S, E]: the weight of each expert's result for tokens x [S, D] with these ids, 0 where it does not have them."""
    count = c["num_local_experts"]
    if not has_scores(c):
        return F.one_hot(gates.hashed_experts(ids, block, count), count).to(x.dtype)
    logits = x @ w[name + ".gate.weight"].T
    if c["router"] == "sigmoid":
        scores = torch.sigmoid(logits)
        weights = scores * sigmoid_choice(scores, c, w[name + ".gate.bias"])
    else:
        scores = torch.softmax(logits, dim=1)
        if c["router"] == "expert_choice":  # the tokens are a group
            return scores * chosen(scores.T, min(math.ceil(c["capacity_factor"] * len(x) / count), len(x))).T
        weights = scores * chosen(scores, c["num_experts_per_tok"])
    if c.get("norm_topk_prob") or c["router"] == "gshard":
        weights = weights / weights.sum(dim=1, keepdim=True)
    return weights * c.get("routed_scaling_factor", 1)


def experts(w, name, x, ids, block, c):
    weights = expert_weights(w, name, x, ids, block, c)
    rows = [sum((weights[t, e] * ffn(w, f"{name}.experts.{e}", x[t]) for e in weights[t].nonzero()[:, 0].tolist()),
                torch.zeros_like(x[t])) for t in range(len(x))]
    routed = torch.stack(rows)
    return routed + ffn(w, f"{name}.shared_experts", x) if c.get("n_shared_experts") else routed


def attention(w, name, x, heads):
    s, d = x.shape
    q, k, v = conv1d(w, name + ".c_attn", x).view(s, 3, heads, d // heads).permute(1, 2, 0, 3)
    scores = q @ k.transpose(1, 2) / math.sqrt(d // heads)
    scores = scores.masked_fill(torch.ones(s, s, dtype=torch.bool).triu(1), -math.inf)
    y = (torch.softmax(scores, dim=2) @ v).transpose(0, 1).reshape(s, d)
    return conv1d(w, name + ".c_proj", y)


def forward(w, tokens, c):
    """tokens [S] -> logits [S, V]"""
    def norm(name, x):
        return F.layer_norm(x, x.shape[-1:], w[name + ".weight"], w[name + ".bias"], c["layer_norm_epsilon"])

    x = w["wte.weight"][tokens] + w["wpe.weight"][:len(tokens)]
    for i in range(c["n_layer"]):
        x = x + attention(w, f"h.{i}.attn", norm(f"h.{i}.ln_1", x), c["n_head"])
        y = norm(f"h.{i}.ln_2", x)
        x = x + (experts(w, f"h.{i}.moe", y, tokens, i, c) if is_moe(c, i) else ffn(w, f"h.{i}.mlp", y))
    return norm("ln_f", x) @ w["wte.weight"].T


# ---- files


def write(path, tensors, metadata):
    header, data = {"__metadata__": metadata}, b""
    for name, t in tensors.items():
        raw = t.contiguous().view(torch.uint8).numpy().tobytes() if t.dim() else struct.pack("<f", float(t))
        header[name] = dict(dtype=TYPES[t.dtype], shape=list(t.shape), data_offsets=[len(data), len(data) + len(raw)])
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def read(path):
    raw = path.read_bytes()
    length = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8:8 + length])
    types = {v: k for k, v in TYPES.items()}
    header.pop("__metadata__", None)
    tensors = {}
    for name, t in header.items():
        begin, end = (8 + length + o for o in t["data_offsets"])
        tensors[name] = torch.frombuffer(bytearray(raw[begin:end]), dtype=types[t["dtype"]]).view(t["shape"])
    return tensors


def load(folder):
    """The folder's tensors in float64, without prefix and buffers, and its config."""
    config = json.loads((folder / "config.json").read_text())
    index = folder / "model.safetensors.index.json"
    files = sorted(set(json.loads(index.read_text())["weight_map"].values())) if index.exists() else ["model.safetensors"]
    w = {}
    for file in files:
        for name, t in read(folder / file).items():
            w[name.removeprefix("transformer.")] = t.double()
    return w, config


def shapes(c):
    d, f, result = c["n_embd"], 4 * c["n_embd"], {}

    def pair(name, weight, bias):
        result[name + ".weight"] = weight
        result[name + ".bias"] = bias

    result["wte.weight"], result["wpe.weight"] = [c["vocab_size"], d], [c["n_positions"], d]
    for i in range(c["n_layer"]):
        pair(f"h.{i}.ln_1", [d], [d])
        pair(f"h.{i}.attn.c_attn", [d, 3 * d], [3 * d])
        pair(f"h.{i}.attn.c_proj", [d, d], [d])
        pair(f"h.{i}.ln_2", [d], [d])
        if is_moe(c, i) and has_scores(c):
            result[f"h.{i}.moe.gate.weight"] = [c["num_local_experts"], d]
        if is_moe(c, i) and c["router"] == "sigmoid":
            result[f"h.{i}.moe.gate.bias"] = [c["num_local_experts"]]
        widths = {"mlp": f}
        if is_moe(c, i):
            width = c.get("moe_intermediate_size") or f
            widths = {f"moe.experts.{e}": width for e in range(c["num_local_experts"])}
            if c.get("n_shared_experts"):
                widths["moe.shared_experts"] = c["n_shared_experts"] * width
        for name, width in widths.items():
            pair(f"h.{i}.{name}.c_fc", [d, width], [width])
            pair(f"h.{i}.{name}.c_proj", [width, d], [d])
    pair("ln_f", [d], [d])
    return result


def make(folder, c, seed, buffers):
    folder.mkdir(parents=True, exist_ok=True)
    g = torch.Generator().manual_seed(seed)
    w = {}
    for name, shape in shapes(c).items():
        scale = 1.0 if ".ln_" in name or name.startswith("ln_") else 0.3
        w[name] = torch.randn(shape, generator=g) * scale + (1 if name.endswith("weight") and scale == 1 else 0)
    tokens = torch.randint(0, c["vocab_size"], (c["n_positions"],), generator=g)
    logits = forward({n: t.double() for n, t in w.items()}, tokens, c).float()
    stored = dict(w)
    if buffers:  # as in older files
        p = c["n_positions"]
        for i in range(c["n_layer"]):
            stored[f"h.{i}.attn.bias"] = torch.ones(1, 1, p, p).tril()
            stored[f"h.{i}.attn.masked_bias"] = torch.tensor(-1e4)
    else:
        stored = {"transformer." + n: t for n, t in w.items()}
    (folder / "config.json").write_text(json.dumps(c, indent=2) + "\n")
    write(folder / "model.safetensors", stored, {"format": "pt"})
    write(folder / "logits.safetensors", dict(tokens=tokens.int(), logits=logits), {})


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", nargs="+", metavar="FOLDER TOKEN")
    arguments = parser.parse_args()
    if arguments.check:
        w, config = load(pathlib.Path(arguments.check[0]))
        logits = forward(w, torch.tensor([int(t) for t in arguments.check[1:]]), config)
        print(*(f"{x:.9g}" for x in logits[-1].tolist()))
        return
    here = pathlib.Path(__file__).resolve().parent / "hugging_face"
    for name, (config, seed) in MODELS.items():
        make(here / name, config, seed, buffers=name == "gpt2")


if __name__ == "__main__":
    main()
