#!/usr/bin/env python3
"""MaxText views against the arrays of MaxText's own converters, read by a decoder that is written
from the formats' descriptions (orbax_item.py).

Every view comes out of `ckfs cat`, `ckfs export` and a mount, with both readers, 1 and 8 threads,
tiles of the normal size and of 4 KiB, every two of these together in some run (ways.RUNS): all must
give the same files, and these the reference's arrays.
"""
import pathlib
import shutil
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import orbax_item  # noqa: E402
import ways  # noqa: E402
from maxtext_cases import CASES, differences, options_of, source_of  # noqa: E402


class MaxText(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="ckfs-golden-")
        self.addCleanup(temporary.cleanup)
        self.work = pathlib.Path(temporary.name)

    def made(self, case, view, runs):
        """The directory of the view, which all runs make alike."""
        first = None
        for number, (way, engine) in enumerate(runs):
            out = self.work / str(number)
            out.mkdir()
            ways.WAYS[way](source_of(case), view, out, self.work, [*engine, *options_of(case)])
            if first is None:
                first = out
                continue
            self.assertTrue(ways.files_of(first) == ways.files_of(out), f"{way} {engine}")
            shutil.rmtree(out)
        return first

    def check(self, case, view, runs):
        out = self.made(case, view, runs)
        item = orbax_item.Item(out / "0" / "items")
        self.assertEqual(item.leaves()["step"], "scalar")
        self.assertEqual(item.leaves()["opt_state"], "Dict")
        self.assertEqual(item.value("step"), ("int64", [], bytes(8)))
        arrays = {name: item.value(name) for name in item.arrays}
        self.assertEqual(list(differences(case, arrays)), [])
        shutil.rmtree(out)

    def test_every_golden_view(self):
        for case in CASES:
            with self.subTest(**case):
                self.check(case, case["view"], ways.golden_runs())

    def test_every_storage(self):
        case = next(case for case in CASES if case["expected"] == "scanned-eager-f32")
        # These have a hundred files: too many for a program to each.
        runs = [(way, engine) for way, engine in ways.RUNS if way != "cat"]
        for storage in ("zarr3", "zarr2"):
            with self.subTest(storage=storage):
                self.check(case, f"{case['view']},storage={storage}", runs)


if __name__ == "__main__":
    unittest.main()
