#!/usr/bin/env python3
"""Writes the files of FSDP ranks, as verl saves them, with torch itself.

    make_fsdp.py OUT [--ranks 8] [--layers 36] [--hidden 4096] [--fill] [--sharded]

A model with the names and shapes of Qwen3 (8B unless told otherwise), in F32, sharded along the first
dimension: DTensors, or with --sharded ShardedTensors, as FSDP1 has them. Without --fill the files are
sparse, and weights are zeros. Needs torch; all ranks are
played by one process (torch's fake process group).
"""
import argparse
import json
import os

import torch
import torch.distributed as dist
from torch.distributed._shard.metadata import ShardMetadata
from torch.distributed._shard.sharded_tensor import Shard as LocalShard
from torch.distributed._shard.sharded_tensor import ShardedTensor, TensorProperties
from torch.distributed._shard.sharded_tensor.metadata import ShardedTensorMetadata
from torch.distributed.tensor import DTensor, Shard, init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore


def shapes(layers, hidden):
    inner, vocabulary, keys = 3 * hidden, 37 * hidden, hidden // 4
    yield "model.embed_tokens.weight", (vocabulary, hidden)
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        for name, shape in {"self_attn.q_proj": (hidden, hidden), "self_attn.k_proj": (keys, hidden),
                            "self_attn.v_proj": (keys, hidden), "self_attn.o_proj": (hidden, hidden),
                            "self_attn.q_norm": (128,), "self_attn.k_norm": (128,),
                            "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden),
                            "mlp.down_proj": (hidden, inner), "input_layernorm": (hidden,),
                            "post_attention_layernorm": (hidden,)}.items():
            yield f"{prefix}{name}.weight", shape
    yield "model.norm.weight", (hidden,)
    yield "lm_head.weight", (vocabulary, hidden)


def part_of(shape, rank, ranks):
    """The rank's rows, as torch.chunk cuts them."""
    each = -(-shape[0] // ranks)
    begin = min(rank * each, shape[0])
    return (min(begin + each, shape[0]) - begin, *shape[1:])


def sharded_tensor(local, shape, rank, ranks):
    """The rank's rows, with the list of all ranks' shards."""
    shards = []
    begin = 0
    for each in range(ranks):
        size = part_of(shape, each, ranks)
        if size[0] > 0:
            shards.append(ShardMetadata([begin] + [0] * (len(shape) - 1), list(size), f"rank:{each}/cpu"))
        begin += size[0]
    offsets = [min(rank * -(-shape[0] // ranks), shape[0])] + [0] * (len(shape) - 1)
    mine = [LocalShard.from_tensor_and_offsets(local, offsets, rank)] if local.shape[0] > 0 else []
    metadata = ShardedTensorMetadata(shards, torch.Size(shape), TensorProperties(dtype=local.dtype))
    return ShardedTensor._init_from_local_shards_and_global_metadata(mine, metadata)


def write_rank(out, rank, options):
    dist.init_process_group("fake", rank=rank, world_size=options.ranks, store=FakeStore())
    mesh = init_device_mesh("cpu", (options.ranks,), mesh_dim_names=("fsdp",))
    state = {}
    for name, shape in shapes(options.layers, options.hidden):
        local = torch.empty(part_of(shape, rank, options.ranks))
        if options.fill:
            local.normal_(0, 0.02)
        if options.sharded:
            state[name] = sharded_tensor(local, shape, rank, options.ranks)
            continue
        stride = torch.empty(shape, device="meta").stride()
        state[name] = DTensor.from_local(local, mesh, [Shard(0)], run_check=False,
                                         shape=torch.Size(shape), stride=stride)
    path = os.path.join(out, f"model_world_size_{options.ranks}_rank_{rank}.pt")
    if options.fill:
        torch.save(state, path)
    else:
        with torch.serialization.skip_data():
            torch.save(state, path)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--layers", type=int, default=36)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--fill", action="store_true")
    parser.add_argument("--sharded", action="store_true")
    options = parser.parse_args()
    os.makedirs(os.path.join(options.out, "huggingface"), exist_ok=True)
    for rank in range(options.ranks):
        write_rank(options.out, rank, options)
    with open(os.path.join(options.out, "fsdp_config.json"), "w") as file:
        json.dump({"FSDP_version": 2, "world_size": options.ranks}, file)
    with open(os.path.join(options.out, "huggingface", "config.json"), "w") as file:
        json.dump({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"],
                   "num_hidden_layers": options.layers, "hidden_size": options.hidden,
                   "torch_dtype": "bfloat16"}, file)


if __name__ == "__main__":
    main()
