#!/usr/bin/env python3
"""Tensors of the Python package as arrays of jax and of ml_dtypes, which .venv/hf does not have: next to
the bytes of their files, and to what safetensors reads."""
import pathlib
import sys
import unittest

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS / "python"))
import support  # noqa: E402

import jax  # noqa: E402
import jax.numpy  # noqa: E402
import ml_dtypes  # noqa: E402
import numpy  # noqa: E402
import safetensors  # noqa: E402

import ckfs  # noqa: E402

CONTENT = bytes(range(48))
KINDS = {"BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32",
         "I32": "int32", "F16": "float16", "F32": "float32", "BF16": ml_dtypes.bfloat16,
         "F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2}
WIDE = {"I64": "int64", "U64": "uint64", "F64": "float64"}


class Arrays(support.TestCase):
    def setUp(self):
        tensors = {}
        for name, kind in {**KINDS, **WIDE}.items():
            content = bytes(k % 2 for k in CONTENT) if name == "BOOL" else CONTENT
            tensors[name] = (name, [2, 24 // numpy.dtype(kind).itemsize], content)
        self.bytes = {name: content for name, (_, _, content) in tensors.items()}
        self.path = self.source(**tensors) / "model.safetensors"
        self.model = ckfs.open(self.path.parent)

    def test_of_numpy_have_the_types_of_ml_dtypes(self):
        for name, kind in {**KINDS, **WIDE}.items():
            array = self.model[name].numpy()
            self.assertEqual((array.dtype, array.tobytes()), (numpy.dtype(kind), self.bytes[name]), name)
            self.assertEqual(self.model[name][1].numpy().tobytes(), self.bytes[name][24:], name)

    def test_of_ml_dtypes_are_filled_where_they_are(self):
        for name in ("BF16", "F8_E4M3", "F8_E5M2"):
            place = numpy.zeros(self.model[name].shape, KINDS[name])
            self.model.read_into({name: place})
            self.assertEqual(place.tobytes(), self.bytes[name], name)

    def test_of_jax_have_the_bytes(self):
        for name, kind in KINDS.items():
            array = self.model[name].jax()
            self.assertEqual((array.dtype, array.shape),
                             (numpy.dtype(kind), self.model[name].shape), name)
            self.assertEqual(numpy.asarray(array).tobytes(), self.bytes[name], name)

    def test_of_jax_are_refused_where_it_would_narrow_them(self):
        for name, kind in WIDE.items():
            with self.assertRaisesRegex(ckfs.UnsupportedError, f"{name}: jax makes .*32 of {kind}"):
                self.model[name].jax()
            with jax.enable_x64(True):
                self.assertEqual(numpy.asarray(self.model[name].jax()).tobytes(), self.bytes[name])

    def test_go_to_jax_by_dlpack(self):
        for name in ("F32", "BF16", "I16", "U8"):
            array = jax.numpy.from_dlpack(self.model[name])
            self.assertEqual(array.dtype, numpy.dtype(KINDS[name]))
            self.assertEqual(numpy.asarray(array).tobytes(), self.bytes[name], name)

    def test_of_safe_open_are_those_of_safetensors(self):
        for framework in ("np", "jax"):
            with ckfs.safe_open(self.path, framework) as ours, \
                    safetensors.safe_open(self.path, framework) as theirs:
                for name in ("F32", "I32", "BF16", "F16"):
                    mine, other = ours.get_tensor(name), theirs.get_tensor(name)
                    self.assertEqual((type(mine), mine.dtype, mine.shape),
                                     (type(other), other.dtype, other.shape))
                    self.assertEqual(numpy.asarray(mine).tobytes(), numpy.asarray(other).tobytes())
                    self.assertEqual(numpy.asarray(ours.get_slice(name)[:, 1:3]).tobytes(),
                                     numpy.asarray(theirs.get_slice(name)[:, 1:3]).tobytes())


if __name__ == "__main__":
    unittest.main()
