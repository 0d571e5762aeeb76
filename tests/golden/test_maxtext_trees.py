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
from maxtext_cases import (  # noqa: E402
    CASES, TREES, differences, item_of, options_of, safetensors, source_of, tree_of)


class Trees(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="ckfs-golden-")
        self.addCleanup(temporary.cleanup)
        self.work = pathlib.Path(temporary.name)

    def check(self, case):
        source, options = tree_of(case, None)
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

    def test_every_view_of_a_golden_item(self):
        # Of trees whose items are not here, tests/api has the arrays.
        cases = [case for case in TREES if item_of(case).is_dir()]
        self.assertGreaterEqual(len(cases), 20)
        for case in cases:
            with self.subTest(**case):
                self.check(case)

    def test_every_model_of_a_tree_that_is_no_golden_item(self):
        """Of the tree that ckfs itself exported."""
        cases = [case for case in TREES
                 if case["expected"].startswith("hf-") and not item_of(case).is_dir()]
        self.assertGreaterEqual(len(cases), 8)
        for number, case in enumerate(cases):
            with self.subTest(**case):
                made = next(view for view in CASES if (view["source"], view["expected"]) ==
                            (case["source"], case["tree"]))
                tree, out = self.work / f"tree{number}", self.work / f"model{number}"
                ways.run("export", source_of(made), made["view"], tree, *options_of(made))
                ways.run("export", tree / "0/items", case["view"], out, "--config",
                         source_of(made) / "config.json", *options_of(case))
                arrays = {}
                for path in out.glob("*.safetensors"):
                    arrays.update(safetensors(path))
                self.assertEqual(list(differences(case, arrays)), [])
                shutil.rmtree(tree)


if __name__ == "__main__":
    unittest.main()
