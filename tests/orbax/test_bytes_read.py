#!/usr/bin/env python3
"""What Orbax's restores read: of the source nothing but headers, for metadata; of a MaxText view that
is cut as devices share its arrays, each byte once.
"""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import support  # noqa: E402
import jax  # noqa: E402
import ways  # noqa: E402
from counting_source import CountingSource  # noqa: E402

DATA = ways.DATA.parent / "maxtext"
VIEWS = ["maxtext-unscanned", "maxtext-scanned", "maxtext-scanned@ep=2",
         "maxtext-unscanned@storage=zarr3", "maxtext-scanned@storage=zarr2"]


class BytesRead(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="ckfs-orbax-")
        self.addCleanup(temporary.cleanup)
        self.work = pathlib.Path(temporary.name)

    def test_metadata_needs_no_byte_of_a_tensor(self):
        with CountingSource(DATA / "deepseek3" / "source", self.work / "source") as source:
            source.poison_tensor_data()
            with ways.mounted(source.path, self.work / "mnt") as mount:
                for view in VIEWS:
                    subprocess.run(["ls", "-lR", mount / view], check=True,
                                   stdout=subprocess.DEVNULL)
                    tree = support.tree_of(mount / view / "0" / "items")
                    self.assertGreater(len(support.leaves(tree["params"])), 20)
            ways.run("inspect", source.path)
            self.assertEqual(source.counts()["poisoned_reads"], 0)

    def test_each_device_reads_its_share_and_no_more(self):
        # Without a page cache above: what is counted is what TensorStore asks for.
        source = DATA / "deepseek3-reshard" / "source"
        for view in ("maxtext-unscanned@ep=2,fsdp=4", "maxtext-scanned@ep=2,fsdp=4"):
            with self.subTest(view=view), ways.mounted(source, self.work / "mnt") as mount, \
                    CountingSource(mount / view / "0" / "items", self.work / "item") as item:
                restored = self.restore(item.path, {"fsdp": 4, "ep": 2})
                wanted = sum(leaf.nbytes for leaf in restored)
                read = sum(size for name, _, size in item.log()
                           if name.startswith("d/") and name != "d/nodes" and size > 0)
                self.assertGreaterEqual(read, wanted)
                self.assertLessEqual(read, 1.02 * wanted)

    def restore(self, item, mesh):
        """The arrays, by a program whose devices share each as its chunks lie."""
        devices = jax.make_mesh(tuple(mesh.values()), tuple(mesh))
        tree = support.tree_of(item)
        grids = {}
        for path, leaf in support.leaves(tree["params"]):
            chunk = leaf.storage.chunk_shape
            grids[".".join(path)] = [s // c for s, c in zip(leaf.shape, chunk)]
        axes = {size: name for name, size in mesh.items()}

        def sharding_of(name, leaf):
            parts = [axes.get(count) for count in grids[name]]
            return jax.sharding.NamedSharding(devices, jax.sharding.PartitionSpec(*parts))

        restored = [leaf for _, leaf in support.leaves(support.sharded(item, sharding_of))]
        for leaf in restored:
            self.assertEqual(len(leaf.addressable_shards), 8)
        shared = [set(map(axes.get, grid)) for grid in grids.values()]
        self.assertIn({"ep", "fsdp", None}, shared)
        self.assertIn({"fsdp", None}, shared)
        return restored


if __name__ == "__main__":
    unittest.main()
