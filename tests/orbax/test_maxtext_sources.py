#!/usr/bin/env python3
"""MaxText's trees as sources, with Orbax on both sides: it restores the trees that views make of
them, and it writes the training states that views of models are read from.
"""
import json
import pathlib
import shutil
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import support  # noqa: E402
import jax  # noqa: E402
import ml_dtypes  # noqa: E402
import naive  # noqa: E402
import numpy as np  # noqa: E402
import orbax.checkpoint as ocp  # noqa: E402
import ways  # noqa: E402
from counting_source import CountingSource  # noqa: E402
from maxtext_cases import DATA, TREES, differences, options_of, tree_of  # noqa: E402

DTYPES = {"BF16": np.dtype(ml_dtypes.bfloat16), "F32": np.dtype("<f4"), "I32": np.dtype("<i4")}


class Trees(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="ckfs-orbax-")
        self.addCleanup(temporary.cleanup)
        self.work = pathlib.Path(temporary.name)


class Restore(Trees):
    """Each tree that views make of another, from a mount and, every third, from an export."""

    def check(self, case, tree):
        self.assertEqual([], list(differences(case, support.arrays(tree))))

    def test_every_tree_that_is_made_of_one(self):
        cases = [case for case in TREES if case["view"].startswith("maxtext")]
        for number, case in enumerate(cases):
            with self.subTest(**case):
                source, options = tree_of(case, self.work / f"tree{number}")
                options += options_of(case)
                out = self.work / "out"
                if number % 3 == 0:
                    ways.run("export", source, case["view"], out, *options)
                    self.check(case, support.by_pytree(out / "0/items"))
                    shutil.rmtree(out)
                with ways.mounted(source, self.work / "mnt", *options) as mount:
                    self.check(case, support.by_maxtext(mount / case["view"] / "0/items"))


class TrainingStates(Trees):
    def state(self, case, view):
        """The tree of a training state: parameters, moments of the same shapes, a step."""
        def nested(values):
            tree = {}
            for name, value in values.items():
                at = tree
                *path, last = name.split(".")
                for key in path:
                    at = at.setdefault(key, {})
                at[last] = value
            return tree
        found = {name: np.frombuffer(tensor.data, DTYPES[tensor.dtype]).reshape(tensor.shape)
                 for name, tensor in naive.read(DATA / case / f"expected/{view}.safetensors").items()
                 if name.startswith("params.")}
        random = np.random.default_rng(7)
        moments = {name: random.random(value.shape, np.float32) for name, value in found.items()}
        return {**nested(found), "step": np.int32(7),
                "opt_state": {"mu": nested(moments), "nu": nested(moments), "count": np.int32(7)}}

    def test_views_of_models_are_those_of_the_parameters_alone(self):
        config = DATA / "qwen3-moe/source"
        want = {name: (tensor.dtype, tensor.shape, tensor.data) for name, tensor in
                naive.read(DATA / "qwen3-moe/expected/hf-from-scanned.safetensors").items()}
        for view in ("scanned", "unscanned"):
            for ocdbt in (False, True):
                with self.subTest(view=view, ocdbt=ocdbt):
                    item = self.work / f"{view}-{ocdbt}"
                    ocp.PyTreeCheckpointer(use_ocdbt=ocdbt).save(item, self.state("qwen3-moe", view))
                    out = self.work / "out"
                    with CountingSource(item, self.work / "source") as source:
                        ways.run("export", source.path, "bf16-safetensors", out,
                                 "--config", config)
                        read = {name for name, _, size in source.log() if size > 0}
                    got = {name: (tensor.dtype, tensor.shape, tensor.data)
                           for name, tensor in naive.read_all(out).items()}
                    self.assertTrue(want == got)
                    shutil.rmtree(out)
                    # Without a database, each array is a directory. Files of a few bytes are
                    # looked at when a source is opened: they may be Git-LFS pointers.
                    chunks = {str(path.relative_to(item)) for path in item.rglob("opt_state*/*")
                              if path.stat().st_size > 1024}
                    self.assertEqual(bool(chunks), not ocdbt)
                    self.assertEqual(set(), chunks & read)
                    report = json.loads(ways.run("inspect", item, "--config", config, "--json"))
                    views = {one["name"] for one in report["views"] if one["available"]}
                    self.assertLessEqual({"maxtext-scanned", "fp32-safetensors"}, views)

    def test_random_keys_of_jax_are_no_weights_wherever_they_lie(self):
        want = {name: (tensor.dtype, tensor.shape, tensor.data) for name, tensor in
                naive.read(DATA / "qwen3-moe/expected/hf-from-scanned.safetensors").items()}
        state = self.state("qwen3-moe", "scanned")
        state["params"]["params"]["decoder"]["noise"] = {"key": jax.random.key(3),
                                                         "keys": jax.random.split(jax.random.key(4), 5)}
        state["rng"] = jax.random.key(5)
        for ocdbt in (False, True):
            with self.subTest(ocdbt=ocdbt):
                item = self.work / f"keys-{ocdbt}"
                handler = ocp.PyTreeCheckpointHandler(use_ocdbt=ocdbt)
                ocp.Checkpointer(handler).save(item, ocp.args.PyTreeSave(state))
                out = self.work / "out"
                ways.run("export", item, "bf16-safetensors", out, "--config", DATA / "qwen3-moe/source")
                self.assertTrue(want == {name: (tensor.dtype, tensor.shape, tensor.data)
                                         for name, tensor in naive.read_all(out).items()})
                shutil.rmtree(out)
                # The view of the whole tree has them.
                ways.run("export", item, "orbax", out)
                restored = ocp.PyTreeCheckpointer().restore(out)
                self.assertEqual(jax.random.key_data(state["rng"]).tolist(),
                                 jax.random.key_data(restored["rng"]).tolist())
                shutil.rmtree(out)


if __name__ == "__main__":
    unittest.main()
