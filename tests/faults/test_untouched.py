"""Mounting, listing and inspecting read no tensor data: all of it is poisoned, nothing notices."""

import json
import os
import unittest

import fault_support
from fault_support import GOLDEN, ckfs, files_below, header_of, run, views


class Untouched(fault_support.TestCase):
    def poisoned(self, directory):
        source = self.counting(directory)
        source.poison_tensor_data()
        source.reset()
        self.addCleanup(lambda: self.assert_untouched(source))
        return source

    def assert_untouched(self, source):
        counts = source.counts()
        self.assertEqual(counts["poisoned"], [])
        self.assertEqual(counts["poisoned_reads"], 0)
        self.assertGreater(counts["bytes"], 0, "nothing was read at all")

    def use(self, directory):
        source = self.poisoned(directory)
        self.look(source.path)
        self.mount_and_list(source.path)
        self.assert_untouched(source)
        # The poison works: what is shown of it cannot be read.
        shard = next(name for name in files_below(source.path) if name.endswith(".safetensors"))
        with self.assertRaises(OSError):
            (source.path / shard).read_bytes()
        source.reset()
        ckfs("inspect", source.path)

    def look(self, path):
        """Every verb that tells about a checkpoint."""
        ckfs("inspect", path)
        told = json.loads(ckfs("inspect", path, "--json").stdout)
        self.assertGreater(told["version"], 0)
        ckfs("ls", path)
        listed = json.loads(ckfs("ls", "--json", path).stdout)["entries"]
        self.assertIn("bf16-safetensors", [entry["path"] for entry in listed])
        for entry in listed:
            ckfs("ls", "-l", path, entry["path"])

    def mount_and_list(self, path):
        # Direct: the kernel's cache would read on, over the end of the header.
        mount = self.logged_mount(path, "direct")
        run("ls", "-lR", mount.target)
        names = views(mount.target)
        self.assertIn("bf16-safetensors", names)
        for view in names:
            for name in files_below(mount / view):
                file = mount / view / name
                if name.endswith(".safetensors"):
                    base, tensors = header_of(file)
                    self.assertEqual(max((t[3] for t in tensors.values()), default=base),
                                     os.stat(file).st_size)  # fmt: skip
                elif "/d/0" not in name and not name.endswith(".distcp"):  # data of Orbax, of torch
                    self.assertEqual(len(file.read_bytes()), os.stat(file).st_size)
                for attribute in os.listxattr(file):
                    os.getxattr(file, attribute)
        views_json = json.loads((mount / ".ckfs/views.json").read_text())
        self.assertEqual(sorted(view["name"] for view in views_json["views"]), sorted(names))
        ckfs("stats", mount.target)
        self.assertEqual(self.log_lines(" error "), [])

    def test_plain_shards(self):
        self.use(self.checkpoint.path)

    def test_fp8_with_scales(self):
        self.use(GOLDEN / "deepseek-v3-fp8" / "source")

    def test_every_dtype(self):
        self.use(GOLDEN / "every-dtype" / "source")

    def test_many_shards(self):
        path = fault_support.make_scale(self.directory / "scale", "deepseek-v3", "--layers", "5")
        self.use(path)


if __name__ == "__main__":
    unittest.main(verbosity=2)
