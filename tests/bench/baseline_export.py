#!/usr/bin/env python3
"""What people run today: FP8 blocks to BF16 with torch and safetensors, shard by shard, all cores.

    baseline_export.py SRC OUT

The arithmetic is that of DeepSeek-V3's fp8_cast_bf16.py, on CPU: f32(q) * f32(scale), then bf16. Prints nothing.
"""
import json
import os
import sys

import torch
from safetensors import safe_open
from safetensors.torch import save_file


def dequantize(weight, scale):
    rows, columns = weight.shape
    scale = scale.repeat_interleave(128, 0)[:rows].repeat_interleave(128, 1)[:, :columns]
    return (weight.float() * scale).to(torch.bfloat16)


def main():
    source, out = sys.argv[1:]
    torch.set_num_threads(os.cpu_count())
    weight_map = json.load(open(os.path.join(source, "model.safetensors.index.json")))["weight_map"]
    opened = {}

    def tensor(name):
        path = weight_map[name]
        if path not in opened:
            opened[path] = safe_open(os.path.join(source, path), framework="pt")
        return opened[path].get_tensor(name)

    for shard in sorted(set(weight_map.values())):
        state = {}
        for name in [n for n, path in weight_map.items() if path == shard and not n.endswith("_scale_inv")]:
            weight = tensor(name)
            if weight.dtype == torch.float8_e4m3fn:
                weight = dequantize(weight, tensor(name + "_scale_inv"))
            state[name] = weight
        save_file(state, os.path.join(out, shard), metadata={"format": "pt"})


main()
