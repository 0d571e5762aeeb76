#!/usr/bin/env python3
"""Writes a small FP8 checkpoint with the names, the layout and the quantization of DeepSeek-V3.

    make_demo.py OUT [--hidden N]

The weights are pseudo-random numbers, the same on every machine; a loader can run the model, but it
has learnt nothing. Needs nothing but Python's standard library.
"""
import argparse
import json
import os
import random
import struct

BLOCK = 128
SHARDS = 2


def config(hidden):
    return {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "torch_dtype": "bfloat16",
        "vocab_size": 256,
        "hidden_size": hidden,
        "intermediate_size": hidden * 2 + 16,
        "moe_intermediate_size": hidden // 2 + 8,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "n_shared_experts": 1,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "routed_scaling_factor": 2.5,
        "norm_topk_prob": True,
        "first_k_dense_replace": 1,
        "q_lora_rank": hidden // 4,
        "kv_lora_rank": hidden // 4,
        "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 16,
        "v_head_dim": 32,
        "hidden_act": "silu",
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-06,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "quantization_config": {
            "activation_scheme": "dynamic",
            "fmt": "e4m3",
            "quant_method": "fp8",
            "weight_block_size": [BLOCK, BLOCK],
        },
    }


def tensors(c):
    """(name, kind, shape) in the order of the model; kind: fp8, bf16, norm or f32"""
    hidden, heads = c["hidden_size"], c["num_attention_heads"]
    q_head = c["qk_nope_head_dim"] + c["qk_rope_head_dim"]
    q_rank, kv_rank = c["q_lora_rank"], c["kv_lora_rank"]

    def mlp(prefix, width):
        yield f"{prefix}.gate_proj.weight", "fp8", [width, hidden]
        yield f"{prefix}.up_proj.weight", "fp8", [width, hidden]
        yield f"{prefix}.down_proj.weight", "fp8", [hidden, width]

    yield "model.embed_tokens.weight", "bf16", [c["vocab_size"], hidden]
    for layer in range(c["num_hidden_layers"]):
        p = f"model.layers.{layer}"
        yield f"{p}.input_layernorm.weight", "norm", [hidden]
        a = f"{p}.self_attn"
        yield f"{a}.q_a_proj.weight", "fp8", [q_rank, hidden]
        yield f"{a}.q_a_layernorm.weight", "norm", [q_rank]
        yield f"{a}.q_b_proj.weight", "fp8", [heads * q_head, q_rank]
        yield f"{a}.kv_a_proj_with_mqa.weight", "fp8", [kv_rank + c["qk_rope_head_dim"], hidden]
        yield f"{a}.kv_a_layernorm.weight", "norm", [kv_rank]
        yield f"{a}.kv_b_proj.weight", "fp8", [
            heads * (c["qk_nope_head_dim"] + c["v_head_dim"]), kv_rank]
        yield f"{a}.o_proj.weight", "fp8", [hidden, heads * c["v_head_dim"]]
        yield f"{p}.post_attention_layernorm.weight", "norm", [hidden]
        if layer < c["first_k_dense_replace"]:
            yield from mlp(f"{p}.mlp", c["intermediate_size"])
            continue
        yield f"{p}.mlp.gate.weight", "bf16", [c["n_routed_experts"], hidden]
        yield f"{p}.mlp.gate.e_score_correction_bias", "f32", [c["n_routed_experts"]]
        for expert in range(c["n_routed_experts"]):
            yield from mlp(f"{p}.mlp.experts.{expert}", c["moe_intermediate_size"])
        yield from mlp(f"{p}.mlp.shared_experts",
                       c["moe_intermediate_size"] * c["n_shared_experts"])
    yield "model.norm.weight", "norm", [hidden]
    yield "lm_head.weight", "bf16", [c["vocab_size"], hidden]


def numel(shape):
    count = 1
    for extent in shape:
        count *= extent
    return count


def bf16(values):
    """The upper halves of F32: truncated, which is fine for made-up numbers."""
    return b"".join(struct.pack("<f", v)[2:] for v in values)


# FP8 codes 0x7f and 0xff are NaN: never stored in a weight.
FINITE = bytes(code if code & 0x7F != 0x7F else code - 1 for code in range(256))


def stored(name, kind, shape, rng):
    """(name, dtype, shape, bytes) of what stands for one tensor in the file"""
    if kind == "norm":
        yield name, "BF16", shape, bf16([1.0] * numel(shape))
    elif kind == "bf16":
        yield name, "BF16", shape, bf16(rng.gauss(0, 0.05) for _ in range(numel(shape)))
    elif kind == "f32":
        yield name, "F32", shape, b"".join(
            struct.pack("<f", rng.gauss(0, 0.01)) for _ in range(numel(shape)))
    else:
        yield name, "F8_E4M3", shape, rng.randbytes(numel(shape)).translate(FINITE)
        blocks = [-(-extent // BLOCK) for extent in shape]
        yield name + "_scale_inv", "F32", blocks, b"".join(
            struct.pack("<f", rng.uniform(1e-4, 4e-4)) for _ in range(numel(blocks)))


def write_shard(path, entries):
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, dtype, shape, data in entries:
        header[name] = {"dtype": dtype, "shape": shape,
                        "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, _, _, data in entries:
            file.write(data)
    return offset


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out")
    parser.add_argument("--hidden", type=int, default=512)
    options = parser.parse_args()
    rng = random.Random("ckfs demo")
    model = config(options.hidden)
    entries = [e for t in tensors(model) for e in stored(*t, rng)]
    os.makedirs(options.out, exist_ok=True)

    weight_map, total, per_shard = {}, 0, -(-len(entries) // SHARDS)
    for number in range(SHARDS):
        name = f"model-{number + 1:05d}-of-{SHARDS:06d}.safetensors"
        part = entries[number * per_shard:(number + 1) * per_shard]
        total += write_shard(os.path.join(options.out, name), part)
        weight_map.update({entry[0]: name for entry in part})
    for name, value in (
            ("model.safetensors.index.json",
             {"metadata": {"total_size": total}, "weight_map": weight_map}),
            ("config.json", model),
            ("generation_config.json", {"bos_token_id": 1, "eos_token_id": 2})):
        with open(os.path.join(options.out, name), "w") as file:
            json.dump(value, file, indent=2)
            file.write("\n")
    print(f"{options.out}: {len(entries)} tensors, {total / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
