"""Compressed chunks that Orbax wrote: the bytes of views, and how often they are decoded."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from support import ocp  # noqa: E402

import jax  # noqa: E402
import ml_dtypes  # noqa: E402
import numpy as np  # noqa: E402

CKFS = os.environ.get("CKFS_BIN", "ckfs")


def ckfs(*arguments):
    return subprocess.run([CKFS, *map(str, arguments)], check=True, stdout=subprocess.PIPE).stdout


def tensors(data):
    """{name: bytes} of a safetensors file."""
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    return {name: data[8 + size + entry["data_offsets"][0]:8 + size + entry["data_offsets"][1]]
            for name, entry in header.items()}


class Chunks(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.directory.cleanup)
        cls.item = os.path.join(cls.directory.name, "item")
        mesh = jax.sharding.Mesh(np.array(jax.devices()), ("x",))
        spec = jax.sharding.PartitionSpec
        random = np.random.default_rng(0)

        def array(shape, cut):
            values = (random.standard_normal(shape, dtype=np.float32) * 0.02).astype(ml_dtypes.bfloat16)
            return jax.device_put(values, jax.sharding.NamedSharding(mesh, cut))

        cls.arrays = {"rows": array((512, 8, 1024), spec("x")),
                      "columns": array((4096, 8192), spec(None, "x")),  # each row in every chunk
                      "whole": array((300,), spec())}
        ocp.PyTreeCheckpointer().save(cls.item, {"params": cls.arrays})

    def expect(self, data):
        found = tensors(data)
        for name, array in self.arrays.items():
            self.assertEqual(found[f"params.{name}"], np.asarray(array).tobytes(), name)

    def chunks(self):
        return sum(np.asarray(array).nbytes for array in self.arrays.values())

    def test_the_view_has_the_arrays_bytes(self):
        self.expect(ckfs("cat", self.item, "safetensors/model.safetensors", "--memory", "64MiB"))

    def test_a_spill_changes_no_byte(self):
        with tempfile.TemporaryDirectory() as spill:
            self.expect(ckfs("cat", self.item, "safetensors/model.safetensors", "--memory", "64MiB",
                             "--spill", spill, "--spill-size", "20MiB"))
            self.assertEqual(os.listdir(spill), [])

    def test_an_export_decodes_each_chunk_once(self):
        with tempfile.TemporaryDirectory() as out:
            target = os.path.join(out, "view")
            ckfs("export", self.item, "safetensors", target, "--memory", "64MiB")
            self.expect(pathlib.Path(target, "model.safetensors").read_bytes())

    def test_inspect_says_what_reading_decodes(self):
        report = json.loads(ckfs("inspect", self.item, "--view", "safetensors", "--json"))
        self.assertEqual(report["decoding"]["needed"], self.chunks())
        self.assertEqual(report["decoding"]["chunks"], self.chunks())
        self.assertEqual(report["decoding"]["mends"], [])


if __name__ == "__main__":
    unittest.main()
