#!/usr/bin/env python3
"""MaxText's trees as sources, against what MaxText's own tools make of them (to_huggingface,
reshard_checkpoint, and to_maxtext of the same model), through every way of reading a view.
"""
import pathlib
import shutil
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import orbax_item  # noqa: E402
import ways  # noqa: E402
from maxtext_cases import TREES, differences, options_of, safetensors, tree_of  # noqa: E402


class Trees(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="ckfs-golden-")
        self.addCleanup(temporary.cleanup)
        self.work = pathlib.Path(temporary.name)

    def check(self, case):
        source, options = tree_of(case, self.work / "tree")
        first = None
        for number, (way, engine) in enumerate(ways.golden_runs()):
            out = self.work / str(number)
            out.mkdir()
            ways.WAYS[way](source, case["view"], out, self.work,
                           [*engine, *options, *options_of(case)])
            if first is None:
                first = out
                continue
            self.assertTrue(ways.files_of(first) == ways.files_of(out), f"{way} {engine}")
            shutil.rmtree(out)
        arrays = {}
        if case["view"].startswith("maxtext"):
            item = orbax_item.Item(first / "0/items")
            arrays = {name: item.value(name) for name in item.arrays}
        for path in first.glob("*.safetensors"):
            arrays.update(safetensors(path))
        self.assertEqual(list(differences(case, arrays)), [])
        shutil.rmtree(first)
        shutil.rmtree(self.work / "tree", ignore_errors=True)

    def test_every_golden_view(self):
        for case in TREES:
            with self.subTest(**case):
                self.check(case)


if __name__ == "__main__":
    unittest.main()
