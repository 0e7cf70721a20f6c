"""What each gate decides about the tokens of a batch, in plain PyTorch, written from the gates' papers.

A gate is a function of the router's logits [T, E] that returns a Route; that of hash layers is one of the tokens' ids.
Decisions are integers, through which no gradient flows; the weights of combine carry the gradients.
"""
import math
from dataclasses import dataclass

import torch


@dataclass
class Route:
    combine: torch.Tensor  # [T, E]: what the result of an expert is multiplied by; 0 where the expert has no such token
    scores: torch.Tensor   # [T, E]: what the auxiliary loss takes the mean of; None: the choice reads no scores
    share: torch.Tensor    # [E]: the share of choices that each expert has, before anything is dropped
    expert: torch.Tensor = None  # int [T, K]: the experts that a token chose, best first; all of them in expert_choice
    slot: torch.Tensor = None    # int [T, K]: -1: dropped, or, in expert_choice, not taken
    margin: float = math.inf     # the least difference of two scores whose order decided what is chosen


def capacity(c, tokens):
    if c["capacity_factor"] is None:  # nothing is dropped
        return tokens
    exact = c["capacity_factor"] * c.get("num_experts_per_tok", 1) * tokens / c["num_local_experts"]
    return min(max(math.ceil(exact), 1), tokens)


# ---- choices, slots and weights, of which gates are made


def best(scores, k):
    """The k largest of each row [T, K], the lowest index on a tie."""
    rows = scores.detach().tolist()
    return torch.tensor([sorted(range(len(row)), key=lambda e: (-row[e], e))[:k] for row in rows])


def gap(scores, k):
    """The least difference, over the rows, of the k-th and the following score: what decides which k are chosen."""
    ranked = scores.detach().topk(min(k + 1, scores.shape[1]), dim=1).values
    return (ranked[:, k - 1] - ranked[:, k]).min().item() if ranked.shape[1] > k else math.inf


def gaps(scores, k):
    """The same of any two of the k + 1 best: what also decides the order of the choices."""
    return min(gap(scores, n + 1) for n in range(k))


def serve(expert, order, most, experts):
    """The slots [T, K] of the choices (t, k) in `order`: an expert keeps the first `most`, in slots by token order."""
    chosen, kept = [0] * experts, set()
    for t, k in order:
        e = int(expert[t, k])
        if chosen[e] < most:
            kept.add((t, k))
        chosen[e] += 1
    used, slot = [0] * experts, torch.full(expert.shape, -1)
    for t, k in sorted(kept):  # the order decides which choices are kept; slots follow the order of tokens
        slot[t, k] = used[int(expert[t, k])]
        used[int(expert[t, k])] += 1
    return slot


def by_token(expert):
    return [(t, k) for t in range(expert.shape[0]) for k in range(expert.shape[1])]


def by_choice(expert, tokens=None):
    return [(t, k) for k in range(expert.shape[1]) for t in tokens or range(expert.shape[0])]


def normalized(weight, c):
    return weight / weight.sum(1, keepdim=True) if c.get("norm_topk_prob") else weight


def of_choices(expert, weight, order, scores, c, margin):
    """The Route of tokens that chose experts [T, K] with these weights and are served in that order."""
    tokens, experts = len(expert), c["num_local_experts"]
    slot = serve(expert, order, capacity(c, tokens), experts)
    kept = torch.where(slot >= 0, weight, torch.zeros_like(weight))
    combine = weight.new_zeros(tokens, experts).scatter(1, expert, kept)
    share = torch.bincount(expert.flatten(), minlength=experts).to(weight.dtype) / expert.numel()
    return Route(combine, scores, share, expert, slot, margin)


# ---- the gates


def top_k(logits, c):
    """The experts with the largest softmax, served token after token (K = 1: Switch Transformers, section 2.1)."""
    p = torch.softmax(logits, dim=1)
    k = c.get("num_experts_per_tok", 1)
    expert = best(p, k)
    return of_choices(expert, normalized(p.gather(1, expert), c), by_token(expert), p, c, gaps(p, k))


def batch_prioritized(logits, c):
    """First choices before second ones, each in the order of the tokens' largest weights (V-MoE, section 4.1)."""
    p = torch.softmax(logits, dim=1)
    k = c.get("num_experts_per_tok", 1)
    expert = best(p, k)
    weight = normalized(p.gather(1, expert), c)
    first = weight[:, 0].tolist()
    tokens = sorted(range(len(first)), key=lambda t: (-first[t], t))
    return of_choices(expert, weight, by_choice(expert, tokens), p, c, gaps(p, k))


def gshard(logits, c):
    """Two experts, all first choices before all second ones; every second choice is taken (GShard, algorithm 1,
    without its random choice). The weights are divided by their sum, and the loss counts first choices alone."""
    p = torch.softmax(logits, dim=1)
    expert = best(p, 2)
    weight = p.gather(1, expert)
    r = of_choices(expert, weight / weight.sum(1, keepdim=True), by_choice(expert), p, c, gaps(p, 2))
    r.share = torch.bincount(expert[:, 0], minlength=p.shape[1]).to(p.dtype) / len(p)
    return r


def sigmoid(logits, c, bias):
    """Affinities are sigmoids, of which the chosen ones are divided by their sum. A bias [E] takes part in the choice
    alone. The choice is limited to the best router_topk_groups of router_groups groups of neighbouring experts, a group
    being as good as its two best experts together (DeepSeek-V3, sections 2.1.2 and 2.1.4, where 2 is K / M)."""
    s = torch.sigmoid(logits)
    tokens, experts = s.shape
    groups = c.get("router_groups", 1)
    of_group = (s.detach() + bias).view(tokens, groups, -1)
    good = of_group.topk(min(2, experts // groups), dim=2).values.sum(2)  # [T, groups]
    allowed_groups, k = c.get("router_topk_groups", groups), c["num_experts_per_tok"]
    allowed = torch.zeros_like(good, dtype=torch.bool).scatter(1, best(good, allowed_groups), True)
    open_scores = of_group.masked_fill(~allowed[:, :, None], -math.inf).flatten(1)
    expert = best(open_scores, k)
    weight = c.get("routed_scaling_factor", 1) * normalized(s.gather(1, expert), c)
    shares = s / s.sum(1, keepdim=True)  # of all experts, for the loss (equation 19; f counts the choices made)
    margin = min(gap(good, allowed_groups), gaps(open_scores, k))
    return of_choices(expert, weight, by_token(expert), shares, c, margin)


def moved_bias(bias, expert, rate):
    """The bias after a step in which tokens chose `expert` [T, K]: experts of less than the mean load gain `rate`, and
    those of more lose it (DeepSeek-V3, section 2.1.2, auxiliary-loss-free load balancing)."""
    load = torch.bincount(expert.flatten(), minlength=len(bias)).to(bias.dtype)
    return bias + rate * torch.sign(load.mean() - load)


def expert_choice(logits, c):
    """Every expert takes as many tokens as its capacity, those with the largest softmax over the experts (Zhou et
    al., Mixture-of-Experts with Expert Choice Routing, section 3.2). What a token gets depends on later tokens."""
    p = torch.softmax(logits, dim=1)
    tokens, experts = p.shape
    most = capacity(c, tokens)
    chosen = torch.zeros(experts, tokens, dtype=torch.bool).scatter(1, best(p.T, most), True).T  # [T, E]
    slot = torch.where(chosen, chosen.cumsum(0) - 1, -torch.ones_like(chosen, dtype=torch.long))
    share = torch.full((experts,), 1 / experts, dtype=p.dtype)
    return Route(p * chosen, p, share, torch.arange(experts).repeat(tokens, 1), slot, gap(p.T, most))


def philox(counter, key):
    """The four words of Philox4x32-10 on four words under two (Salmon et al., Parallel Random Numbers: As Easy as 1, 2,
    3, section 5.2 and table 2)."""
    mask, (a, b, c, d), (low, high) = (1 << 32) - 1, counter, key
    for _ in range(10):
        p, q = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = q >> 32 ^ b ^ low, q & mask, p >> 32 ^ d ^ high, p & mask
        low, high = low + 0x9E3779B9 & mask, high + 0xBB67AE85 & mask
    return a, b, c, d


def hashed_experts(ids, block, experts):
    """The expert of each id in a block (docs/formats.md): a multiple of its hash, so that all are as likely."""
    return torch.tensor([philox((token, 0, 0, 0), (block, 0))[0] * experts >> 32 for token in ids.tolist()])


def hash_layer(x, c, ids, block):
    """The expert of a token [T, D] is a fixed random one of its id [T]; its result counts whole (Roller et al., Hash
    Layers, section 3: random hash)."""
    expert = hashed_experts(ids, block, c["num_local_experts"])[:, None]
    return of_choices(expert, x.new_ones(len(ids), 1), by_token(expert), None, c, math.inf)


GATES = dict(switch=top_k, top_k=top_k, batch_prioritized=batch_prioritized, gshard=gshard, sigmoid=sigmoid,
             expert_choice=expert_choice)


# ---- losses


def balance_loss(r):
    """E times the sum over experts of share and mean score: 1 if both are even (Switch Transformers, section 2.2). 0
    where the choice reads no scores."""
    if r.scores is None:
        return torch.zeros((), dtype=r.share.dtype)
    return len(r.share) * (r.share * r.scores.mean(0)).sum()


def z_loss(logits):
    """The mean over tokens of the squared log of the softmax's denominator (ST-MoE, equation 5)."""
    return torch.logsumexp(logits, dim=1).square().mean()
