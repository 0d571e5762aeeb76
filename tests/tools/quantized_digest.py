#!/usr/bin/env python3
"""SHA-256 of each tensor of a quantized safetensors checkpoint, with NaN made canonical.

    quantized_digest.py DIRECTORY     print {tensor: [dtype, shape, sha256]} as JSON

Every NaN counts as the positive quiet one, that of F8_E4M3 as 7f: tools and machines differ in the
NaN that they compute. Needs nothing but Python's standard library.
"""
import hashlib
import json
import pathlib
import struct
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import digest  # noqa: E402


def canonical_nan(dtype, data):
    if dtype == "F8_E4M3":
        return data.replace(b"\xff", b"\x7f")
    return digest.canonical_nan(dtype, data)


def tensors(directory):
    """{name: [dtype, shape, sha256]} of all safetensors files of a directory; no name twice."""
    found = {}
    for path in digest.shards(str(directory)):
        with open(path, "rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(length))
            data = file.read()
        header.pop("__metadata__", None)
        for name, tensor in header.items():
            assert name not in found, name
            begin, end = tensor["data_offsets"]
            found[name] = [tensor["dtype"], tensor["shape"],
                           hashlib.sha256(canonical_nan(tensor["dtype"],
                                                        data[begin:end])).hexdigest()]
    return found


if __name__ == "__main__":
    json.dump(tensors(sys.argv[1]), sys.stdout, indent=1, sort_keys=True)
