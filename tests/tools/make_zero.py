#!/usr/bin/env python3
"""Makes a ZeRO-3 checkpoint as DeepSpeed saves it, of a large model.

    make_zero.py MODEL OUT [--ranks N] [--fill]

MODEL: llama-70b (723 parameters, 276 GB of fp32), llama-1b (164 parameters, 4.1 GB of fp32), llama-tiny
(21 parameters, 0.4 MB of fp32; a LlamaForCausalLM with 4 heads and 2 of keys and values).
Without --fill the rank files are sparse: real pickles and zip directories, no data (a few MB on disk
whatever the model), for mount time and memory. With --fill the fp32 partitions hold pseudo-random
numbers, for throughput; the Adam moments stay holes, for nobody may read them.
Needs nothing but Python's standard library.
"""
import argparse
import hashlib
import math
import pathlib
from collections import OrderedDict

import torch_writer

# layers, hidden, intermediate, width of keys and values, vocabulary
MODELS = {"llama-70b": (80, 8192, 28672, 1024, 32000), "llama-1b": (18, 2048, 5632, 2048, 32000),
          "llama-tiny": (2, 64, 128, 32, 256)}
SUB_GROUP = 10**9  # DeepSpeed's default


def parameters(model):
    layers, hidden, inner, keys, vocabulary = MODELS[model]
    yield "model.embed_tokens.weight", [vocabulary, hidden]
    for n in range(layers):
        layer = f"model.layers.{n}."
        yield layer + "self_attn.q_proj.weight", [hidden, hidden]
        yield layer + "self_attn.k_proj.weight", [keys, hidden]
        yield layer + "self_attn.v_proj.weight", [keys, hidden]
        yield layer + "self_attn.o_proj.weight", [hidden, hidden]
        yield layer + "mlp.gate_proj.weight", [inner, hidden]
        yield layer + "mlp.up_proj.weight", [inner, hidden]
        yield layer + "mlp.down_proj.weight", [hidden, inner]
        yield layer + "input_layernorm.weight", [hidden]
        yield layer + "post_attention_layernorm.weight", [hidden]
    yield "model.norm.weight", [hidden]
    yield "lm_head.weight", [vocabulary, hidden]


def sub_groups(listed, ranks):
    """[[(name, shape)]]: closed once what a rank holds of one reaches the limit."""
    groups, held = [[]], 0
    for name, shape in listed:
        if held >= SUB_GROUP:
            groups.append([])
            held = 0
        groups[-1].append((name, shape))
        held += math.ceil(math.prod(shape) / ranks)
    return groups


class Noise:
    """Finite fp32 numbers, cut from one pool at a moving offset."""

    def __init__(self):
        raw = bytearray(hashlib.shake_256(b"make_zero").digest(8 << 20))
        raw[3::4] = bytes(byte & 0x80 | 0x3C for byte in raw[3::4])  # |x| about 2^-7
        self.pool, self.at = bytes(raw), 0

    def write(self, file, name, size):
        while size:
            piece = self.pool[self.at:self.at + size]
            file.write(piece)
            size -= len(piece)
            self.at = (self.at + len(piece) + 4 * 1009) % len(self.pool) // 4 * 4


def model_file(path, listed, groups, ranks):
    pickler = torch_writer.Pickler()
    module = OrderedDict((name, pickler.tensor([0], "BFloat16")) for name, _ in listed)
    shapes = [OrderedDict((name, torch_writer.Size(shape)) for name, shape in group)
              for group in groups]
    torch_writer.write(path, pickler, {
        "module": module, "buffer_names": [], "optimizer": None, "param_shapes": shapes,
        "frozen_param_shapes": None, "shared_params": {}, "frozen_param_fragments": None,
        "lr_scheduler": None, "data_sampler": None, "random_ltd": None,
        "sparse_tensor_module_names": set(), "skipped_steps": 0, "global_steps": 500,
        "global_samples": 500 * ranks, "dp_world_size": ranks, "mp_world_size": 1,
        "ds_config": {"bf16": {"enabled": True}, "zero_optimization": {"stage": 3}},
        "ds_version": "0.19.8",
    })


def optimizer_file(path, groups, ranks, fill):
    pickler = torch_writer.Pickler()
    flat, state = [], {}
    for k, group in enumerate(groups):
        numel = sum(math.ceil(math.prod(shape) / ranks) for _, shape in group)
        # Moments first: what is wanted then does not begin near the file's beginning.
        state[k] = {"step": pickler.tensor([]), "exp_avg": pickler.tensor([numel]),
                    "exp_avg_sq": pickler.tensor([numel])}
        flat.append(pickler.tensor([numel], name="fp32", attributes={"ds_id": f"0_{k}"}))
    optimizer = {"state": state, "param_groups": [{
        "lr": 1e-5, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0, "params": [0]}]}
    torch_writer.write(path, pickler, {
        "optimizer_state_dict": {
            "zero_stage": torch_writer.Stage(3), "loss_scaler": None, "dynamic_loss_scale": False,
            "overflow": False, "partition_count": ranks, "optimizer_state_dict": optimizer,
            "fp32_flat_groups": flat,
        },
        "ds_config": {"bf16": {"enabled": True}, "zero_optimization": {"stage": 3}},
        "ds_version": "0.19.8",
    }, fill)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--fill", action="store_true")
    arguments = parser.parse_args()
    listed = list(parameters(arguments.model))
    groups = sub_groups(listed, arguments.ranks)
    tag = arguments.out / "global_step500"
    tag.mkdir(parents=True)
    fill = Noise().write if arguments.fill else None
    for rank in range(arguments.ranks):
        where = f"zero_pp_rank_{rank}_mp_rank_00"
        model_file(tag / f"{where}_model_states.pt", listed, groups, arguments.ranks)
        optimizer_file(tag / f"bf16_{where}_optim_states.pt", groups, arguments.ranks, fill)
    (arguments.out / "latest").write_text("global_step500")
    size = 4 * sum(math.prod(shape) for _, shape in listed)
    print(f"{arguments.out}: {len(listed)} parameters, {size / 1e9:.1f} GB of fp32, "
          f"{arguments.ranks} ranks")


if __name__ == "__main__":
    main()
