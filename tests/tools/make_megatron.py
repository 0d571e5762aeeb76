#!/usr/bin/env python3
"""Makes a checkpoint of Megatron-Core (torch_dist) with the shapes of DeepSeek-V3, as 512 ranks save
it with an optimizer; weights are holes in sparse files.

    make_megatron.py OUT [--layers 61] [--experts 256] [--without-optimizer] [--all-items] [--fill]

OUT/ckpt is the run, OUT/config the directory for --config. Layers are numbered; experts of a layer
are one tensor in a chunk for each expert and half; other matrices are cut in 8 by tensor parallelism.
Each item is a torch file whose elements are a hole; its own text is written for the first item of
each tensor, which opening reads, or for all of them (--all-items), which reading weights needs.
--fill writes elements too, which are pseudo-random.
Needs nothing but Python's standard library.
"""
import argparse
import json
import pathlib
import pickle
import random
import tempfile

import make_dcp
import torch_writer

RANKS, TP = 512, 8
H, F, DENSE, V, N = 7168, 2048, 18432, 129280, 128
Q, KV, NOPE, ROPE, HEAD = 1536, 512, 128, 64, 128
KINDS = {"bfloat16": "BFloat16", "float32": "Float"}


TensorProperties = torch_writer.global_of("torch.distributed.checkpoint.metadata", "TensorProperties",
                                          __getstate__=lambda self: (self.dtype,
                                                                     *make_dcp.PROPERTIES[1:]))
DTYPES = {name: torch_writer.global_of("torch", name) for name in KINDS}


def properties(dtype):
    made = TensorProperties()
    made.dtype = DTYPES[dtype]
    return made


class Item:
    """The torch file of a chunk of one shape: the texts around its elements."""

    def __init__(self, shape, dtype):
        pickler, places = torch_writer.Pickler(), []
        tensor = pickler.tensor(list(shape), KINDS[dtype], name="chunk")

        def fill(file, _, size):
            places.append((file.tell(), size))
            file.seek(size, 1)

        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory) / "archive"
            torch_writer.write(path, pickler, tensor, fill)
            self.length = path.stat().st_size
            (self.begin, size), = places
            self.end = self.begin + size
            with open(path, "rb") as file:
                self.head = file.read(self.begin)
                file.seek(self.end)
                self.tail = file.read()

    def write(self, file, at, noise=b""):
        file.seek(at)
        file.write(self.head)
        for done in range(0, self.end - self.begin if noise else 0, len(noise) or 1):
            file.write(noise[:self.end - self.begin - done])
        file.seek(at + self.end)
        file.write(self.tail)


def weights(layers, experts):
    """[(name, dtype, shape, parts of each dimension)]"""
    def attention(p):
        a = p + "self_attention."
        return [(p + "input_layernorm.weight", (H,), ()),
                (a + "linear_q_down_proj.weight", (Q, H), (TP,)),
                (a + "linear_q_up_proj.layer_norm_weight", (Q,), ()),
                (a + "linear_q_up_proj.weight", (N * (NOPE + ROPE), Q), (TP,)),
                (a + "linear_kv_down_proj.weight", (KV + ROPE, H), (TP,)),
                (a + "linear_kv_up_proj.layer_norm_weight", (KV,), ()),
                (a + "linear_kv_up_proj.weight", (N * (NOPE + HEAD), KV), (TP,)),
                (a + "linear_proj.weight", (H, N * HEAD), (1, TP))]

    def sparse(p):
        e, s = p + "mlp.experts.experts.", p + "mlp.shared_experts."
        return [(p + "pre_mlp_layernorm.weight", (H,), ()), (p + "mlp.router.weight", (experts, H), ()),
                (p + "mlp.router.expert_bias", (experts,), ()),
                (e + "linear_fc1.weight", (experts, 2 * F, H), (experts, 2)),
                (e + "linear_fc2.weight", (experts, H, F), (experts,)),
                (s + "linear_fc1.weight", (2 * F, H), (2 * TP,)), (s + "linear_fc2.weight", (H, F), (1, TP))]

    found = [("embedding.word_embeddings.weight", (V, H), (TP,)), ("output_layer.weight", (V, H), (TP,)),
             ("decoder.final_layernorm.weight", (H,), ())]
    for i in range(layers):
        p = f"decoder.layers.{i}."
        found += attention(p)
        found += sparse(p) if i >= 3 else [
            (p + "mlp.linear_fc1.layer_norm_weight", (H,), ()),
            (p + "mlp.linear_fc1.weight", (2 * DENSE, H), (2 * TP,)),
            (p + "mlp.linear_fc2.weight", (H, DENSE), (1, TP))]
    return [(name, "float32" if name.endswith("expert_bias") else "bfloat16", shape, parts)
            for name, shape, parts in found]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--layers", type=int, default=61)
    parser.add_argument("--experts", type=int, default=256)
    parser.add_argument("--without-optimizer", action="store_true")
    parser.add_argument("--all-items", action="store_true")
    parser.add_argument("--fill", action="store_true", help="implies --all-items")
    arguments = parser.parse_args()
    noise = random.Random(1).randbytes(4 << 20) if arguments.fill else b""
    directory = arguments.out / "ckpt" / "iter_0001000"
    directory.mkdir(parents=True)
    tensors = [(name, dtype, shape, parts, True)
               for name, dtype, shape, parts in weights(arguments.layers, arguments.experts)]
    if not arguments.without_optimizer:
        tensors += [(f"optimizer.state.{kind}.{name}", "float32", shape, parts, False)
                    for kind in ("param", "exp_avg", "exp_avg_sq")
                    for name, _, shape, parts, _ in tensors if not name.endswith("expert_bias")]
    kinds, items, of_dtype = {}, {}, {}
    ends, state, places, turn = [0] * RANKS, {}, {}, 0
    files = [open(directory / f"__{rank}_0.distcp", "wb") for rank in range(RANKS)]
    for name, dtype, shape, parts, is_weight in tensors:
        parts = (*parts, *[1] * (len(shape) - len(parts)))
        sizes = tuple(extent // part for extent, part in zip(shape, parts))
        if (sizes, dtype) not in kinds:
            kinds[sizes, dtype] = Item(sizes, dtype)
        item = kinds[sizes, dtype]
        count = 1
        for part in parts:
            count *= part
        chunks = []
        for number in range(count):
            offset, rest = [], number
            for extent, part in zip(reversed(sizes), reversed(parts)):
                offset.insert(0, rest % part * extent)
                rest //= part
            offset = torch_writer.Size(offset)
            chunks.append(make_dcp.ChunkStorageMetadata(offsets=offset, sizes=torch_writer.Size(sizes)))
            rank, turn = turn % RANKS, turn + 1
            places[make_dcp.MetadataIndex(fqn=name, offset=offset, index=number)] = make_dcp.StorageInfo(
                relative_path=f"__{rank}_0.distcp", offset=ends[rank], length=item.length)
            if is_weight and (number == 0 or arguments.all_items or noise):
                item.write(files[rank], ends[rank], noise)
            ends[rank] += item.length
        if dtype not in of_dtype:
            of_dtype[dtype] = properties(dtype)
        state[name] = make_dcp.TensorStorageMetadata(properties=of_dtype[dtype],
                                                     size=torch_writer.Size(shape), chunks=chunks)
        items[name] = count
    for rank, file in enumerate(files):
        file.truncate(ends[rank])
        file.close()
    with open(directory / ".metadata", "wb") as out:
        pickle.dump(make_dcp.Metadata(state_dict_metadata=state, planner_data=None,
                                      storage_data=places), out)
    (directory / "metadata.json").write_text(json.dumps({"sharded_backend": "torch_dist",
                                                         "sharded_backend_version": 1}))
    (arguments.out / "ckpt" / "latest_checkpointed_iteration.txt").write_text("1000")
    (arguments.out / "config").mkdir()
    (arguments.out / "config" / "config.json").write_text(json.dumps({
        "model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"], "vocab_size": V,
        "hidden_size": H, "num_attention_heads": N, "num_key_value_heads": N, "q_lora_rank": Q,
        "kv_lora_rank": KV, "qk_nope_head_dim": NOPE, "qk_rope_head_dim": ROPE, "v_head_dim": HEAD,
        "intermediate_size": DENSE, "moe_intermediate_size": F, "n_routed_experts": arguments.experts,
        "n_shared_experts": 1, "first_k_dense_replace": 3, "num_hidden_layers": arguments.layers,
        "num_nextn_predict_layers": 1, "tie_word_embeddings": False, "topk_method": "noaux_tc",
        "torch_dtype": "bfloat16"}))
    print(f"{arguments.out}: {len(tensors)} tensors in {sum(items.values())} items of {RANKS} ranks")


if __name__ == "__main__":
    main()
