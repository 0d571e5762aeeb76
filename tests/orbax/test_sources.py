#!/usr/bin/env python3
"""Orbax restores the view `orbax` of every golden Orbax checkpoint as it restores the source; and of
what Orbax and TensorStore write here at random, both views have the arrays.
"""
import json
import pathlib
import shutil
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import support  # noqa: E402
import numpy as np  # noqa: E402
import ways  # noqa: E402
import orbax_cases  # noqa: E402
import orbax.checkpoint as ocp  # noqa: E402
from etils import epath  # noqa: E402

STORAGES = ("ocdbt", "zarr3", "zarr2")
# Names that no directory can have.
IN_KEYS_ONLY = {"names_v3"}


def leaves(tree, path=()):
    """[(path, leaf)] of dicts, lists and tuples; empty ones are leaves."""
    if isinstance(tree, dict) and tree:
        return [leaf for key in tree for leaf in leaves(tree[key], (*path, str(key)))]
    if isinstance(tree, (list, tuple)) and len(tree) > 0:
        keys = getattr(tree, "_fields", range(len(tree)))
        return [leaf for key, value in zip(keys, tree)
                for leaf in leaves(value, (*path, str(key)))]
    return [(path, tree)]


def restored(item):
    """({name: (dtype, shape, bytes)}, {path: what is no array}) as Orbax restores an item."""
    arrays, others = {}, {}
    for path, leaf in leaves(support.by_pytree(item)):
        if leaf is None or isinstance(leaf, (dict, list, tuple, str)):
            others[path] = leaf if isinstance(leaf, str) else type(leaf).__name__
            continue
        value = np.asarray(leaf)
        arrays[".".join(path)] = (value.dtype.name, list(value.shape), value.tobytes())
    return arrays, others


def expected_others(case):
    """The same of what is no array, as the fixture has it."""
    names = {"Dict": "dict", "List": "list", "Tuple": "tuple", "None": "NoneType"}
    return {tuple(leaf["path"]): leaf["value"] if leaf["kind"] == "string" else names[leaf["kind"]]
            for leaf in orbax_cases.tree_of(case) if leaf["kind"] not in ("array", "scalar")}


class Sources(unittest.TestCase):
    maxDiff = 2000

    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="ckfs-orbax-")
        self.addCleanup(temporary.cleanup)
        self.work = pathlib.Path(temporary.name)

    def check(self, case, item):
        arrays, others = restored(item)
        self.assertEqual(arrays, orbax_cases.expected(case))
        # A NamedTuple without its class is a dict, and an empty one nothing else.
        self.assertEqual(others, expected_others(case))

    def test_every_golden_source_is_restored_from_a_mount(self):
        for number, case in enumerate(orbax_cases.CASES):
            with self.subTest(case=case), ways.mounted(
                    orbax_cases.source_of(case), self.work / str(number),
                    *orbax_cases.options_of(case)) as mount:
                self.check(case, mount / "orbax")

    def test_and_from_an_export_in_each_storage_in_small_chunks(self):
        for case in orbax_cases.CASES:
            for storage in STORAGES[:1] if case[0] in IN_KEYS_ONLY else STORAGES:
                with self.subTest(case=case, storage=storage):
                    out = self.work / "out"
                    ways.run("export", orbax_cases.source_of(case),
                             f"orbax@max_chunk=256,storage={storage}", out,
                             *orbax_cases.options_of(case))
                    self.check(case, out)
                    shutil.rmtree(out)

    def test_without_arguments_by_the_other_interfaces(self):
        case = ("maxtext_items", "arrays")
        with ways.mounted(orbax_cases.source_of(case), self.work / "mnt") as mount:
            want = {name: data for name, (_, _, data) in orbax_cases.expected(case).items()
                    if name != "step"}
            for interface in (support.by_standard, support.by_v1, support.by_maxtext):
                with self.subTest(interface=interface.__name__):
                    got = support.arrays(interface(mount / "orbax"))
                    got.pop("step", None)
                    self.assertEqual({name: data for name, (_, _, data) in got.items()}, want)

    def test_a_dtype_that_is_asked_for(self):
        case = ("maxtext_items", "arrays")
        with ways.mounted(orbax_cases.source_of(case), self.work / "mnt") as mount:
            got, _ = restored(mount / "orbax@dtype=fp32")
            for name, (dtype, shape, data) in orbax_cases.expected(case).items():
                if dtype == "bfloat16":
                    wide = np.frombuffer(data, np.uint16).astype(np.uint32) << 16
                    self.assertEqual(got[name], ("float32", shape, wide.tobytes()))
                else:
                    self.assertEqual(got[name], (dtype, shape, data))


if __name__ == "__main__":
    unittest.main()
