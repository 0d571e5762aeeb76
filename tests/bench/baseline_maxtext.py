#!/usr/bin/env python3
"""What people run today: a Hugging Face checkpoint of Qwen3-MoE as an Orbax checkpoint.

    baseline_maxtext.py scanned|unscanned SRC OUT

safetensors, NumPy on all cores and Orbax's own save, with the arrays of `ckfs` in number, shape and
size: transposed matrices, experts stacked, layers stacked along axis 1 where they are scanned. The
values are a transpose of the source's; MaxText's scripts do more with them.
"""
import collections
import concurrent.futures
import os
import pathlib
import re
import sys

os.environ.setdefault("JAX_PLATFORMS", "cpu")
import ml_dtypes  # noqa: E402, F401  (numpy learns bfloat16)
import numpy as np  # noqa: E402
import orbax.checkpoint as ocp  # noqa: E402
from safetensors import safe_open  # noqa: E402


def tensors(source):
    for path in sorted(pathlib.Path(source).glob("*.safetensors")):
        with safe_open(path, framework="np") as file:
            for name in file.keys():  # noqa: SIM118 (safe_open is no dict)
                yield name, file.get_tensor(name)


def transposed(array):
    return np.ascontiguousarray(array.T)


def main():
    layout, source, out = sys.argv[1:]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        futures = {name: pool.submit(transposed, array) for name, array in tensors(source)}
        arrays = {name: future.result() for name, future in futures.items()}
        futures = None
        groups = collections.defaultdict(dict)  # experts of a layer are one array
        for name in list(arrays):
            match = re.search(r"experts\.(\d+)\.", name)
            key = name if match is None else name.replace(match[0], "experts.")
            groups[key][int(match[1]) if match else 0] = arrays.pop(name)
        stack = {key: pool.submit(lambda parts=parts: np.stack([parts[e] for e in sorted(parts)])
                                  if len(parts) > 1 else parts[0])
                 for key, parts in groups.items()}
        groups = None
        made = {key: future.result() for key, future in stack.items()}
        stack = None
        if layout == "scanned":
            layers = collections.defaultdict(dict)
            for key in list(made):
                match = re.search(r"layers\.(\d+)\.", key)
                layers[key if match is None else key.replace(match[0], "layers.")][
                    int(match[1]) if match else 0] = made.pop(key)
            scanned = {key: pool.submit(lambda parts=parts: np.stack(
                [parts[n] for n in sorted(parts)], axis=1 if parts[0].ndim > 1 else 0)
                if len(parts) > 1 else parts[0]) for key, parts in layers.items()}
            layers = None
            made = {key: future.result() for key, future in scanned.items()}
    ocp.PyTreeCheckpointer().save(pathlib.Path(out).absolute(), {"params": {"params": made}})


main()
