"""Compressed chunks that Orbax wrote: the bytes of views, and how often they are decoded."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/bench"))
sys.path.insert(0, str(ROOT / "tests/cli"))
from support import ocp  # noqa: E402

import baseline_orbax  # noqa: E402
import jax  # noqa: E402
import json_schema  # noqa: E402
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

    def test_inspect_names_no_option_that_does_not_help(self):
        recipe = os.path.join(self.directory.name, "recipe.json")
        rules = [{"select": "params.rows"},
                 {"take": "params.rows", "do": [{"slice": 0, "begin": 511}], "give": "row"}]
        pathlib.Path(recipe).write_text(json.dumps({"view": "one", "from": "safetensors", "rules": rules}))
        for memory in ("64MiB", "40GiB", f"{1 << 23}TiB"):
            report = json.loads(ckfs("inspect", self.item, "--recipe", recipe, "--view", "one", "--json",
                                     "--memory", memory))["decoding"]
            self.assertGreater(report["decoded"], 1.5 * report["needed"])
            self.assertEqual(report["mends"], [])

    def test_inspect_says_what_reading_decodes(self):
        report = json.loads(ckfs("inspect", self.item, "--view", "safetensors", "--json"))
        self.assertEqual(report["decoding"]["needed"], self.chunks())
        self.assertEqual(report["decoding"]["chunks"], self.chunks())
        self.assertEqual(report["decoding"]["mends"], [])
        schema = json.loads((ROOT / "docs/schema/inspect_view.json").read_text())
        self.assertEqual(json_schema.problems(report, schema), [])


def written_by(pid):
    """Bytes that a process has written; 0 of one that has ended."""
    try:
        text = pathlib.Path(f"/proc/{pid}/io").read_text()
    except OSError:
        return 0
    return int(re.search(r"wchar: (\d+)", text)[1])


class SourceOrder(unittest.TestCase):
    """Export of a tree whose layers lie inside its chunks, in the order of the source."""

    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.directory.cleanup)
        cls.root = pathlib.Path(cls.directory.name)
        baseline_orbax.write(cls.root, 4, 512)
        cls.options = ["--config", cls.root, cls.root / "item", "bf16-safetensors"]
        cls.want = ckfs("cat", *cls.options[:-1], "bf16-safetensors/model.safetensors", "--memory", "4GiB")

    def setUp(self):
        self.out = self.root / "out"
        self.addCleanup(shutil.rmtree, self.out, ignore_errors=True)

    def command(self, *more):
        return [str(word) for word in (CKFS, "export", *self.options, self.out, "--memory", "64MiB", *more)]

    def expect(self):
        self.assertTrue((self.out / "model.safetensors").read_bytes() == self.want)

    def test_the_bytes_are_those_that_numpy_makes(self):
        found = tensors(self.want)
        tree = ocp.PyTreeCheckpointer().restore(self.root / "item")["params"]["params"]
        arrays = {name: np.asarray(value) for name, value in baseline_orbax.leaves(tree)}
        for name, array in baseline_orbax.hugging_face(arrays).items():
            if "q_proj" not in name:  # they are scaled
                self.assertEqual(found[name], np.ascontiguousarray(array).tobytes(), name)

    def test_each_chunk_is_decoded_once(self):
        log = subprocess.run(self.command("--log-level", "info"), check=True, capture_output=True, text=True).stderr
        self.expect()
        self.assertIn("in the order of its source", log)
        report = json.loads(ckfs("inspect", "--config", self.root, self.root / "item", "--view",
                                 "bf16-safetensors", "--json", "--memory", "64MiB"))["decoding"]
        # What helps is what each chunk once is tolerable for.
        self.assertGreater(report["decoded"], 1.5 * report["needed"])
        self.assertIn("export", report["mends"])
        decoded = int(re.search(r"(\d+) bytes of chunks were decoded", log)[1])
        self.assertLessEqual(decoded, 1.02 * report["chunks"])
        self.assertEqual(sorted(os.listdir(self.out)), ["config.json", "model.safetensors"])

    def test_a_killed_export_goes_on(self):
        for share in (0.1, 0.4, 0.7, 0.95):
            with subprocess.Popen(self.command("--jobs", "1"), stdout=subprocess.DEVNULL) as run:
                while run.poll() is None and written_by(run.pid) < share * len(self.want):
                    pass
                run.kill()
            if run.returncode != 0:
                self.assertFalse((self.out / "model.safetensors").exists())
            subprocess.run(self.command(), check=True, capture_output=True)
            self.expect()
            shutil.rmtree(self.out)


if __name__ == "__main__":
    unittest.main()
