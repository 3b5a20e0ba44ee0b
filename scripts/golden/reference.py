"""The reference: transformers' Qwen3 models in double precision, and the losses by formula.

A packed row is run one segment at a time (positions start at 0 in each); the losses are then
formed over the whole batch with its own denominators. The balancing and z losses are computed
here from the routers' logits, not by the library.
"""

import contextlib
import math

import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM
from transformers.models.qwen3 import modeling_qwen3
from transformers.models.qwen3_moe import modeling_qwen3_moe

REDUCTIONS = ("token", "sample", "square")
NOT_TRAINED = -100


class _DoubleTorch:
    """The torch module, except that the library's casts to float32 go to float64.

    The rope tables keep their float32 values: the library makes them with .float().
    """

    float32 = float = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


@contextlib.contextmanager
def double_precision():
    modules = (modeling_qwen3, modeling_qwen3_moe)
    for module in modules:
        module.torch = _DoubleTorch()
    try:
        yield
    finally:
        for module in modules:
            module.torch = torch


def make_model(config, weights, dtype):
    """The model with these weights (name -> tensor, any dtype), computing in `dtype`."""
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").to(dtype)
    with torch.no_grad():
        for name, param in model.named_parameters():
            param.copy_(weights[name])
    return model.eval()


def _segments(row):
    bounds = row.get("cu_seqlens", [0, len(row["input_ids"])])
    return list(zip(bounds[:-1], bounds[1:]))


def forward(model, row):
    """Logits [T, V] and {layer: router logits [T, E]} of one row."""
    routers = {}
    hooks = []
    for l, layer in enumerate(model.model.layers):
        if hasattr(layer.mlp, "gate"):
            routers[l] = []
            keep = lambda _m, _x, y, l=l: routers[l].append(y)
            hooks.append(layer.mlp.gate.register_forward_hook(keep))
    logits = []
    for first, last in _segments(row):
        ids = torch.tensor([row["input_ids"][first:last]])
        logits.append(model(input_ids=ids, use_cache=False).logits[0])
    for hook in hooks:
        hook.remove()
    return torch.cat(logits), {l: torch.cat(parts) for l, parts in routers.items()}


def _cross_entropy(rows, logits, reduction):
    """Sum of w * CE over the batch, sum of w, number of trained tokens."""
    total, denominator, trained = 0.0, 0.0, 0
    for row, row_logits in zip(rows, logits):
        labels = torch.tensor(row.get("labels", row["input_ids"]))
        for first, last in _segments(row):
            target = labels[first + 1 : last]
            keep = target != NOT_TRAINED
            n = int(keep.sum())
            if n == 0:
                continue
            weight = {"token": 1.0, "sample": 1.0 / n, "square": 1.0 / math.sqrt(n)}[reduction]
            ce = F.cross_entropy(row_logits[first : last - 1][keep], target[keep], reduction="sum")
            total = total + weight * ce
            denominator += weight * n
            trained += n
    return total / denominator, trained


def _routing(rows_routers, config):
    """Balancing loss with alpha 1 (both forms), z-loss with alpha 1, counts, smallest margin."""
    E, K = config.num_experts, config.num_experts_per_tok
    layers = list(rows_routers[0])
    counts = {l: torch.zeros(E, dtype=torch.int64) for l in layers}
    per_layer, hf, margin = 0.0, 0.0, math.inf
    z_sum = {l: 0.0 for l in layers}
    tokens = 0
    for routers in rows_routers:
        f, p = 0.0, 0.0
        for l in layers:
            logits = routers[l]
            T = logits.shape[0]
            prob = torch.softmax(logits, dim=-1)
            chosen = torch.topk(prob, K, dim=-1).indices
            c = torch.bincount(chosen.flatten(), minlength=E)
            r = prob.sum(0)
            per_layer = per_layer + (E / (T * K)) * (c * r).sum() / T
            f, p = f + c / (len(layers) * T), p + r / (len(layers) * T)
            z_sum[l] = z_sum[l] + torch.logsumexp(logits, dim=-1).square().sum()
            counts[l] += c
            if K < E:
                ordered = logits.detach().sort(dim=-1, descending=True).values
                margin = min(margin, float((ordered[:, K - 1] - ordered[:, K]).min()))
        hf = hf + E * (f * p).sum()
        tokens += T
    n = len(rows_routers)
    return per_layer / n, hf / n, sum(z_sum.values()) / tokens, counts, margin


def batch_loss(model, rows, reduction, alpha, form, z_alpha):
    """Everything about one step's loss; `total` carries the graph."""
    outputs = [forward(model, row) for row in rows]
    ce, trained = _cross_entropy(rows, [logits for logits, _ in outputs], reduction)
    out = dict(ce=ce, trained_tokens=trained, logits=[logits for logits, _ in outputs])
    out |= dict(routers=[list(routers.values()) for _, routers in outputs])
    out |= dict(balancing=None, balancing_raw=None, balancing_hf_raw=None, z=None)
    out |= dict(tokens_per_expert={}, margin=math.inf, max_violation=None, total=ce)
    if outputs[0][1]:
        raw, hf, z, counts, margin = _routing([routers for _, routers in outputs], model.config)
        violation = [float((c.max() - c.double().mean()) / c.double().mean()) for c in counts.values()]
        raw = {"per_layer": raw, "hf": hf}[form]
        out |= dict(balancing=alpha * raw, balancing_raw=raw, balancing_hf_raw=hf, z=z_alpha * z)
        out |= dict(tokens_per_expert=counts, margin=margin, total=ce + alpha * raw + z_alpha * z)
        out |= dict(max_violation=sum(violation) / len(violation))
    return out


def gradients(model, total):
    """{name: gradient}; an expert without tokens has zeros. Returns the norm over all, too."""
    model.zero_grad()
    total.backward()
    for param in model.parameters():
        if param.grad is None:
            param.grad = torch.zeros_like(param)
    grads = {name: param.grad for name, param in model.named_parameters()}
    return grads, math.sqrt(sum(float(g.double().square().sum()) for g in grads.values()))


def learning_rate(base, schedule, step, steps):
    """Of step s = 0, 1, …: warmup starts above 0, lr_min is reached only after the last step."""
    warmup = schedule["warmup"]
    warm = int(warmup * steps) if warmup < 1 else int(warmup)
    if step < warm:
        return base * (step + 1) / warm
    t = (step - warm) / (steps - warm)
    low = min(schedule["lr_min"], base)
    fall = {"cosine": (1 + math.cos(math.pi * t)) / 2, "linear": 1 - t, "constant": 1.0}
    return low + (base - low) * fall[schedule["type"]]


def train(model, rows, loss_args, optimizer, lr_schedule, steps, max_grad_norm):
    """Train on the same rows in every step; per-step values, and each change of a weight."""
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    decayed = [p for p in model.parameters() if p.ndim > 1 or optimizer.get("decay_1d", True)]
    other = [p for p in model.parameters() if not (p.ndim > 1 or optimizer.get("decay_1d", True))]
    groups = [dict(params=decayed), dict(params=other, weight_decay=0.0)]
    groups = [group for group in groups if group["params"]]
    if optimizer["type"] == "adamw":
        torch_optimizer = torch.optim.AdamW(
            groups,
            lr=optimizer["lr"],
            betas=tuple(optimizer["betas"]),
            eps=optimizer["eps"],
            weight_decay=optimizer["weight_decay"],
        )
    else:
        torch_optimizer = torch.optim.SGD(
            groups, lr=optimizer["lr"], weight_decay=optimizer["weight_decay"]
        )
    keys = ("total", "ce", "balancing", "z", "max_violation")
    log = {key: [] for key in (*keys, "grad_norm", "lr")}
    margin = math.inf
    for step in range(steps):
        lr = learning_rate(optimizer["lr"], lr_schedule, step, steps)
        for group in torch_optimizer.param_groups:
            group["lr"] = lr
        out = batch_loss(model, rows, **loss_args)
        grads, norm = gradients(model, out["total"])
        clip = min(1.0, max_grad_norm / (norm + 1e-6)) if max_grad_norm > 0 else 1.0
        for grad in grads.values():
            grad.mul_(clip)
        torch_optimizer.step()
        margin = min(margin, out["margin"])
        for key in keys:
            log[key].append(None if out[key] is None else torch.as_tensor(out[key], dtype=torch.float64).item())
        log["grad_norm"].append(norm)
        log["lr"].append(lr)
    change = {name: p.detach() - start[name] for name, p in model.named_parameters()}
    return log, change, margin
