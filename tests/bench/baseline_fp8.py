#!/usr/bin/env python3
"""What people run today: a checkpoint in BF16 as FP8 in blocks of 128 x 128, by torch on all cores.

    baseline_fp8.py SRC OUT

The arithmetic of slime's tools/convert_hf_to_fp8.py (624b824), a file at a time: every matrix is
padded to whole blocks, the largest magnitude of each gives its scale, and the quotients are cast.
"""
import os
import sys

import torch
from safetensors.torch import load_file, save_file

BLOCK, LARGEST = 128, 448.0


def quantize(weight):
    rows, columns = weight.shape
    padded = torch.nn.functional.pad(weight, (0, -columns % BLOCK, 0, -rows % BLOCK))
    blocks = padded.reshape(padded.shape[0] // BLOCK, BLOCK, padded.shape[1] // BLOCK, BLOCK)
    largest = blocks.abs().amax(dim=(1, 3), keepdim=True).clamp(min=1e-12)
    scales = largest.float() / LARGEST
    codes = (blocks / scales).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)
    return codes.reshape(padded.shape)[:rows, :columns].contiguous(), scales[:, 0, :, 0].contiguous()


def main():
    source, out = sys.argv[1:]
    os.makedirs(out)
    for name in sorted(os.listdir(source)):
        if not name.endswith(".safetensors"):
            continue
        made = {}
        for key, weight in load_file(os.path.join(source, name)).items():
            made[key], made[key + "_scale_inv"] = quantize(weight)
        save_file(made, os.path.join(out, name), {"format": "pt"})


main()
