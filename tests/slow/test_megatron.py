#!/usr/bin/env python3
"""megatron-core loads what ckfs shows as its checkpoint, at tensor parallelism 1 and 2, from a mount and
from an export: the tensors that it got together are those that a converter made of the same model.

Runs in the environment that `./dev venv megatron` makes, as a part of `./dev test --all`.
"""
import collections
import contextlib
import hashlib
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import unittest

import torch

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "golden"))
import ways  # noqa: E402

DATA = ways.DATA.parent / "megatron"
CASES = sorted(path.parent.name for path in DATA.glob("back-*/expected.json"))
NAMES = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32"}


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def load(jobs, ranks, work):
    file = work / "jobs.json"
    file.write_text(json.dumps([{**job, "directory": str(job["directory"]), "out": str(job["out"])}
                                for job in jobs]))
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", ranks,
               "--master_addr", "127.0.0.1", "--master_port", free_port(),
               HERE / "megatron_worker.py", file]
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode != 0:
        raise AssertionError(done.stdout.decode(errors="replace")[-4000:])


def joined(out, shapes):
    """{name: tensor}: the pieces of all ranks together."""
    parts = collections.defaultdict(list)
    for path in sorted(out.glob("*.pt")):
        for name, index, axis, place, tensor in torch.load(path):
            parts[name, index].append((place, axis, tensor))
    layers = collections.defaultdict(list)
    for (name, _), pieces in sorted(parts.items(), key=lambda item: item[0]):
        places = [place for place, *_ in pieces]
        if pieces[0][1] is None:
            assert set(places) == {0}, name
            assert all(torch.equal(bits(pieces[0][2]), bits(piece)) for *_, piece in pieces), name
            layers[name].append(pieces[0][2])
        else:
            assert sorted(places) == list(range(len(pieces))), name
            layers[name].append(torch.cat([piece for *_, piece in sorted(
                pieces, key=lambda piece: piece[0])], pieces[0][1]))
    tensors = {}
    for name, of_layers in layers.items():
        shape = shapes[name]
        whole = torch.stack(of_layers) if len(of_layers) > 1 else of_layers[0]
        if whole.numel() > torch.Size(shape).numel():  # a padded vocabulary
            assert not bits(whole[shape[0]:]).any(), name
            whole = whole[:shape[0]]
        tensors[name] = whole.reshape(shape)
    return tensors


def bits(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def digests(tensors):
    return {name: {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "computed": False,
                   "sha256": hashlib.sha256(bits(tensor).numpy().tobytes()).hexdigest()}
            for name, tensor in tensors.items()}


class Megatron(unittest.TestCase):
    def test_loads_its_checkpoints_whatever_its_parallelism_is(self):
        self.assertEqual(3, len(CASES))
        with tempfile.TemporaryDirectory(prefix="ckfs-slow-") as work, contextlib.ExitStack() as stack:
            work, jobs = pathlib.Path(work), []
            for case in CASES:
                views = json.loads((DATA / case / "expected.json").read_text())["views"][""]
                (work / case).mkdir()
                mount = stack.enter_context(ways.mounted(DATA / case / "source", work / case / "mnt"))
                for view, tensors in views.items():
                    exported = work / case / view
                    ways.run("export", DATA / case / "source", view, exported)
                    jobs += [{"directory": root / "release", "tensors": tensors}
                             for root in (mount / view, exported)]
            for ranks in (1, 2):
                for n, job in enumerate(jobs):
                    job["out"] = work / f"{ranks}-{n}"
                    job["out"].mkdir()
                load(jobs, ranks, work)
                for job in jobs:
                    with self.subTest(ranks=ranks, directory=str(job["directory"].relative_to(work))):
                        shapes = {name: tensor["shape"] for name, tensor in job["tensors"].items()}
                        self.assertEqual(job["tensors"], digests(joined(job["out"], shapes)))


if __name__ == "__main__":
    unittest.main(verbosity=2)
