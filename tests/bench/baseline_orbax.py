#!/usr/bin/env python3
"""What people run today: a MaxText checkpoint restored by Orbax and saved by safetensors, all cores.

    baseline_orbax.py write DIR LAYERS SIZE
    baseline_orbax.py export SRC OUT

`write` makes the checkpoint: scanned kernels of SIZE x LAYERS x SIZE in BF16, on 16 simulated devices,
cut along axis 0, as MaxText's converters shard them. `export` restores every array to host memory and
writes it. Prints nothing.
"""
import os
import sys

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=16"

import jax  # noqa: E402
import ml_dtypes  # noqa: E402
import numpy as np  # noqa: E402
import orbax.checkpoint as ocp  # noqa: E402
from etils import epath  # noqa: E402

BYTES = 4 << 30


def write(out, layers, size):
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("fsdp",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("fsdp"))
    random = np.random.default_rng(0)
    noise = (random.standard_normal(size * size, dtype=np.float32) * 0.02).astype(ml_dtypes.bfloat16)
    kernel = np.stack([np.roll(noise, 7919 * layer).reshape(size, size) for layer in range(layers)], axis=1)
    count = max(1, BYTES // kernel.nbytes)
    tree = {"params": {f"kernel_{i}": jax.device_put(kernel, sharding) for i in range(count)}}
    ocp.PyTreeCheckpointer().save(os.path.abspath(out), tree)


def export(source, out):
    handler = ocp.PyTreeCheckpointHandler()
    tree = handler.metadata(epath.Path(source)).tree
    arguments = jax.tree.map(lambda leaf: ocp.RestoreArgs(restore_type=np.ndarray), tree,
                             is_leaf=lambda leaf: hasattr(leaf, "shape"))
    restored = ocp.PyTreeCheckpointer().restore(epath.Path(source), restore_args=arguments)
    write_safetensors(restored["params"], os.path.join(out, "model.safetensors"))


def write_safetensors(arrays, path):
    """The header and the bytes: safetensors' own numpy writer knows no BF16."""
    import json
    header, at = {}, 0
    for name, array in arrays.items():
        header[name] = {"dtype": "BF16", "shape": list(array.shape), "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for array in arrays.values():
            f.write(np.ascontiguousarray(array).view(np.uint8).data)


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        export(*sys.argv[2:])
