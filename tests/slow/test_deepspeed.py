#!/usr/bin/env python3
"""DeepSpeed trains and saves a fresh checkpoint; what its zero_to_fp32 makes of it and what ckfs shows
must be the same files, byte for byte.

Runs in the environment that `./dev venv deepspeed` makes, as a part of `./dev test --all`.
"""
import contextlib
import os
import pathlib
import random
import socket
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "golden"))
import ways  # noqa: E402

with contextlib.redirect_stdout(sys.stderr):
    from deepspeed.utils.zero_to_fp32 import convert_zero_checkpoint_to_fp32_state_dict

# stage, dtype, ranks, sub_group_size
RUNS = [("1", "bf16", 2, 0), ("2", "bf16", 3, 0), ("2", "fp32", 2, 0), ("3", "bf16", 2, 10**9),
        ("3", "bf16", 3, 300)]


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def train(out, stage, dtype, ranks, sub_group_size, seed):
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", ranks,
               "--master_addr", "127.0.0.1", "--master_port", free_port(),
               HERE / "zero_worker.py", out, stage, dtype, sub_group_size, seed]
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode != 0:
        raise AssertionError(done.stdout.decode(errors="replace")[-4000:])
    return out


class FreshCheckpoint(unittest.TestCase):
    def test_gives_the_files_of_zero_to_fp32(self):
        seed = random.randrange(10**6)
        for stage, dtype, ranks, sub_group_size in RUNS:
            with self.subTest(stage=stage, dtype=dtype, ranks=ranks, sub_groups=sub_group_size,
                              seed=seed), tempfile.TemporaryDirectory(prefix="ckfs-slow-") as work:
                work = pathlib.Path(work)
                source = train(work / "run", stage, dtype, ranks, sub_group_size, seed)
                for shard, view in (("5GB", "fp32-consolidated"),
                                    ("3KB", "fp32-consolidated@max_shard=3KB")):
                    want, got = work / f"tool-{shard}", work / f"ckfs-{shard}"
                    with contextlib.redirect_stdout(sys.stderr):
                        convert_zero_checkpoint_to_fp32_state_dict(
                            str(source), str(want), max_shard_size=shard, safe_serialization=True)
                    got.mkdir()
                    ways.by_export(source, view, got, work, [])
                    self.assertEqual(sorted(ways.files_of(want)), sorted(ways.files_of(got)))
                    for name, data in ways.files_of(want).items():
                        self.assertTrue(data == ways.files_of(got)[name], f"{view}/{name}")


if __name__ == "__main__":
    unittest.main()
