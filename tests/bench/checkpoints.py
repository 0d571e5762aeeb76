"""The checkpoints that the benchmark measures on: made once a run, in its work directory."""
import json
import math
import os
import struct
import subprocess
import sys

from harness import MIB, TOOLS

FILE_BYTES = 1 << 30  # of a view's file: pages are then recycled, not fetched anew from the host
WIDTH = {"F8_E4M3": 1, "BF16": 2, "F32": 4}
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
                      "BF16": bytes(small), "F32": struct.pack("<f", 0.0078125) * MIB}

    def write(self, file, dtype, size):
        pool = memoryview(self.pools[dtype])
        offset = os.urandom(2)[0] * 4096 if dtype != "F32" else 0
        while size:
            piece = pool[offset:offset + size]
            file.write(piece)
            size -= len(piece)
            offset = 0


def write_model(directory, shards, config):
    """`shards`: for each file, its tensors as (name, dtype, shape)."""
    os.makedirs(directory)
    weight_map, noise = {}, Noise()
    for number, tensors in enumerate(shards):
        tensors = list(tensors)
        name = f"model-{number + 1:05d}-of-{len(shards):05d}.safetensors"
        header, at = {"__metadata__": {"format": "pt"}}, 0
        for tensor, dtype, shape in tensors:
            size = nbytes(dtype, shape)
            header[tensor] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
            weight_map[tensor] = name
            at += size
        raw = json.dumps(header, separators=(",", ":")).encode()
        with open(os.path.join(directory, name), "wb") as f:
            f.write(struct.pack("<Q", len(raw)) + raw)
            for _, dtype, shape in tensors:
                noise.write(f, dtype, nbytes(dtype, shape))
    with open(os.path.join(directory, "config.json"), "w") as f:
        json.dump(config, f)
    with open(os.path.join(directory, "model.safetensors.index.json"), "w") as f:
        json.dump({"metadata": {}, "weight_map": weight_map}, f)
    return directory


FP8 = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK]}}
DEEPSEEK = {"model_type": "deepseek_v3", "torch_dtype": "bfloat16", **FP8}


def fp8(bench):
    """Two files that each give FILE_BYTES of BF16."""
    directory = bench.path("fp8")
    if not os.path.exists(directory):
        rows, columns = 2048, 7168
        write_model(directory, [
            [entry for k in range(FILE_BYTES // (2 * rows * columns)) for entry in
             quantized(f"model.layers.{shard}.mlp.experts.{k}.down_proj.weight", rows, columns)]
            for shard in range(2)], DEEPSEEK)
    return directory


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


def tool(name, directory, *options):
    """A checkpoint that tests/tools/`name` makes."""
    command = [sys.executable, os.path.join(TOOLS, name), *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return directory


def scale_checkpoint(directory, model, *options):
    return tool("make_scale.py", directory, model, directory, *options)


def zero_checkpoint(directory, model, *options):
    return tool("make_zero.py", directory, model, directory, *options)


def dcp_checkpoint(directory, *options):
    return tool("make_dcp.py", directory, directory, *options)
