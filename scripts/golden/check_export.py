"""Compare an exported HuggingFace folder with its source, in transformers.

    python scripts/golden/check_export.py EXPORTED [--source FOLDER] [--same] [--tolerance 0]

The exported folder must load with nothing missing and nothing unknown. With --source its tensors
are compared by name, shape and dtype, the files carried over byte for byte, and both are run on the
same ids; --same says that the weights should be the source's (an export after 0 steps): then every
byte and the logits must agree. Folders with fused experts are split before they are loaded, since
the pinned version of the library does not read them. Prints PASS or FAIL and why; exit 1 on FAIL.
"""

import argparse
import json
import os
import pathlib
import sys

os.environ["TOKENIZERS_PARALLELISM"] = "false"

import torch
import transformers
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM

torch.set_num_threads(1)
transformers.utils.logging.disable_progress_bar()
CARRIED = ("generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def read_tensors(folder):
    """{name: tensor} of a folder, by its index if it has one; the index must be right."""
    index_path = folder / "model.safetensors.index.json"
    shards = sorted(folder.glob("*.safetensors"))
    tensors, where = {}, {}
    for shard in shards:
        with safe_open(shard, framework="pt") as file:
            for name in file.keys():
                assert name not in tensors, f"{name} is in two shards"
                tensors[name], where[name] = file.get_tensor(name), shard.name
    assert shards, f"{folder}: no safetensors file"
    assert len(shards) == 1 or index_path.exists(), f"{folder}: shards without an index"
    if index_path.exists():
        index = json.loads(index_path.read_text())
        assert index["weight_map"] == where, f"{index_path}: weight_map is not what the shards hold"
        size = sum(t.numel() * t.element_size() for t in tensors.values())
        assert index["metadata"]["total_size"] == size, f"{index_path}: total_size is not {size}"
    return tensors


def split_experts(tensors):
    out = {}
    for name, t in tensors.items():
        at, _, which = name.rpartition(".experts.")
        for e in range(t.shape[0] if which in ("gate_up_proj", "down_proj") else 0):
            if which == "down_proj":
                out[f"{at}.experts.{e}.down_proj.weight"] = t[e]
            else:
                gate, up = t[e].chunk(2)
                out[f"{at}.experts.{e}.gate_proj.weight"] = gate
                out[f"{at}.experts.{e}.up_proj.weight"] = up
        if which not in ("gate_up_proj", "down_proj"):
            out[name] = t
    return out


def load(folder, tensors):
    """The model in f32; through from_pretrained unless the folder's experts are fused."""
    split = split_experts(tensors)
    if split.keys() == tensors.keys():
        model, info = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, output_loading_info=True, attn_implementation="eager"
        )
        for key in ("missing_keys", "unexpected_keys", "mismatched_keys"):
            assert not info[key], f"{folder}: {key}: {info[key]}"
        return model.eval()
    config = AutoConfig.from_pretrained(folder)
    if getattr(config, "rope_parameters", None):
        config.rope_theta = config.rope_parameters["rope_theta"]
        scaled = config.rope_parameters["rope_type"] != "default"
        config.rope_scaling = config.rope_parameters if scaled else None
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float()
    info = model.load_state_dict({k: v.float() for k, v in split.items()}, strict=False)
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    assert set(info.missing_keys) <= tied and not info.unexpected_keys, info
    return model.eval()


@torch.no_grad()
def logits_of(model):
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(model.config.vocab_size, (1, 48), generator=generator)
    return model(input_ids=ids, use_cache=False).logits[0]


def check(args):
    exported = read_tensors(args.exported)
    logits = logits_of(load(args.exported, exported))
    assert logits.isfinite().all(), "logits are not finite"
    if args.source is None:
        return f"{len(exported)} tensors load, logits are finite"
    source = read_tensors(args.source)
    assert exported.keys() == source.keys(), f"other names: {exported.keys() ^ source.keys()}"
    for name, t in source.items():
        got = exported[name]
        assert got.shape == t.shape, f"{name}: shape {got.shape}, source {t.shape}"
        assert got.dtype == t.dtype, f"{name}: dtype {got.dtype}, source {t.dtype}"
        if args.same:
            same = torch.equal(got.view(torch.uint8), t.view(torch.uint8))
            assert same, f"{name}: other bytes than the source"
    for name in ("config.json", *CARRIED):
        if (args.source / name).exists():
            same = (args.source / name).read_bytes() == (args.exported / name).read_bytes()
            assert same, f"{name}: other bytes than the source"
    delta = (logits - logits_of(load(args.source, source))).abs().max().item()
    if args.same:
        assert delta <= args.tolerance, f"logits differ by {delta}"
    return f"{len(exported)} tensors as in the source, logits differ by {delta:.2e}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("exported", type=pathlib.Path)
    parser.add_argument("--source", type=pathlib.Path)
    parser.add_argument("--same", action="store_true", help="the weights should be the source's")
    parser.add_argument("--tolerance", type=float, default=0.0, help="of the logits, with --same")
    args = parser.parse_args()
    try:
        print("PASS", args.exported, check(args))
    except (AssertionError, OSError, KeyError, ValueError) as error:
        print("FAIL", args.exported, error)
        sys.exit(1)


if __name__ == "__main__":
    main()
