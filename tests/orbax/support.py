"""What the tests with Orbax share: ways to restore an item, and arrays to compare."""
import os
import pathlib
import sys

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "golden"), str(TESTS / "support")]

import jax  # noqa: E402
import numpy as np  # noqa: E402
import orbax.checkpoint as ocp  # noqa: E402
from etils import epath  # noqa: E402
from orbax.checkpoint.experimental import v1  # noqa: E402


def leaves(tree, path=()):
    """[(path, leaf)] of nested dicts; empty ones are leaves."""
    if isinstance(tree, dict) and tree:
        return [leaf for key in tree for leaf in leaves(tree[key], (*path, str(key)))]
    return [(path, tree)]


def arrays(tree):
    """{name: (dtype, shape, bytes)} of the arrays and scalars of a restored tree."""
    found = {}
    for path, leaf in leaves(tree):
        if isinstance(leaf, dict):
            continue
        value = np.asarray(leaf)
        found[".".join(path)] = (str(value.dtype), list(value.shape), value.tobytes())
    return found


def tree_of(item):
    return ocp.PyTreeCheckpointHandler().metadata(epath.Path(item)).tree


def by_pytree(item):
    """Arrays as np.ndarray, with the dtypes that are stored."""
    arguments = jax.tree.map(
        lambda leaf: ocp.RestoreArgs(restore_type=np.ndarray)
        if hasattr(leaf, "shape") else ocp.RestoreArgs(), tree_of(item))
    return ocp.PyTreeCheckpointer().restore(epath.Path(item), restore_args=arguments)


def by_standard(item):
    return ocp.StandardCheckpointer().restore(epath.Path(item))


def by_v1(item):
    return v1.load_pytree(epath.Path(item))


def sharded(item, sharding_of, key="params"):
    """The calls of MaxText's load_parameters_path; sharding_of(name, leaf) for each array."""
    tree = tree_of(item)[key]
    wanted = jax.tree_util.tree_map_with_path(
        lambda path, leaf: jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype,
            sharding=sharding_of(".".join(str(part.key) for part in path), leaf)),
        tree, is_leaf=lambda leaf: hasattr(leaf, "shape"))
    handler = ocp.PyTreeCheckpointHandler(restore_concurrent_gb=96, save_concurrent_gb=96,
                                          use_ocdbt=True, use_zarr3=True)
    arguments = ocp.checkpoint_utils.construct_restore_args(wanted)
    return ocp.Checkpointer(handler).restore(epath.Path(item), item={key: wanted}, transforms={},
                                             restore_args={key: arguments})


def by_maxtext(item):
    one = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return sharded(item, lambda name, leaf: one)


def by_manager(item):
    """item is ROOT/STEP/items"""
    item = pathlib.Path(item)
    with ocp.CheckpointManager(item.parents[1], item_names=(item.name,)) as manager:
        got = manager.restore(int(item.parent.name), args=ocp.args.Composite(
            **{item.name: ocp.args.StandardRestore()}))
    return got[item.name]


