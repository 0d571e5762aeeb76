#!/usr/bin/env python3
"""Random state dicts, written by torch in each of its containers: the view `safetensors` must have
their very bytes (but for complex128, which it cannot hold), and `fp32-consolidated@format=bin` what
torch makes of them.

Seeds are fixed, so that a run can be repeated: forty, a hundred with CKFS_GOLDEN=all;
CKFS_SEEDS=FIRST-LAST tries others.
"""
import collections
import json
import os
import random
import unittest

import torch
import torch.distributed.checkpoint as dcp
from support import WorkDirectory, load_all, run, same_bits

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8,
          torch.int16, torch.int32, torch.int64, torch.bool, torch.complex64, torch.complex128,
          torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2,
          torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]
CAST = {torch.float64, torch.float32, torch.float16, torch.bfloat16}
FIRST, LAST = map(int, os.environ.get(
    "CKFS_SEEDS", "0-99" if os.environ.get("CKFS_GOLDEN") == "all" else "0-39").split("-"))


def dense(tensor):
    """A copy in row-major order that shares nothing."""
    return torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor.detach())


def random_tensor(rng):
    dtype = rng.choice(DTYPES)
    shape = [0 if rng.random() < 0.03 else rng.choice([1, 2, 3, 4, 5, 8, 17])
             for _ in range(rng.choice([0, 1, 1, 2, 2, 3, 4]))]
    tensor = torch.empty(shape, dtype=dtype)
    size = tensor.nbytes
    data = bytearray(byte % 2 if dtype == torch.bool else byte for byte in rng.randbytes(size))
    if size > 0:
        tensor = torch.frombuffer(data, dtype=torch.uint8).clone().view(dtype).reshape(shape)
    return tensor


def random_view(rng, pool):
    """A tensor, or a piece, another order or another shape of one that is there already."""
    tensor = rng.choice(pool) if pool and rng.random() < 0.4 else random_tensor(rng)
    way = rng.choice(["whole", "whole", "slice", "permute", "expand", "flat", "scalar", "row"])
    if tensor.numel() == 0 or tensor.ndim == 0:
        way = "whole"
    if way == "slice":
        steps = 2 if rng.random() < 0.3 else 1
        return tensor[tuple(slice(rng.randrange(size), None, steps) for size in tensor.shape)]
    if way == "permute":
        return tensor.permute(rng.sample(range(tensor.ndim), tensor.ndim))
    if way == "expand":
        return tensor[:1].expand([rng.randrange(1, 4), *tensor.shape[1:]])
    if way == "flat" and tensor.is_contiguous():
        return tensor.flatten()[: rng.randrange(1, tensor.numel() + 1)]
    if way == "row" and tensor.is_contiguous():  # the same bytes in another shape
        return tensor.reshape(1, -1)
    if way == "scalar":
        return tensor[tuple(rng.randrange(size) for size in tensor.shape)]
    if tensor.dtype in CAST and rng.random() < 0.3:
        return torch.nn.Parameter(tensor.detach(), requires_grad=rng.random() < 0.5)
    return tensor


def random_state(rng):
    pool, state = [], collections.OrderedDict() if rng.random() < 0.5 else {}
    for number in range(rng.randrange(1, 16)):
        tensor = random_view(rng, pool)
        pool.append(tensor.detach())
        state[rng.choice(["", "m.", "layers.3.", "é."]) + f"w{number}"] = tensor
    return state


def save_file(rng, state, path, **options):
    whole = state
    if rng.random() < 0.4:
        whole = {rng.choice(["state_dict", "model", "module"]): state, "epoch": 3,
                 "hyper_parameters": {"lr": 1e-3, "sizes": [1, (2,)]}}
    torch.save(whole, path / rng.choice(["pytorch_model.bin", "model.pt"]), **options)


def save_sharded(rng, state, path):
    files = [f"pytorch_model-{number:05d}-of-00003.bin" for number in (1, 2, 3)]
    weight_map = {name: rng.choice(files) for name in state}
    for file in set(weight_map.values()):
        torch.save({name: state[name] for name in state if weight_map[name] == file}, path / file)
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (path / "pytorch_model.bin.index.json").write_text(json.dumps(index))


WRITERS = {
    "zip": save_file,
    "protocol 4": lambda *words: save_file(*words, pickle_protocol=4),
    "legacy": lambda *words: save_file(*words, _use_new_zipfile_serialization=False),
    "sharded": save_sharded,
    "dcp": lambda rng, state, path: dcp.save(dict(state), checkpoint_id=path),
}


class RandomStates(WorkDirectory):
    def test_are_shown_as_torch_has_them(self):
        for seed in range(FIRST, LAST + 1):
            for writer, save in WRITERS.items():
                with self.subTest(seed=seed, writer=writer):
                    self.check(random.Random(seed), save, self.work / f"{seed}-{writer}")

    def check(self, rng, save, path):
        state = random_state(rng)
        path.mkdir()
        save(rng, state, path)
        out = path.with_suffix(".out")
        run("export", path, "safetensors", out)
        got = load_all(out)
        self.assertEqual(set(got), {name for name in state if state[name].dtype != torch.complex128})
        for name, tensor in got.items():
            self.assertTrue(same_bits(dense(state[name]), dense(tensor)), name)

        out = path.with_suffix(".bin")
        run("export", path, "fp32-consolidated@format=bin", out)
        got = torch.load(out / "pytorch_model.bin", weights_only=True)
        self.assertEqual(set(got), set(state))
        for name, tensor in state.items():
            want = dense(tensor.float() if tensor.dtype in CAST else tensor)
            self.assertEqual((want.dtype, want.shape), (got[name].dtype, got[name].shape), name)
            # Not the payloads of NaN: docs/SEMANTICS.md.
            comparable = [value.nan_to_num(nan=1.5) if tensor.dtype in CAST else value
                          for value in (want, dense(got[name]))]
            self.assertTrue(same_bits(*comparable), name)


if __name__ == "__main__":
    unittest.main()
