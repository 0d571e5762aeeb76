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

DATA = ways.DATA.parent / "maxtext"
CASES = json.loads((DATA / "cases.json").read_text())["cases"]
INTERFACES = [support.by_pytree, support.by_standard, support.by_v1, support.by_maxtext,
              support.by_manager]


def options_of(case):
    return ["--family", case["family"]] if "family" in case else []


class Restore(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="ckfs-orbax-")
        self.addCleanup(temporary.cleanup)
        self.work = pathlib.Path(temporary.name)

    def check(self, case, tree):
        got = support.arrays(tree)
        got.pop("step", None)
        want = support.safetensors(
            DATA / case["source"] / "expected" / f"{case['expected']}.safetensors")
        want.pop("step", None)
        self.assertEqual(sorted(got), sorted(want))
        for name, value in want.items():
            have = got[name]
            if case.get("nan"):
                value, have = map(support.without_nan_bits, (value, have))
            self.assertTrue(have == value, f"{name}: {have[:2]} {value[:2]}")

    def test_every_golden_view_from_a_mount(self):
        for number, case in enumerate(CASES):
            source = DATA / case["source"] / "source"
            with self.subTest(**case), ways.mounted(source, self.work / str(number),
                                                    *options_of(case)) as mount:
                self.check(case, support.by_maxtext(mount / case["view"] / "0" / "items"))

    def test_every_golden_view_from_an_export(self):
        for number, case in enumerate(CASES):
            with self.subTest(**case):
                out = self.work / str(number)
                ways.run("export", DATA / case["source"] / "source", case["view"], out,
                         *options_of(case))
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
        want = support.safetensors(self.work / "flat" / "model.safetensors")
        for storage in ("ocdbt", "zarr3", "zarr2"):
            out = self.work / storage
            ways.run("export", source, f"item@storage={storage}", out, "--recipe", recipe)
            for interface in INTERFACES[:-1]:
                with self.subTest(storage=storage, interface=interface.__name__):
                    self.assertTrue(support.arrays(interface(out)) == want)


if __name__ == "__main__":
    unittest.main()
