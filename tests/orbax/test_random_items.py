#!/usr/bin/env python3
"""Any tree of arrays in any chunking, written by ckfs, is the same arrays to TensorStore and to the
decoder of the tests (golden/orbax_item.py). The items are random: ckfs_random_item writes them, and
the arrays that they must be.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS / "golden"))
import orbax_item  # noqa: E402

import tensorstore  # noqa: E402

PROGRAM = pathlib.Path(os.environ["CKFS_BUILD"]) / "ckfs_random_item"
FIRST, COUNT = 0, 300


def tensorstore_array(item, array):
    """(shape, bytes) of an array, as Orbax has TensorStore open it."""
    base = {"driver": "file", "path": f"{item}/"}
    if (item / "manifest.ocdbt").exists():
        store = {"driver": "ocdbt", "base": base, "path": array.name}
    else:
        store = {"driver": "file", "path": f"{item}/{array.name}"}
    got = tensorstore.open({"driver": "zarr3" if array.v3 else "zarr", "kvstore": store,
                            "fill_missing_data_reads": False}, open=True).result()
    value = got.read().result()
    return list(value.shape), value.tobytes()


class RandomItems(unittest.TestCase):
    def test_tensorstore_and_the_decoder_read_what_was_to_be_written(self):
        with tempfile.TemporaryDirectory(prefix="ckfs-orbax-") as work:
            subprocess.run([PROGRAM, str(FIRST), str(COUNT), work], check=True)
            storages = set()
            for case in sorted(pathlib.Path(work).iterdir()):
                with self.subTest(seed=case.name):
                    item = orbax_item.Item(case / "item")
                    storages.add((item.metadata["use_ocdbt"], item.metadata["use_zarr3"]))
                    wanted = json.loads((case / "arrays.json").read_text())
                    names = {array["name"] for array in wanted}
                    self.assertEqual(set(item.arrays) - {"step"}, names)
                    for number, array in enumerate(wanted):
                        self.check(case, item, array, (case / str(number)).read_bytes())
            self.assertEqual(len(storages), 3)

    def check(self, case, item, array, data):
        name = array["name"]
        with self.subTest(array=name):
            self.assertEqual(item.value(name)[1:], (array["shape"], data))
            self.assertEqual(tensorstore_array(case / "item", item.arrays[name]),
                             (array["shape"], data))


if __name__ == "__main__":
    unittest.main()
