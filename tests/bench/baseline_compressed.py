#!/usr/bin/env python3
"""What people run today: a checkpoint of compressed-tensors made dense by its own converter.

    baseline_compressed.py SRC OUT

On CPU, where it works on one file at a time with all cores.
"""
import os
import sys

import torch
from compressed_tensors.entrypoints.convert import convert_checkpoint
from compressed_tensors.entrypoints.convert.converters import CompressedTensorsDequantizer


def main():
    source, out = sys.argv[1:]
    torch.set_num_threads(os.cpu_count())
    convert_checkpoint(source, out, CompressedTensorsDequantizer(source), device="cpu")


main()
