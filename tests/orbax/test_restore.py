#!/usr/bin/env python3
"""Orbax restores MaxText's golden arrays from a mount, from an export and from a copy of the mount,
bit for bit, by each of its interfaces.
"""
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import support  # noqa: E402
import ways  # noqa: E402
from maxtext_cases import (  # noqa: E402
    CASES, DATA, differences, options_of, safetensors, source_of)

INTERFACES = [support.by_pytree, support.by_standard, support.by_v1, support.by_maxtext,
              support.by_manager]


class Restore(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="ckfs-orbax-")
        self.addCleanup(temporary.cleanup)
        self.work = pathlib.Path(temporary.name)

    def check(self, case, tree):
        self.assertEqual(list(differences(case, support.arrays(tree))), [])

    def test_every_golden_view_from_a_mount(self):
        for number, case in enumerate(CASES):
            with self.subTest(**case), ways.mounted(source_of(case), self.work / str(number),
                                                    *options_of(case)) as mount:
                self.check(case, support.by_maxtext(mount / case["view"] / "0" / "items"))

    def test_every_golden_view_from_an_export(self):
        for number, case in enumerate(CASES):
            with self.subTest(**case):
                out = self.work / str(number)
                ways.run("export", source_of(case), case["view"], out, *options_of(case))
                self.check(case, support.by_pytree(out / "0" / "items"))
                shutil.rmtree(out)

    def test_each_interface_in_each_storage_from_a_mount_and_a_copy(self):
        cases = [case for case in CASES if case["source"] == "deepseek3"
                 and case["expected"] in ("unscanned-eager-bf16", "scanned-eager-f32")]
        self.assertEqual(len(cases), 2)
        with ways.mounted(DATA / "deepseek3" / "source", self.work / "mnt") as mount:
            for case in cases:
                for storage in ("ocdbt", "zarr3", "zarr2"):
                    view = case["view"] + ("," if "@" in case["view"] else "@")
                    view += f"storage={storage}"
                    copy = self.work / storage / view
                    copy.mkdir(parents=True)
                    subprocess.run(["rsync", "-a", f"{mount}/{view}/", copy], check=True)
                    for root in (mount / view, copy):
                        for interface in INTERFACES:
                            with self.subTest(root=root, interface=interface.__name__):
                                self.check(case, interface(root / "0" / "items"))

    def test_an_item_that_a_recipe_makes(self):
        source = ways.DATA / "experts-mixtral" / "source"
        recipe = DATA.parent / "recipes" / "orbax_item.json"
        flat = json.loads(recipe.read_text())
        flat["view"], flat["container"] = "flat", "safetensors"
        (self.work / "flat.json").write_text(json.dumps(flat))
        ways.run("export", source, "flat", self.work / "flat", "--recipe", self.work / "flat.json")
        want = safetensors(self.work / "flat" / "model.safetensors")
        for storage in ("ocdbt", "zarr3", "zarr2"):
            out = self.work / storage
            ways.run("export", source, f"item@storage={storage}", out, "--recipe", recipe)
            for interface in INTERFACES[:-1]:
                with self.subTest(storage=storage, interface=interface.__name__):
                    self.assertTrue(support.arrays(interface(out)) == want)


if __name__ == "__main__":
    unittest.main()
