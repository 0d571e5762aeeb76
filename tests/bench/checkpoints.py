"""The checkpoints that the benchmark measures on: made once a run, in its work directory."""
import json
import math
import os
import random
import struct
import subprocess
import sys

from harness import MIB, TOOLS

FILE_BYTES = 1 << 30  # of a view's file: pages are then recycled, not fetched anew from the host
WIDTH = {"F8_E4M3": 1, "U8": 1, "BF16": 2, "F16": 2, "F32": 4, "I32": 4, "I64": 8}
BLOCK = 128


def nbytes(dtype, shape):
    return WIDTH[dtype] * math.prod(shape)


def quantized(name, rows, columns):
    """An FP8 matrix and the F32 scales of its blocks."""
    yield name, "F8_E4M3", [rows, columns]
    yield name + "_scale_inv", "F32", [-(-rows // BLOCK), -(-columns // BLOCK)]


class Noise:
    """Finite pseudo-random values of each dtype, cut from one pool."""

    def __init__(self):
        raw = os.urandom(4 * MIB)
        small = bytearray(raw)
        small[1::2] = bytes(byte & 0x80 | 0x3C for byte in raw[1::2])  # |x| about 2^-7
        self.pools = {"F8_E4M3": bytes(b ^ 1 if b & 0x7F == 0x7F else b for b in raw),  # no NaN
                      "BF16": bytes(small), "F16": bytes(small), "U8": raw, "I32": raw,
                      "E8M0": bytes(b & 7 | 0x70 for b in raw),
                      "F32": struct.pack("<f", 0.0078125) * MIB}

    def write(self, file, dtype, size):
        pool = memoryview(self.pools[dtype])
        offset = os.urandom(2)[0] * 4096 if dtype != "F32" else 0
        while size:
            piece = pool[offset:offset + size]
            file.write(piece)
            size -= len(piece)
            offset = 0


def write_model(directory, shards, config):
    """`shards`: for each file, its tensors as (name, dtype, shape), or with their bytes as well."""
    os.makedirs(directory)
    weight_map, noise = {}, Noise()
    for number, tensors in enumerate(shards):
        tensors = list(tensors)
        name = f"model-{number + 1:05d}-of-{len(shards):05d}.safetensors"
        header, at = {"__metadata__": {"format": "pt"}}, 0
        for tensor, dtype, shape, *_ in tensors:
            size = nbytes(dtype, shape)
            header[tensor] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
            weight_map[tensor] = name
            at += size
        raw = json.dumps(header, separators=(",", ":")).encode()
        with open(os.path.join(directory, name), "wb") as f:
            f.write(struct.pack("<Q", len(raw)) + raw)
            for tensor, dtype, shape, *content in tensors:
                if content:
                    f.write(content[0])
                    continue
                exponents = dtype == "U8" and "scale" in tensor
                noise.write(f, "E8M0" if exponents else dtype, nbytes(dtype, shape))
    with open(os.path.join(directory, "config.json"), "w") as f:
        json.dump(config, f)
    with open(os.path.join(directory, "model.safetensors.index.json"), "w") as f:
        json.dump({"metadata": {}, "weight_map": weight_map}, f)
    return directory


FP8 = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK]}}
DEEPSEEK = {"model_type": "deepseek_v3", "torch_dtype": "bfloat16", **FP8}


def as_saved(tensors):
    """In the order of safetensors' save_file: wide dtypes first, so all scales before all weights."""
    return sorted(tensors, key=lambda tensor: (-WIDTH[tensor[1]], tensor[0]))


def two_files(bench, name, matrix, config, order=list):
    """Two files that each give FILE_BYTES of BF16: matrix(module, rows, columns) has the tensors of
    one weight."""
    directory = bench.path(name)
    if not os.path.exists(directory):
        rows, columns = 2048, 7168
        write_model(directory, [
            order(entry for k in range(FILE_BYTES // (2 * rows * columns)) for entry in
                  matrix(f"model.layers.{shard}.mlp.experts.{k}.down_proj", rows, columns))
            for shard in range(2)], config)
    return directory


def fp8(bench):
    return two_files(bench, "fp8", lambda module, *shape: quantized(module + ".weight", *shape),
                     DEEPSEEK)


def fp8_as_saved(bench):
    return two_files(bench, "fp8-as-saved",
                     lambda module, *shape: quantized(module + ".weight", *shape), DEEPSEEK, as_saved)


def half_fp8(bench, size):
    """Six files of `size` bytes together, 4 of 10 in FP8: its BF16 view is 1.4 times as large."""
    directory = bench.path("half-fp8")
    rows, columns = 2048, 4096
    layers = max(1, round(size * 0.4 / 6 / (rows * columns)))
    if not os.path.exists(directory):
        write_model(directory, [
            [entry for k in range(layers) for entry in (
                *quantized(f"model.layers.{shard}.{k}.mlp.up_proj.weight", rows, columns),
                (f"model.layers.{shard}.{k}.attn.weight", "BF16", [rows * 3 // 4, columns]))]
            for shard in range(6)], DEEPSEEK)
    return directory


def llama(bench):
    """A model that transformers can load: 0.24 GB in five files, FP8 with scales but for the
    embeddings and norms, and 0.45 GB as BF16."""
    directory = bench.path("llama")
    layers, hidden, inner, vocabulary = 16, 1024, 2816, 8192

    def layer(n):
        p = f"model.layers.{n}."
        yield p + "input_layernorm.weight", "BF16", [hidden]
        for name in "qkvo":
            yield from quantized(f"{p}self_attn.{name}_proj.weight", hidden, hidden)
        yield p + "post_attention_layernorm.weight", "BF16", [hidden]
        yield from quantized(p + "mlp.gate_proj.weight", inner, hidden)
        yield from quantized(p + "mlp.up_proj.weight", inner, hidden)
        yield from quantized(p + "mlp.down_proj.weight", hidden, inner)

    if not os.path.exists(directory):
        shards = [[("model.embed_tokens.weight", "BF16", [vocabulary, hidden])]]
        shards += [[entry for n in range(first, first + 4) for entry in layer(n)]
                   for first in range(0, layers, 4)]
        shards[-1] += [("model.norm.weight", "BF16", [hidden]),
                       ("lm_head.weight", "BF16", [vocabulary, hidden])]
        write_model(directory, shards, {
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden,
            "intermediate_size": inner, "num_hidden_layers": layers, "num_attention_heads": 16,
            "num_key_value_heads": 16, "vocab_size": vocabulary, "tie_word_embeddings": False,
            "torch_dtype": "bfloat16", **FP8})
    return directory


def experts(bench):
    """Two files of experts: some of 5.8 MB as BF16, some of 1 MB as they are stored."""
    directory = bench.path("experts")
    if not os.path.exists(directory):
        write_model(directory, [
            [entry for k in range(48) for entry in (
                *quantized(f"model.layers.{shard}.mlp.experts.{k}.up_proj.weight", 1408, 2048),
                *quantized(f"model.layers.{shard}.mlp.small.{k}.up_proj.weight", 512, 2048))]
            for shard in range(2)], DEEPSEEK)
    return directory


def one_shard(bench, size):
    """One file of `size` bytes of BF16, in matrices of 16 MiB."""
    directory = bench.path(f"one-{size}")
    if not os.path.exists(directory):
        write_model(directory, [[(f"model.layers.{k}.weight", "BF16", [2048, 4096])
                                 for k in range(size // (16 * MIB))]], {"torch_dtype": "bfloat16"})
    return directory


def many_shards(bench, count):
    """`count` files of one small tensor each."""
    directory = bench.path(f"shards-{count}")
    if not os.path.exists(directory):
        write_model(directory, [[(f"model.layers.{k}.weight", "BF16", [64, 64])]
                                for k in range(count)], {"torch_dtype": "bfloat16"})
    return directory


def matrix(bench, rows, columns, name="matrix", fill=False):
    """A BF16 matrix without a header; a hole unless `fill`."""
    path = bench.path(name)
    with open(path, "wb") as f:
        if fill:
            Noise().write(f, "BF16", 2 * rows * columns)
        else:
            f.truncate(2 * rows * columns)
    return path


def plain(bench):
    path = bench.path("plain")
    if not os.path.exists(path):
        with open(path, "wb") as f:
            for _ in range(FILE_BYTES // MIB):
                f.write(os.urandom(4096) * 256)
    return path


def tool(name, directory, *options, python=sys.executable):
    """A checkpoint that tests/tools/`name` makes."""
    command = [python, os.path.join(TOOLS, name), *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return directory


def scale_checkpoint(directory, model, *options):
    return tool("make_scale.py", directory, model, directory, *options)


def zero_checkpoint(directory, model, *options):
    return tool("make_zero.py", directory, model, directory, *options)


def fsdp_checkpoint(directory, *options):
    python = os.path.join(TOOLS, "..", "..", ".venv", "hf", "bin", "python")
    return tool("make_fsdp.py", directory, directory, *options, python=python)


def megatron_checkpoint(directory, *options):
    """-> the run, and the options that mount it."""
    tool("make_megatron.py", directory, directory, *options)
    return os.path.join(directory, "ckpt"), ("--config", os.path.join(directory, "config"))


def dcp_checkpoint(directory, *options):
    return tool("make_dcp.py", directory, directory, *options)


# Quantized checkpoints of the rows `quantized`, in a few matrices each.

def compressed(format, weights):
    """The configuration of compressed-tensors with one group."""
    return {"torch_dtype": "bfloat16", "model_type": "qwen3_moe", "quantization_config": {
        "quant_method": "compressed-tensors", "format": format, "version": "0.20.0",
        "quantization_status": "compressed", "ignore": [],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}}}


def int4_matrix(module, rows, columns):
    yield module + ".weight_packed", "I32", [rows, columns // 8]
    yield module + ".weight_scale", "BF16", [rows, columns // 32]
    yield module + ".weight_shape", "I64", [2], struct.pack("<2q", rows, columns)


INT4 = compressed("pack-quantized", {"num_bits": 4, "type": "int", "symmetric": True,
                                     "strategy": "group", "group_size": 32})


def int4(bench):
    """In groups of 32."""
    return two_files(bench, "int4", int4_matrix, INT4)


def gpt_oss(bench):
    """A file that gives about FILE_BYTES of BF16: the experts of one layer."""
    directory = bench.path("gpt-oss")
    experts, size = 20, 2880
    base = "model.layers.0.mlp.experts."
    if not os.path.exists(directory):
        write_model(directory, [[
            (base + "gate_up_proj_blocks", "U8", [experts, 2 * size, size // 32, 16]),
            (base + "gate_up_proj_scales", "U8", [experts, 2 * size, size // 32]),
            (base + "gate_up_proj_bias", "BF16", [experts, 2 * size]),
            (base + "down_proj_blocks", "U8", [experts, size, size // 32, 16]),
            (base + "down_proj_scales", "U8", [experts, size, size // 32]),
            (base + "down_proj_bias", "BF16", [experts, size])]],
            {"model_type": "gpt_oss", "torch_dtype": "bfloat16", "hidden_size": size,
             "intermediate_size": size, "num_local_experts": experts,
             "quantization_config": {"quant_method": "mxfp4"}})
    return directory


def column_codes(bench, method, any_order=False, size=8192):
    """GPTQ or AWQ: three square matrices in groups of 128."""
    directory = bench.path(f"{method}-{any_order}")

    def one(module):
        codes = [size, size // 8] if method == "awq" else [size // 8, size]
        yield module + ".qweight", "I32", codes
        yield module + ".qzeros", "I32", [size // 128, size // 8]
        yield module + ".scales", "F16", [size // 128, size]
        if method == "gptq":
            order = [i // 128 for i in range(size)]
            if any_order:
                random.Random(module).shuffle(order)
            yield module + ".g_idx", "I32", [size], struct.pack(f"<{size}i", *order)

    if not os.path.exists(directory):
        write_model(directory, [[entry for k in range(3) for entry in
                                 one(f"model.layers.{k}.mlp.up_proj")]],
                    {"torch_dtype": "float16", "model_type": "llama", "quantization_config": {
                        "quant_method": method, "bits": 4, "group_size": 128,
                        "desc_act": any_order, "zero_point": True, "version": "gemm",
                        "checkpoint_format": "gptq"}})
    return directory


def int4_in_order(bench, rows=4096, columns=8192):
    """int4 in groups of 128 whose columns have any order (weight_g_idx)."""
    directory = bench.path("int4-order")

    def one(module):
        order = [i // 128 for i in range(columns)]
        random.Random(module).shuffle(order)
        yield module + ".weight_packed", "I32", [rows, columns // 8]
        yield module + ".weight_scale", "BF16", [rows, columns // 128]
        yield module + ".weight_shape", "I64", [2], struct.pack("<2q", rows, columns)
        yield module + ".weight_g_idx", "I32", [columns], struct.pack(f"<{columns}i", *order)

    if not os.path.exists(directory):
        write_model(directory, [[entry for k in range(6) for entry in
                                 one(f"model.layers.{k}.mlp.up_proj")]],
                    compressed("pack-quantized", {
                        "num_bits": 4, "type": "int", "symmetric": True, "strategy": "group",
                        "group_size": 128, "actorder": "group"}))
    return directory


def nf4(bench, rows=4096, columns=8192):
    """bitsandbytes with nested scales."""
    directory = bench.path("nf4")
    state = json.dumps({"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16",
                        "shape": [rows, columns], "nested_blocksize": 256,
                        "nested_dtype": "float32", "nested_offset": 0.03}).encode()

    def one(name):
        blocks = rows * columns // 64
        yield name, "U8", [rows * columns // 2, 1]
        yield name + ".absmax", "U8", [blocks]
        yield name + ".quant_map", "F32", [16]
        yield name + ".nested_absmax", "F32", [blocks // 256]
        yield name + ".nested_quant_map", "F32", [256]
        yield name + ".quant_state.bitsandbytes__nf4", "U8", [len(state)], state

    if not os.path.exists(directory):
        write_model(directory, [[entry for k in range(6) for entry in
                                 one(f"model.layers.{k}.mlp.up_proj.weight")]],
                    {"torch_dtype": "bfloat16", "model_type": "llama",
                     "quantization_config": {"quant_method": "bitsandbytes"}})
    return directory


def nvfp4(bench, rows=4096, columns=8192):
    directory = bench.path("nvfp4")

    def one(module):
        yield module + ".weight_packed", "U8", [rows, columns // 2]
        yield module + ".weight_scale", "F8_E4M3", [rows, columns // 16]
        yield module + ".weight_global_scale", "F32", [1]

    if not os.path.exists(directory):
        write_model(directory, [[entry for k in range(6) for entry in
                                 one(f"model.layers.{k}.mlp.up_proj")]],
                    compressed("nvfp4-pack-quantized", {
                        "num_bits": 4, "type": "float", "symmetric": True,
                        "strategy": "tensor_group", "group_size": 16}))
    return directory


def experts_by_one(bench, experts=24, inner=1024, hidden=2048):
    """A layer of a mixture whose experts are int4 matrices of their own."""
    directory = bench.path("experts-int4")
    if not os.path.exists(directory):
        write_model(directory, [[entry for e in range(experts) for part, rows, columns in (
            ("gate_proj", inner, hidden), ("up_proj", inner, hidden), ("down_proj", hidden, inner))
            for entry in int4_matrix(f"model.layers.{layer}.mlp.experts.{e}.{part}", rows, columns)]
            for layer in range(3)],
            INT4 | {"hidden_size": hidden, "moe_intermediate_size": inner, "num_experts": experts})
    return directory


def experts_packed(bench, experts=24, inner=1024, hidden=2048):
    """A mixture as qwen3_vl_moe has it: BF16, stacked and transposed."""
    directory = bench.path("experts-packed")
    base = "model.language_model.layers.{}.mlp.experts."
    if not os.path.exists(directory):
        write_model(directory, [[
            (base.format(layer) + "gate_up_proj", "BF16", [experts, hidden, 2 * inner]),
            (base.format(layer) + "down_proj", "BF16", [experts, inner, hidden])]
            for layer in range(3)],
            {"model_type": "qwen3_vl_moe", "torch_dtype": "bfloat16", "text_config": {
                "hidden_size": hidden, "moe_intermediate_size": inner, "num_experts": experts}})
    return directory
