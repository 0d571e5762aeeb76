#!/usr/bin/env python3
"""Writes tests/data/hf/every-dtype, and completes expected.json of the quantized cases.

    make_expected.py tests/data/hf

Needs torch, safetensors and numpy. The casts are torch's own `.to` on CPU; the FP8 product is
written out here in torch: f32(q) * f32(scale), one scale for each block. The views that the case's
own tool wrote (expected.json has them already) are not touched, but must agree.
"""
import json
import os
import struct
import sys
import tempfile

import numpy
import safetensors
import safetensors.torch
import torch

import digest

VIEWS = {
    "bf16-safetensors": (torch.bfloat16, "bfloat16"),
    "fp16-safetensors": (torch.float16, "float16"),
    "fp32-safetensors": (torch.float32, "float32"),
}
CASTABLE = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def special_bits(bits, exponent_bits, random, count):
    """Random bit patterns behind zeros, infinities, NaNs, subnormals and rounding ties."""
    mantissa_bits = bits - 1 - exponent_bits
    infinity = ((1 << exponent_bits) - 1) << mantissa_bits
    one = ((1 << (exponent_bits - 1)) - 1) << mantissa_bits
    chosen = [0, 1, infinity - 1, infinity, infinity + 1, infinity | 1 << (mantissa_bits - 1), one]
    # Ties and their neighbours for each narrower mantissa.
    for kept in (7, 10, 23):
        if kept < mantissa_bits:
            half = 1 << (mantissa_bits - kept - 1)
            chosen += [one + half, one + half - 1, one + half + 1, one + 3 * half]
    chosen += [v | 1 << (bits - 1) for v in chosen]
    # Exponents around 1, so that most values survive a cast to F16.
    while len(chosen) < count:
        exponent = int(random.integers(-30, 20)) * (1 << mantissa_bits)
        value = one + exponent + int(random.integers(0, 1 << mantissa_bits))
        chosen.append((value if 0 < value < infinity else one) | int(random.integers(2)) << (bits - 1))
    return b"".join(v.to_bytes(bits // 8, "little") for v in chosen[:count])


def every_dtype(root):
    """A plain checkpoint with a tensor of each safetensors dtype, 0-d and empty ones among them."""
    random = numpy.random.default_rng(20)
    tensors, alive = {}, []

    def add(name, dtype, shape, data):
        array = numpy.frombuffer(data or b"\0", dtype=numpy.uint8)
        alive.append(array)
        tensors[name] = safetensors.TensorSpec(
            dtype=dtype, shape=shape, data_ptr=array.ctypes.data, data_len=len(data))

    floats = {"float64": (64, 11), "float32": (32, 8), "float16": (16, 5), "bfloat16": (16, 8)}
    for dtype, (bits, exponent_bits) in floats.items():
        add(f"{dtype}.weight", dtype, [24, 31], special_bits(bits, exponent_bits, random, 24 * 31))
        add(f"{dtype}.scalar", dtype, [], special_bits(bits, exponent_bits, random, 11)[-bits // 8:])
        add(f"{dtype}.empty", dtype, [0, 5], b"")
    others = {
        "bool": 8, "uint8": 8, "int8": 8, "uint16": 16, "int16": 16, "uint32": 32, "int32": 32,
        "uint64": 64, "int64": 64, "complex64": 64, "float8_e4m3fn": 8, "float8_e5m2": 8,
        "float8_e4m3fnuz": 8, "float8_e5m2fnuz": 8, "float8_e8m0fnu": 8,
    }
    for dtype, bits in others.items():
        data = random.bytes(6 * 11 * bits // 8)
        add(f"{dtype}.tensor", dtype, [6, 11], bytes(b & 1 for b in data) if dtype == "bool" else data)
    add("float4_e2m1fn_x2.tensor", "float4_e2m1fn_x2", [6, 5], random.bytes(30))
    data = safetensors.serialize(tensors, {"format": "pt"})

    source = os.path.join(root, "source")
    os.makedirs(source, exist_ok=True)
    with open(os.path.join(source, "model.safetensors"), "wb") as f:
        f.write(data)
    # No dtype key: views add one.
    with open(os.path.join(source, "config.json"), "w") as f:
        f.write(json.dumps({"model_type": "every-dtype", "hidden_size": 31}, indent=2) + "\n")


def dense_config(text, dtype):
    config = json.loads(text)
    config.pop("quantization_config", None)
    for key in ("torch_dtype", "dtype"):
        if key in config:
            config[key] = dtype
    if "torch_dtype" not in config and "dtype" not in config:
        config["torch_dtype"] = dtype
    return json.dumps(config, indent=2) + ("\n" if text.endswith("\n") else "")


def dequantize(weight, scale, block):
    rows, columns = weight.shape
    scale = scale.float().repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)
    return weight.float() * scale[:rows, :columns]


def raw_header(path):
    with open(path, "rb") as f:
        (length,) = struct.unpack("<Q", f.read(8))
        header = json.loads(f.read(length))
        header.pop("__metadata__", None)
        return header, f.read()


# Read by hand: torch's own view of a file knows neither F4 shapes nor all of F8.
TORCH = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}


def load(case):
    tensors = {}
    for file in digest.shards(os.path.join(case, "source")):
        header, data = raw_header(file)
        for name, t in header.items():
            begin, end = t["data_offsets"]
            tensors[name] = (t["dtype"], t["shape"], data[begin:end])
    return tensors


def as_torch(entry):
    dtype, shape, data = entry
    flat = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
    return flat.view(TORCH[dtype]).reshape(shape)


def expect(case, view):
    """{tensor: {dtype, shape, computed, sha256}} of a view, by torch alone."""
    tensors = load(case)
    with open(os.path.join(case, "source/config.json")) as f:
        quantization = json.load(f).get("quantization_config")
    dtype = VIEWS[view][0]
    cast_all = quantization is None or view != "bf16-safetensors"
    result = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, entry in tensors.items():
            if quantization and name.endswith("_scale_inv"):
                continue
            stored, shape, data = entry
            if quantization and name + "_scale_inv" in tensors:
                value = dequantize(as_torch(entry), as_torch(tensors[name + "_scale_inv"]),
                                   quantization["weight_block_size"]).to(dtype)
            elif stored in TORCH and TORCH[stored] in CASTABLE and cast_all:
                value = as_torch(entry).to(dtype)
            else:
                result[name] = (stored, shape, data)
                continue
            result[name] = ({"bfloat16": "BF16", "float16": "F16", "float32": "F32"}[VIEWS[view][1]],
                            shape, value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        header, position = {}, 0
        for name, (stored, shape, data) in result.items():
            header[name] = {"dtype": stored, "shape": shape, "data_offsets": [position, position + len(data)]}
            position += len(data)
        text = json.dumps(header).encode()
        path = os.path.join(folder, "view.safetensors")
        with open(path, "wb") as f:
            f.write(struct.pack("<Q", len(text)) + text + b"".join(d for _, _, d in result.values()))
        return digest.digest_against_source(os.path.join(case, "source"), path)


def is_known(folder):
    """Whether the case is plain or in FP8 blocks: all others keep what their own tool made."""
    with open(os.path.join(folder, "source/config.json")) as f:
        quantization = json.load(f).get("quantization_config")
    own_file = os.path.exists(os.path.join(folder, "source/hf_quant_config.json"))
    return not own_file and (quantization is None or "weight_block_size" in quantization)


def write_expected(path, views):
    """One tensor a line, so that a change is a readable diff."""
    blocks = []
    for view, tensors in sorted(views.items()):
        lines = [f"  {json.dumps(name)}: {json.dumps(t)}" for name, t in tensors.items()]
        blocks.append(json.dumps(view) + ": {\n" + ",\n".join(lines) + "\n}")
    with open(path, "w") as f:
        f.write("{\n" + ",\n".join(blocks) + "\n}\n")


def main(root):
    every_dtype(os.path.join(root, "every-dtype"))
    for case in sorted(os.listdir(root)):
        folder = os.path.join(root, case)
        if not os.path.isdir(folder):
            continue
        path = os.path.join(folder, "expected.json")
        if not is_known(folder):
            continue
        views = {}
        if os.path.exists(path):
            with open(path) as f:
                views = json.load(f)
        for view, (_, torch_dtype) in VIEWS.items():
            expected = expect(folder, view)
            if view in views and case != "every-dtype" and views[view] != expected:
                raise SystemExit(f"{case}: {view}: torch disagrees with the case's own tool")
            views[view] = expected
            config = os.path.join(folder, "expected", view, "config.json")
            with open(os.path.join(folder, "source/config.json")) as f:
                text = dense_config(f.read(), torch_dtype)
            if os.path.exists(config):
                with open(config) as f:
                    if f.read() != text:
                        raise SystemExit(f"{config}: differs from what this script makes of it")
            os.makedirs(os.path.dirname(config), exist_ok=True)
            with open(config, "w") as f:
                f.write(text)
        write_expected(path, views)
        print(case, *(f"{view}: {len(t)}" for view, t in views.items()))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
