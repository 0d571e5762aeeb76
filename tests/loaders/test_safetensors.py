#!/usr/bin/env python3
"""View files against safetensors' own writer, and a source with every dtype against torch's casts."""
import ctypes
import json
import struct
import unittest

import numpy
import safetensors
import torch
from safetensors import TensorSpec
from safetensors.torch import load_file, save_file
from support import (CASES, CASTS, DATA, WorkDirectory, load_all, make_demo, mounted, run,
                     same_bits)

FLOATS = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16,
          "BF16": torch.bfloat16}
# Bits of an element of every dtype that the format knows.
BITS = {"BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8,
        "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16,
        "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "C64": 64, "F64": 64, "I64": 64,
        "U64": 64}


def raw_tensors(path):
    """{name: (dtype, shape, bytes)} without any library"""
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    return {name: (e["dtype"], e["shape"],
                   data[8 + length + e["data_offsets"][0]:8 + length + e["data_offsets"][1]])
            for name, e in header.items()}


def special(bits, mantissa_bits, rng):
    """Codes of a float dtype: all of them for 16 bits, else edges of every kind and random ones."""
    unsigned = {16: numpy.uint16, 32: numpy.uint32, 64: numpy.uint64}[bits]
    if bits == 16:
        return numpy.arange(1 << 16, dtype=unsigned)
    edges = [0, 1, (1 << mantissa_bits) - 1]
    for exponent in range(1 << (bits - 1 - mantissa_bits)):
        base = exponent << mantissa_bits
        # Mantissas around every place where a narrower dtype ties.
        for cut in (10, 7, 23, 13, 16, 29, 42, 45):
            if cut < mantissa_bits:
                half = 1 << (mantissa_bits - cut - 1)
                edges += [base | half - 1, base | half, base | half + 1, base | half * 3]
        edges += [base, base | 1, base | (1 << mantissa_bits) - 1]
    codes = numpy.array(edges, dtype=unsigned)
    codes = numpy.concatenate([codes, codes | unsigned(1 << (bits - 1))])
    return numpy.concatenate([codes, rng.integers(0, 1 << 63, 4096, dtype=numpy.uint64)
                              .astype(unsigned)])


def every_dtype():
    """{name: (dtype, shape, bytes)}"""
    rng = numpy.random.default_rng(7)
    tensors = {}
    for dtype, bits in BITS.items():
        for shape in ([], [0], [3, 0, 4], [4], [8, 12]):
            count = int(numpy.prod(shape))
            if count * bits % 8:
                continue
            data = rng.bytes(count * bits // 8)
            if dtype == "BOOL":
                data = bytes(byte & 1 for byte in data)
            name = f"{dtype.lower()}.{'x'.join(map(str, shape)) or 'scalar'}"
            tensors[name] = (dtype, shape, data)
    for dtype, bits, mantissa in (("F64", 64, 52), ("F32", 32, 23), ("F16", 16, 10),
                                  ("BF16", 16, 7)):
        codes = special(bits, mantissa, rng)
        tensors[f"{dtype.lower()}.special"] = (dtype, [len(codes)], codes.tobytes())
    return tensors


# The names by which safetensors' writer knows the dtypes. It has none for F6.
WRITER = {"BOOL": "bool", "F4": "float4_e2m1fn_x2", "U8": "uint8", "I8": "int8",
          "F8_E5M2": "float8_e5m2", "F8_E4M3": "float8_e4m3fn", "F8_E8M0": "float8_e8m0fnu",
          "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz", "I16": "int16",
          "U16": "uint16", "F16": "float16", "BF16": "bfloat16", "I32": "int32", "U32": "uint32",
          "F32": "float32", "C64": "complex64", "F64": "float64", "I64": "int64", "U64": "uint64"}


def write(path, tensors):
    """By safetensors' own writer."""
    kept, specs = [], {}
    for name, (dtype, shape, data) in tensors.items():
        kept.append(ctypes.create_string_buffer(data, max(len(data), 1)))
        shape = list(shape)
        if dtype == "F4":  # two to a byte: the writer is given bytes
            shape[-1] //= 2
        specs[name] = TensorSpec(dtype=WRITER[dtype], shape=shape,
                                 data_ptr=ctypes.addressof(kept[-1]), data_len=len(data))
    safetensors.serialize_file(specs, str(path), {"format": "pt"})


def write_by_hand(path, tensors):
    """For the dtypes that safetensors reads and cannot write."""
    header, body = {}, b""
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape,
                        "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def as_torch(dtype, shape, data):
    if not data:
        return torch.empty(shape, dtype=FLOATS[dtype])
    return torch.frombuffer(bytearray(data), dtype=FLOATS[dtype]).reshape(shape)


class ViewFile(WorkDirectory):
    def test_is_what_save_file_writes_of_its_tensors(self):
        sources = [(case, DATA / case / "source") for case in CASES]
        sources.append(("demo", make_demo(self.work / "demo", "--hidden", "256")))
        for case, source in sources:
            with mounted(source, self.work / "mnt") as mnt:
                for view in [*CASTS, "fp32-consolidated", "bf16-safetensors@max_shard=200KB"]:
                    files = sorted((mnt / view).glob("*.safetensors"))
                    self.assertTrue(files, view)
                    for path in files:
                        with self.subTest(case=case, view=view, file=path.name):
                            again = self.work / "again.safetensors"
                            save_file(load_file(path), again, metadata={"format": "pt"})
                            self.assertTrue(path.read_bytes() == again.read_bytes())


class EveryDtype(WorkDirectory):
    def setUp(self):
        super().setUp()
        self.tensors = every_dtype()
        self.source = self.work / "source"
        self.source.mkdir()
        six = {name: t for name, t in self.tensors.items() if t[0].startswith("F6")}
        write(self.source / "most.safetensors",
              {name: t for name, t in self.tensors.items() if name not in six})
        write_by_hand(self.source / "six.safetensors", six)

    def test_is_cast_as_torch_casts_it_or_passes_unchanged(self):
        with mounted(self.source, self.work / "mnt") as mnt:
            for view, target in CASTS.items():
                got = raw_tensors(mnt / view / "most.safetensors")
                got.update(raw_tensors(mnt / view / "six.safetensors"))
                self.assertEqual(set(self.tensors), set(got))
                for name, (dtype, shape, data) in self.tensors.items():
                    with self.subTest(view=view, tensor=name):
                        if dtype not in FLOATS or FLOATS[dtype] == target:
                            self.assertEqual((dtype, shape), got[name][:2])
                            self.assertTrue(got[name][2] == data)
                            continue
                        source = as_torch(dtype, shape, data)
                        if dtype == "F64":  # torch's own casts of F64 go by way of F32
                            source = source.to(torch.float32)
                        want = source.to(target)
                        cast = as_torch(*got[name])
                        self.assertTrue(torch.equal(want.isnan(), cast.isnan()))
                        self.assertTrue(same_bits(want.nan_to_num(0, None, None)
                                                  .where(~want.isinf(), want),
                                                  cast.nan_to_num(0, None, None)
                                                  .where(~cast.isinf(), cast)))

    def test_is_named_by_inspect_where_no_cast_touches_it(self):
        told = run("inspect", self.source).decode()
        for dtype in ("F8_E4M3", "F6_E2M3", "F4", "C64"):
            self.assertIn(dtype, told)

    def test_needs_nothing_but_the_file(self):
        with mounted(self.source / "most.safetensors", self.work / "mnt") as mnt:
            alone = (mnt / "fp32-safetensors" / "most.safetensors").read_bytes()
        with mounted(self.source, self.work / "mnt") as mnt:
            self.assertTrue(
                alone == (mnt / "fp32-safetensors" / "most.safetensors").read_bytes())


class TorchTensors(WorkDirectory):
    def test_of_odd_strides_and_many_dtypes_come_back_through_the_source_dtype(self):
        tensors = {
            "matrix": torch.randn(7, 5, dtype=torch.float32),
            "scalar": torch.tensor(3.5, dtype=torch.float64),
            "half": torch.randn(3, 3).to(torch.float16),
            "mask": torch.tensor([True, False, True]),
            "ids": torch.arange(9, dtype=torch.int64),
            "complex": torch.randn(4, dtype=torch.complex64),
            "fp8": torch.randn(16).to(torch.float8_e5m2),
        }
        source = self.work / "source"
        source.mkdir()
        save_file(tensors, source / "model.safetensors")
        with mounted(source, self.work / "mnt") as mnt:
            got = {name: tensor.clone()
                   for name, tensor in load_all(mnt / "fp32-safetensors").items()}
        for name, tensor in tensors.items():
            castable = tensor.dtype in FLOATS.values()
            self.assertTrue(same_bits(got[name],
                                      tensor.to(torch.float32) if castable else tensor), name)


if __name__ == "__main__":
    unittest.main()
