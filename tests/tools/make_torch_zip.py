#!/usr/bin/env python3
"""Files of torch.save for tests/format: python make_torch_zip.py OUT. Needs torch 2.13."""
import pathlib
import sys

import torch
import torch.utils.serialization

NEW = ("uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz",
       "float8_e5m2fnuz", "float8_e8m0fnu")
OLD = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32",
       "float64", "complex64", "complex128")


def numbers(dtype, *shape):
    """Small numbers; bytes of all values below 97 (bool: 2)."""
    kind = getattr(torch, dtype)
    count = torch.Size(shape).numel() * kind.itemsize
    if count == 0:
        return torch.empty(shape, dtype=kind)
    return (torch.arange(count) % (2 if dtype == "bool" else 97)).to(torch.uint8).view(kind).reshape(shape)


def cases():
    """{file name: dict of tensors}"""
    dtypes = {f"{kind}.{dtype}": numbers(dtype, 3, 2) for kind in "ab" for dtype in OLD + NEW}
    dtypes["größe_λ"] = numbers("float32", 2)
    first = numbers("float32", 5)
    shapes = {"scalar": numbers("float32"), "first": first, "empty": numbers("float32", 3, 0, 2),
              "again": first, "four": numbers("int8", 1, 2, 3, 4), 
              "five": numbers("int8", 1, 1, 7, 1, 5), "wide": numbers("uint8", 300), "empty too": numbers("uint8", 0), "once more": first}
    return {"dtypes": dtypes, "shapes": shapes, "one": {"only": numbers("bfloat16", 4)}, "none": {}}


def main():
    out = pathlib.Path(sys.argv[1])
    torch.utils.serialization.config.save.compute_crc32 = False
    for name, tensors in cases().items():
        torch.save(tensors, out / f"{name}.bin")


if __name__ == "__main__":
    main()
