#!/usr/bin/env python3
"""The table of labels in docs/FORMATS.md tells the truth: each of its rows is held against a golden
case. What is called bit-exact has the reference's bytes, what is called exact keeps every value,
what is called lossy is rounded once and does change some value. And `ckfs inspect` says the same.
"""
import json
import math
import pathlib
import random
import re
import sys
import tempfile
import unittest

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1] / "tools"),
                str(pathlib.Path(__file__).resolve().parent)]
import digest  # noqa: E402
import naive  # noqa: E402
import ways  # noqa: E402

FORMATS = pathlib.Path(__file__).resolve().parents[2] / "docs" / "FORMATS.md"
DTYPES = {"bf16-safetensors": "BF16", "fp16-safetensors": "F16", "fp32-safetensors": "F32"}
FP8 = "FP8 with block scales"
FP8_CASES = ["deepseek-v3-fp8", "deepseek-v31-ue8m0", "qwen-fp8-bf16-scale"]


def table():
    """{(row, view): label}"""
    text = re.search("<!-- labels:begin -->\n(.*)<!-- labels:end -->", FORMATS.read_text(), re.S)[1]
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()
             if line]
    found = {}
    for row in lines[2:]:
        for head, cell in zip(lines[0][1:], row[1:]):
            for view in re.findall("`([^`]+)`", head):
                found[row[0], view] = cell
    return found


def odd_floats(count=4000):
    """Doubles of all magnitudes, so that every cast to fewer bits changes some."""
    rng = random.Random(1)
    return [0.0, -0.0, math.inf, -math.inf, 1 + 2 ** -30] + [
        math.ldexp(rng.uniform(-1, 1), rng.randint(-160, 140)) for _ in range(count)]


def every_dtype():
    """A tensor of each dtype, by the row of the table that it stands for."""
    rng = random.Random(2)
    rows = {}
    for dtype, nbytes in (("BF16", 2), ("F16", 2), ("F32", 4), ("F64", 8)):
        if dtype == "F64":
            data = naive.struct.pack("<4005d", *odd_floats())
        else:
            data = naive.encode(odd_floats(), dtype)
        rows.setdefault(f"`{dtype}`", {})[dtype.lower()] = naive.Tensor(
            dtype, [len(data) // nbytes], data)
    unchanged = {"F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "F8_E4M3FNUZ": 1, "F8_E5M2FNUZ": 1,
                 "C64": 8}
    row = rows["F8 without a scale, F6, F4, `C64`"] = {}
    for dtype, nbytes in unchanged.items():
        row[dtype.lower()] = naive.Tensor(dtype, [64], rng.randbytes(64 * nbytes))
    for dtype, bits in (("F6_E2M3", 6), ("F6_E3M2", 6), ("F4", 4)):
        row[dtype.lower()] = naive.Tensor(dtype, [64], rng.randbytes(64 * bits // 8))
    row = rows["integers, `BOOL`"] = {
        "bool": naive.Tensor("BOOL", [4], bytes([0, 1, 1, 0]))}
    for letter, bits in ((sign, width) for sign in "IU" for width in (8, 16, 32, 64)):
        row[f"{letter}{bits}"] = naive.Tensor(f"{letter}{bits}", [9], rng.randbytes(9 * bits // 8))
    return rows


class Labels(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="ckfs-labels-")
        self.addCleanup(temporary.cleanup)
        self.work = pathlib.Path(temporary.name)
        self.table = table()

    def view(self, source, view):
        out = self.work / f"out{len(list(self.work.iterdir()))}"
        ways.run("export", source, view, out)
        return naive.read_all(out)

    def check(self, label, stored, target, want):
        """`target` deserves `label`, given what it is made of and what it should be."""
        canonical = digest.canonical_nan(target.dtype, target.data)
        expected = digest.canonical_nan(want.dtype, want.data)
        self.assertEqual((want.dtype, want.shape), (target.dtype, target.shape))
        self.assertTrue(canonical == expected, "not the right bytes")
        if label == "bit-exact (unchanged)":
            self.assertEqual(stored.dtype, target.dtype)
            self.assertTrue(stored.data == target.data)
            return
        if label == "bit-exact":
            return  # equal to the reference or moved: that is what `expected` was
        before, after = naive.values(stored), naive.values(target)
        changed = sum(a != b and not (math.isnan(a) and math.isnan(b))
                      for a, b in zip(before, after))
        if label == "exact":
            self.assertEqual(0, changed)
        else:
            self.assertEqual("lossy", label)
            self.assertGreater(changed, 0, "called lossy, and nothing was lost")

    def test_of_plain_dtypes_hold(self):
        rows = every_dtype()
        source = self.work / "source"
        source.mkdir()
        naive.write(source / "model.safetensors",
                    {name: tensor for row in rows.values() for name, tensor in row.items()})
        for view, dtype in [*DTYPES.items(), ("fp32-consolidated", "F32")]:
            got, want = self.view(source, view), naive.view(source, dtype)
            for row, tensors in rows.items():
                label = self.table[row, view]
                for name, stored in tensors.items():
                    with self.subTest(view=view, row=row, tensor=name, label=label):
                        if label == "bit-exact":
                            self.assertTrue(stored.data == got[name].data)
                        self.check(label, stored, got[name], want[name])

    def test_of_decoded_tensors_hold(self):
        changed = {view: False for view in DTYPES}  # one case that loses something is enough
        for case in FP8_CASES:
            source = ways.DATA / case / "source"
            stored, exact = naive.read_all(source), naive.view(source, "F32")
            names = [name for name in stored if name + "_scale_inv" in stored]
            for view, dtype in DTYPES.items():
                label = self.table[FP8, view]
                got, want = self.view(source, view), naive.view(source, dtype)
                for name in names:
                    with self.subTest(case=case, view=view, tensor=name, label=label):
                        self.assertEqual(dtype, got[name].dtype)
                        self.assertTrue(digest.canonical_nan(dtype, got[name].data)
                                        == digest.canonical_nan(dtype, want[name].data))
                        if view == "bf16-safetensors":  # the reference tool's own digest
                            expected = json.loads(
                                (ways.DATA / case / "expected.json").read_text())[view][name]
                            self.assertEqual(expected["sha256"], digest.hashlib.sha256(
                                digest.canonical_nan(dtype, got[name].data)).hexdigest())
                    changed[view] |= naive.values(exact[name]) != naive.values(got[name])
        for view in DTYPES:
            if self.table[FP8, view] == "lossy":
                self.assertTrue(changed[view], f"{view}: called lossy, and nothing was lost")

    def test_of_inspect_are_those_of_the_table(self):
        rows = every_dtype()
        source = self.work / "source"
        source.mkdir()
        naive.write(source / "model.safetensors",
                    {name: tensor for row in rows.values() for name, tensor in row.items()})
        row_of = {tensor.dtype: row for row, tensors in rows.items()
                  for tensor in tensors.values()}
        told = json.loads(ways.run("inspect", "--json", source))["labels"]
        self.assertTrue(told)
        for entry in told:
            # These have the tensors of another view, with its labels.
            if entry["view"] in ("source", "dcp", "megatron-torch-dist"):
                continue
            with self.subTest(**entry):
                label = self.table[row_of[entry["from"]], entry["view"]]
                self.assertEqual(label.removesuffix(" (unchanged)"), entry["label"])
        # Nothing is left out.
        views = {entry["view"] for entry in told} - {"source", "dcp", "megatron-torch-dist"}
        for view in views:
            self.assertEqual({tensor.dtype for row in rows.values() for tensor in row.values()},
                             {entry["from"] for entry in told if entry["view"] == view}, view)


if __name__ == "__main__":
    unittest.main()
