"""Make tests/golden: tiny models, probe batches, and what a correct program computes for them.

    python scripts/golden/make_models.py [--out DIR] [CASE ...]

Deterministic: with the versions of requirements.txt it writes the same bytes again. Every value
comes from the double-precision reference; the library's own f32 result is compared with it, and
the folder is loaded back with from_pretrained, before anything is kept.
"""

import argparse
import json
import math
import os
import pathlib
import shutil

os.environ["TOKENIZERS_PARALLELISM"] = "false"

import torch
import transformers
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

import reference
from cases import CASES

torch.set_num_threads(1)
transformers.utils.logging.disable_progress_bar()
ROOT = pathlib.Path(__file__).resolve().parents[2]
STEPS = 20
MARGIN = 1e-5  # least distance of the K-th and (K+1)-th router logit
ARCHITECTURE = {"qwen3": "Qwen3ForCausalLM", "qwen3_moe": "Qwen3MoeForCausalLM"}


def write_json(path, value):
    path.write_text(json.dumps(value, indent=1) + "\n")


def number(x):
    """12 significant digits: more than a comparison needs, the same on every machine."""
    return None if x is None else float(f"{x.item() if torch.is_tensor(x) else x:.12g}")


# ---- model folder ------------------------------------------------------------------------------


def make_config(case):
    fields = {k: v for k, v in case["config"].items() if k != "model_type"}
    return AutoConfig.for_model(case["config"]["model_type"], **json.loads(json.dumps(fields)))


def make_weights(config, case, seed):
    """{name: tensor} in the folder's dtype, drawn in the order of the library's parameters."""
    generator = torch.Generator().manual_seed(seed)
    shapes = AutoModelForCausalLM.from_config(config).named_parameters()
    weights = {}
    for name, param in shapes:
        if name.endswith("norm.weight"):
            value = torch.rand(param.shape, generator=generator) * 0.2 + 0.9
        else:
            std = case["router_std"] if name.endswith("mlp.gate.weight") else case["std"]
            value = torch.randn(param.shape, generator=generator) * std
        if name.endswith("mlp.gate.weight") and case["idle_expert"] is not None:
            value[case["idle_expert"]] = 0
        weights[name] = value.to(getattr(torch, case["source_dtype"]))
    return weights


def fuse_experts(tensors, config):
    """Per-expert tensors of each layer into gate_up_proj [E, 2I, H] and down_proj [E, H, I]."""
    fused = {k: v for k, v in tensors.items() if ".mlp.experts." not in k}
    for l in range(config.num_hidden_layers):
        at = f"model.layers.{l}.mlp.experts"
        if f"{at}.0.gate_proj.weight" not in tensors:
            continue
        part = lambda e, which: tensors[f"{at}.{e}.{which}_proj.weight"]
        experts = range(config.num_experts)
        gate_up = [torch.cat([part(e, "gate"), part(e, "up")]) for e in experts]
        fused[f"{at}.gate_up_proj"] = torch.stack(gate_up)
        fused[f"{at}.down_proj"] = torch.stack([part(e, "down") for e in experts])
    return fused


def write_safetensors(path, tensors):
    tensors = {name: t.detach().contiguous().clone() for name, t in tensors.items()}
    save_file(tensors, path, metadata={"format": "pt"})


def write_config(folder, case, config):
    model_type = case["config"]["model_type"]
    if case["config_style"] == "full":
        config.architectures = [ARCHITECTURE[model_type]]
        config.dtype = case["source_dtype"]
        config.save_pretrained(folder)
        return
    keys = {"architectures": [ARCHITECTURE[model_type]], **case["config"], "hidden_act": "silu"}
    if case["config_style"] == "v5":
        keys["rope_parameters"] = {"rope_theta": keys.pop("rope_theta"), "rope_type": "default"}
        keys["dtype"] = case["source_dtype"]
    else:
        keys["torch_dtype"] = case["source_dtype"]
    write_json(folder / "config.json", {k: v for k, v in keys.items() if k not in case["drop"]})


def write_folder(folder, case, config, weights):
    folder.mkdir(parents=True)
    write_config(folder, case, config)
    tensors = fuse_experts(weights, config) if case["experts"] == "fused" else weights
    n = case["shards"]
    if n == 1:
        write_safetensors(folder / "model.safetensors", tensors)
        return
    names = list(tensors)
    weight_map = {}
    for i in range(n):
        shard = f"model-{i + 1:05d}-of-{n:05d}.safetensors"
        part = names[i * len(names) // n : (i + 1) * len(names) // n]
        write_safetensors(folder / shard, {name: tensors[name] for name in part})
        weight_map |= {name: shard for name in part}
    size = sum(t.numel() * t.element_size() for t in tensors.values())
    index = {"metadata": {"total_size": size}, "weight_map": dict(sorted(weight_map.items()))}
    write_json(folder / "model.safetensors.index.json", index)


def check_folder(folder, case, weights):
    """The library reads the folder back to the same tensors, nothing missing or unknown."""
    if case["experts"] == "fused":
        return  # of a later version of the library than the one that computes the values
    model, info = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True
    )
    assert not any(info[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    for name, param in model.named_parameters():
        assert torch.equal(param, weights[name].float()), name


# ---- batch -------------------------------------------------------------------------------------


def make_rows(case, vocab, seed):
    generator = torch.Generator().manual_seed(seed)

    def draw(n, below):
        return torch.randint(below, (n,), generator=generator).tolist()

    rows = []
    for lengths, kind in case["rows"]:
        T = sum(lengths)
        row = {"input_ids": draw(T, vocab)}
        bounds = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
        if kind != "none":
            other, coin = draw(T, vocab), draw(T, 12)
            row["labels"] = [
                -100 if coin[t] < 4 else other[t] if coin[t] < 6 else row["input_ids"][t]
                for t in range(T)
            ]
            for first in bounds[:-1]:
                row["labels"][first] = row["input_ids"][first]
            if kind == "hole":
                row["labels"][bounds[1] + 1 : bounds[2]] = [-100] * (lengths[1] - 1)
        if len(lengths) > 1 or kind == "random":
            row["cu_seqlens"] = bounds
        rows.append(row)
    return rows


# ---- golden values -----------------------------------------------------------------------------


def losses_record(out, norm):
    keys = ("ce", "balancing", "balancing_raw", "balancing_hf_raw", "z", "total")
    record = {key: number(out[key]) for key in keys}
    record |= dict(grad_norm=number(norm), trained_tokens=out["trained_tokens"])
    counts = {str(l): c.tolist() for l, c in out["tokens_per_expert"].items()}
    return record | dict(tokens_per_expert=counts)


def close(name, got, want, tol, total=0.0):
    """|got - want| <= tol |want| + 1e-9 total; returns the error over |want|."""
    got, want = got.double(), want.double()
    error, size = float((got - want).norm()), float(want.norm())
    assert error <= tol * size + 1e-9 * total, f"{name}: f32 is off by {error} of {size}"
    return error / size if size > 0 else 0.0


def tolerance(name):
    narrow = ("embed_tokens", "lm_head", "model.norm", "q_proj", "k_proj", "v_proj", "o_proj")
    return 5e-6 if any(part in name for part in narrow) else 1e-5


def loss_args(case):
    return {key: case[key] for key in ("reduction", "alpha", "form", "z_alpha")}


def check_float32(config, weights, rows, case, truth, grads, norm):
    """The library in f32 agrees with the reference; returns the worst relative errors."""
    model = reference.make_model(config, weights, torch.float32)
    out = reference.batch_loss(model, rows, **loss_args(case))
    own_grads, own_norm = reference.gradients(model, out["total"])
    worst = dict(loss=abs(out["total"].item() / truth["total"].item() - 1))
    worst |= dict(grad_norm=abs(own_norm / norm - 1))
    assert max(worst.values()) <= 1e-6, worst
    largest = max(t.detach().abs().max().item() for t in truth["logits"])
    deltas = [(a - b).detach().abs().max().item() for a, b in zip(out["logits"], truth["logits"])]
    worst["logits"] = max(deltas) / largest
    assert worst["logits"] <= 1e-5, worst
    for l, counts in truth["tokens_per_expert"].items():
        assert torch.equal(counts, out["tokens_per_expert"][l]), l
    errors = {n: close(n, own_grads[n], g, tolerance(n), norm) for n, g in grads.items()}
    worst["gradient"] = max(errors.values())
    return worst, max(errors, key=errors.get)


def train_all(model, rows, case):
    return reference.train(model, rows, loss_args(case), **case["train"], steps=STEPS)


def check_train_float32(config, weights, rows, case, log, change):
    """The same 20 steps in f32; returns how far losses and changes of weights drift."""
    model = reference.make_model(config, weights, torch.float32)
    log32, change32, _ = train_all(model, rows, case)
    drift = {
        key: max(abs(a / b - 1) for a, b in zip(log32[key], log[key]))
        for key in ("total", "grad_norm")
    }
    # A step may round each weight by half a unit, which is much for one that only decays.
    drift["change"] = max(
        ((change32[n].double() - change[n]).norm() - STEPS * 6e-8 * p.norm()).item()
        / change[n].norm().item()
        for n, p in model.named_parameters()
    )
    assert drift["total"] <= 2e-6 and drift["grad_norm"] <= 5e-5 and drift["change"] <= 1e-4, drift
    return "  train f32: " + " ".join(f"{key} {x:.0e}" for key, x in drift.items())


def idle_as_asked(case, out):
    idle = case["idle_expert"]
    return idle is None or all(c[idle] == 0 for c in out["tokens_per_expert"].values())


def check_balancing(out, config):
    """The `hf` form, row by row, is what the library computes."""
    if not out["routers"][0]:
        return
    args = dict(num_experts=config.num_experts, top_k=config.num_experts_per_tok)
    rows = [load_balancing_loss_func(tuple(logits), **args) for logits in out["routers"]]
    ratio = sum(rows).item() / len(rows) / out["balancing_hf_raw"].item()
    assert abs(ratio - 1) < 1e-6, ratio  # its counts are f32


def compute(case, seed):
    """All golden values of a case, or None if the routing is not what the case asks for."""
    config = make_config(case)
    weights = make_weights(config, case, seed)
    rows = make_rows(case, config.vocab_size, seed + 1000)
    result = dict(config=config, weights=weights, rows=rows, losses={})
    with reference.double_precision():
        model = reference.make_model(config, weights, torch.float64)
        for reduction in reference.REDUCTIONS:
            out = reference.batch_loss(model, rows, **loss_args(case) | dict(reduction=reduction))
            if out["margin"] < MARGIN or not idle_as_asked(case, out):
                return None
            grads, norm = reference.gradients(model, out["total"])
            result["losses"][reduction] = losses_record(out, norm)
            if reduction == case["reduction"]:
                check_balancing(out, config)
                result |= dict(truth=out, norm=norm, margin=out["margin"])
                result |= dict(grads={n: g.clone() for n, g in grads.items()})
        if case["train"]:
            log, change, margin = train_all(model, rows, case)
            # Rounding grows over the steps, and with the size of the logits.
            if margin < MARGIN * max(1, 20 * case["router_std"]):
                return None
            result |= dict(log=log, change=change, margin=min(margin, result["margin"]))
    return result


def set_arguments(values):
    text = {k: v if isinstance(v, str) else json.dumps(v) for k, v in values.items()}
    return [f"{k}={v}" for k, v in text.items()]


def settings(case):
    """What --set is given, loss.reduction aside."""
    values = {"model.dtype": "f32", "loss.balancing_alpha": case["alpha"]}
    if case["form"] != "per_layer":
        values |= {"loss.balancing_form": case["form"]}
    return set_arguments(values | {"loss.z_alpha": case["z_alpha"]})


def train_settings(case, rows):
    """What --set is given besides, for the 20 steps."""
    optimizer, schedule = case["train"]["optimizer"], case["train"]["lr_schedule"]
    values = {"train.steps": STEPS, "train.global_batch_size": len(rows)}
    values |= {"train.max_grad_norm": case["train"]["max_grad_norm"], "data.format": "ids"}
    values |= {f"optimizer.{k}": v for k, v in optimizer.items()}
    return set_arguments(values | {f"lr_schedule.{k}": v for k, v in schedule.items()})


def make_case(case, out_dir):
    folder = out_dir / case["name"]
    shutil.rmtree(folder, ignore_errors=True)
    seed = case["seed"]
    while (result := compute(case, seed)) is None:
        seed += 1
    config, weights, rows = result["config"], result["weights"], result["rows"]
    worst, worst_name = check_float32(
        config, weights, rows, case, result["truth"], result["grads"], result["norm"]
    )
    write_folder(folder / "model", case, config, weights)
    check_folder(folder / "model", case, weights)

    (folder / "batch.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_json(folder / "losses.json", result["losses"])
    logits = {f"mb{j}": t.float() for j, t in enumerate(result["truth"]["logits"])}
    write_safetensors(folder / "logits.safetensors", logits)
    grads = {name: g.float() for name, g in result["grads"].items()}
    if case["experts"] == "fused":
        grads = fuse_experts(grads, config)
    write_safetensors(folder / "grads.safetensors", grads)
    entry = dict(name=case["name"], about=case["about"], seed=seed)
    entry |= dict(model=f"{case['name']}/model", batch=f"{case['name']}/batch.jsonl")
    entry |= dict(source_dtype=case["source_dtype"], experts=case["experts"])
    entry |= dict(reduction=case["reduction"], set=settings(case), train=None)
    if case["train"]:
        drift = check_train_float32(
            config, weights, rows, case, result["log"], result["change"]
        )
        log = {key: [number(x) for x in values] for key, values in result["log"].items()}
        change = result["change"]
        if case["experts"] == "fused":
            change = fuse_experts(change, config)
        change = {name: number(x.norm()) for name, x in change.items()}
        write_json(folder / "train.json", log | dict(change=change))
        entry["train"] = dict(set=train_settings(case, rows), file=f"{case['name']}/train.json")
    else:
        drift = ""
    margin = "-" if math.isinf(result["margin"]) else f"{result['margin']:.1e}"
    clip = case["train"]["max_grad_norm"] if case["train"] else 0
    clipped = sum(x > clip for x in result["log"]["grad_norm"]) if clip else 0
    print(
        f"{case['name']:18} seed {seed:3} margin {margin:8} norm {result['norm']:.3f} "
        f"clipped {clipped:2} f32: loss {worst['loss']:.0e} norm {worst['grad_norm']:.0e} logits "
        f"{worst['logits']:.0e} gradient {worst['gradient']:.0e} ({worst_name}){drift}",
        flush=True,
    )
    return entry


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "tests" / "golden")
    parser.add_argument("cases", nargs="*", help="make these alone, and leave the manifest")
    args = parser.parse_args()
    chosen = [case for case in CASES if not args.cases or case["name"] in args.cases]
    entries = [make_case(case, args.out) for case in chosen]
    if not args.cases:
        versions = dict(torch=torch.__version__, transformers=transformers.__version__)
        manifest = dict(made_by="scripts/golden/make_models.py", versions=versions, cases=entries)
        write_json(args.out / "manifest.json", manifest)


if __name__ == "__main__":
    main()
