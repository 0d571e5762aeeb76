#!/usr/bin/env python3
"""MaxText views against the arrays of MaxText's own converters, read by a decoder that is written
from the formats' descriptions (orbax_item.py).

Every view comes out of `ckfs cat`, `ckfs export` and a mount, with both readers, 1 and 8 threads,
tiles of the normal size and of 4 KiB, every two of these together in some run (ways.RUNS): all must
give the same files, and these the reference's arrays.
"""
import array
import json
import pathlib
import shutil
import struct
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import orbax_item  # noqa: E402
import ways  # noqa: E402

DATA = ways.DATA.parent / "maxtext"
CASES = json.loads((DATA / "cases.json").read_text())["cases"]
DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "I32": "int32", "I64": "int64"}
# Array type code, exponent.
FLOATS = {"bfloat16": ("H", 0x7F80), "float16": ("H", 0x7C00), "float32": ("I", 0x7F800000)}


def safetensors(path):
    """{name: (dtype, shape, bytes)} of a file."""
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    found = {}
    for name, tensor in header.items():
        begin, end = (8 + size + at for at in tensor["data_offsets"])
        found[name] = (DTYPES[tensor["dtype"]], tensor["shape"], data[begin:end])
    return found


def without_nan_bits(value):
    """The same with one bit pattern for all NaN."""
    dtype, shape, data = value
    if dtype not in FLOATS:
        return value
    code, infinity = FLOATS[dtype]
    numbers = array.array(code, data)
    sign = 1 << (8 * numbers.itemsize - 1)
    for i, number in enumerate(numbers):
        if number & (sign - 1) > infinity:
            numbers[i] = infinity + 1
    return dtype, shape, numbers.tobytes()


class MaxText(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="ckfs-golden-")
        self.addCleanup(temporary.cleanup)
        self.work = pathlib.Path(temporary.name)

    def made(self, case, view):
        """The directory of the view, which all ways make alike."""
        family = ["--family", case["family"]] if "family" in case else []
        first = None
        for number, (way, engine) in enumerate(ways.golden_runs()):
            out = self.work / str(number)
            out.mkdir()
            ways.WAYS[way](DATA / case["source"] / "source", view, out, self.work,
                           [*engine, *family])
            if first is None:
                first = out
                continue
            self.assertTrue(ways.files_of(first) == ways.files_of(out), f"{way} {engine}")
            shutil.rmtree(out)
        return first

    def check(self, case, view):
        out = self.made(case, view)
        item = orbax_item.Item(out / "0" / "items")
        want = safetensors(DATA / case["source"] / "expected" / f"{case['expected']}.safetensors")
        want.pop("step", None)
        self.assertEqual(sorted(item.arrays), sorted([*want, "step"]))
        self.assertEqual(item.leaves()["opt_state"], "Dict")
        for name, value in want.items():
            have = item.value(name)
            if case.get("nan"):
                value, have = map(without_nan_bits, (value, have))
            self.assertTrue(have == value, f"{name}: {have[:2]} {value[:2]}")
        shutil.rmtree(out)

    def test_every_golden_view(self):
        for case in CASES:
            with self.subTest(**case):
                self.check(case, case["view"])

    def test_every_storage(self):
        case = next(case for case in CASES if case["expected"] == "scanned-eager-f32")
        for storage in ("zarr3", "zarr2"):
            with self.subTest(storage=storage):
                self.check(case, f"{case['view']},storage={storage}")


if __name__ == "__main__":
    unittest.main()
