#!/usr/bin/env python3
"""The ways in which a MaxText view is opened as a checkpoint: its step's directory and the item in
it, by Orbax's older interface and by its v1, with the calls of the MaxTexts that use either.
"""
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import support  # noqa: E402
import jax  # noqa: E402
import ways  # noqa: E402
from etils import epath  # noqa: E402
from maxtext_cases import DATA, differences  # noqa: E402
from orbax.checkpoint import v1  # noqa: E402


def metadata_of_the_step(root):
    """The names of the arrays and the rest of the item, as those of a tree."""
    return v1.metadata(epath.Path(root) / "0", checkpointable_name="items").metadata


def metadata_of_the_item(root):
    return v1.metadata(epath.Path(root) / "0" / "items", checkpointable_name=None).metadata


def step_by_v1(root):
    return v1.load(epath.Path(root) / "0", checkpointable_name="items")


def item_by_v1(root):
    return support.by_v1(pathlib.Path(root) / "0" / "items")


def item_by_pytree(root):
    return support.by_pytree(pathlib.Path(root) / "0" / "items")


def by_maxtext(root):
    """load_params_from_path of MaxText 0.2.5: of load_parameters_path, ROOT/0/items, it takes the
    directory above the item, asks for the stored shapes, and restores `params` alone."""
    step = epath.Path(str(epath.Path(root) / "0" / "items").removesuffix("/items"))
    name = "items" if (step / "items").exists() else None
    stored = v1.metadata(step, checkpointable_name=name).metadata
    one = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    wanted = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=one), stored["params"],
        is_leaf=lambda leaf: hasattr(leaf, "shape"))
    storage = v1.options.ArrayOptions.Saving(use_ocdbt=True, use_zarr3=True)
    context = v1.Context(
        array_options=v1.options.ArrayOptions(saving=storage),
        pytree_options=v1.options.PyTreeOptions(
            loading=v1.options.PyTreeOptions.Loading(partial_load=True)))
    with context:
        return v1.load(step, {"params": wanted}, checkpointable_name=name)


METADATA = [metadata_of_the_step, metadata_of_the_item]
ARRAYS = [step_by_v1, item_by_v1, item_by_pytree, by_maxtext]


class Openings(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="ckfs-orbax-")
        self.addCleanup(temporary.cleanup)
        self.work = pathlib.Path(temporary.name)

    def check(self, root, case):
        for opening in METADATA:
            with self.subTest(root=root, opening=opening.__name__):
                tree = opening(root)
                self.assertEqual({"opt_state", "params", "step"}, set(tree))
                shapes = {".".join(path): list(leaf.shape)
                          for path, leaf in support.leaves(tree["params"], ("params",))}
                arrays = support.arrays(item_by_pytree(root))
                self.assertEqual({name: shape for name, (_, shape, _) in arrays.items()
                                  if name != "step"}, shapes)
        for opening in ARRAYS:
            with self.subTest(root=root, opening=opening.__name__):
                arrays = support.arrays(opening(root))
                self.assertEqual([], list(differences(case, arrays)))
                if opening is not by_maxtext:
                    self.assertEqual(("int64", [], bytes(8)), arrays["step"])

    def test_every_way_opens_a_mount_and_an_export(self):
        source = DATA / "qwen3-moe" / "source"
        with ways.mounted(source, self.work / "mnt") as mount:
            for form in ("unscanned", "scanned"):
                case = {"source": "qwen3-moe", "expected": form}
                for storage in ("ocdbt", "zarr3", "zarr2"):
                    view = f"maxtext-{form}@dtype=source,storage={storage}"
                    self.check(mount / view, case)
                    out = self.work / view
                    ways.run("export", source, view, out)
                    self.check(out, case)

    def test_an_item_by_itself_is_opened_by_either_interface(self):
        source = DATA / "qwen3-moe" / "expected" / "scanned" / "0" / "items"
        with ways.mounted(source, self.work / "mnt") as mount:
            want = support.arrays(support.by_pytree(mount / "orbax"))
            self.assertIn("step", want)
            for opening in (lambda item: v1.load(epath.Path(item)), support.by_v1,
                            lambda item: v1.load(epath.Path(item), checkpointable_name=None)):
                self.assertTrue(want == support.arrays(opening(mount / "orbax")))


if __name__ == "__main__":
    unittest.main()
