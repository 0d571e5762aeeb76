#!/usr/bin/env python3
"""DeepSpeed trains and saves a fresh checkpoint; what its zero_to_fp32 makes of it and what ckfs shows
must be the same files, byte for byte. And its ds_to_universal joins slices of tensor parallelism: what
ckfs shows of the result are the tensors that were sliced.

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
from collections import OrderedDict

import torch
from safetensors.torch import load

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "golden"))
import ways  # noqa: E402

with contextlib.redirect_stdout(sys.stderr):
    from deepspeed.checkpoint import ds_to_universal
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


VOCABULARY, PADDED = 11, 16
# How Megatron's training script tells the converter what it has sliced, and along which dimension.
UNIVERSAL = {"universal_checkpoint_version": 0.2, "tp_replicated_parameter_patterns": ["norm"],
             "parameter_with_row_parallelism_patterns": [".*o_proj"],
             "parameter_with_2_sub_params_cat_dim_0": [".*h_to_4h"],
             "vocabulary_parameter_patterns": ["embed"], "original_vocab_size": VOCABULARY}


def slices(name, tensor, count):
    if "norm" in name:
        return [tensor] * count
    if "o_proj" in name:
        return torch.chunk(tensor, count, 1)
    if "h_to_4h" in name:
        gate, up = torch.chunk(tensor, 2)
        return [torch.cat(both) for both in zip(torch.chunk(gate, count), torch.chunk(up, count))]
    return torch.chunk(tensor, count)


def write_universal(out, model, count):
    """A universal checkpoint of `count` ranks of tensor parallelism and two of ZeRO."""
    tag, fragments = out / "step1_universal", out.with_name("fragments")
    shapes = [OrderedDict() for _ in range(count)]
    for name, tensor in model.items():
        parts = [part.contiguous() for part in slices(name, tensor, count)]
        for rank, part in enumerate(parts):
            shapes[rank][name] = part.shape
            half = part.numel() // 2
            for state in ("fp32", "exp_avg", "exp_avg_sq"):
                for zero, (begin, size) in enumerate([(0, half), (half, part.numel() - half)]):
                    ds_to_universal.dump_param_fragment(fragments, rank, zero, state, part.flatten(), name,
                                                        begin, size)
        ds_to_universal.merge_tp_slices(UNIVERSAL, tag / "zero", fragments, count,
                                        (name, [part.shape for part in parts]))
    for rank in range(count):
        module = {name: torch.zeros(shape) for name, shape in shapes[rank].items()}
        torch.save({"module": module, "buffer_names": [], "param_shapes": [shapes[rank]],
                    "shared_params": {}, "dp_world_size": 2, "mp_world_size": count,
                    "universal_checkpoint_info": UNIVERSAL}, tag / f"mp_rank_{rank:02d}_model_states.pt")
    (out / "latest_universal").write_text(tag.name)


class Universal(unittest.TestCase):
    def test_shows_the_tensors_that_were_sliced(self):
        model = {"embed.weight": torch.randn(PADDED, 6), "norm.weight": torch.randn(6),
                 "l.q_proj": torch.randn(8, 6), "l.o_proj": torch.randn(6, 8),
                 "l.h_to_4h": torch.randn(16, 6)}
        for count in (1, 2, 4):
            with self.subTest(count), tempfile.TemporaryDirectory(prefix="ckfs-slow-") as work:
                source = pathlib.Path(work, "source")
                source.mkdir()
                write_universal(source, model, count)
                shown = load(subprocess.run([ways.CKFS, "cat", source, "fp32-consolidated/model.safetensors"],
                                            check=True, stdout=subprocess.PIPE).stdout)
                self.assertEqual(sorted(shown), sorted(model))
                for name, tensor in model.items():
                    want = tensor[:VOCABULARY] if "embed" in name else tensor
                    self.assertTrue(torch.equal(shown[name], want), name)
                # What the converter does for a parameter without a gradient.
                zero = source / "step1_universal/zero/l.q_proj"
                torch.save({"param": slices("l.q_proj", model["l.q_proj"], count)[0].float()},
                           zero / "fp32.pt")
                for state in ("exp_avg", "exp_avg_sq"):
                    (zero / f"{state}.pt").unlink()
                done = subprocess.run([ways.CKFS, "inspect", source], stderr=subprocess.PIPE,
                                      stdout=subprocess.DEVNULL, text=True)
                self.assertEqual(done.returncode, 0 if count == 1 else 1, done.stderr)
                if count > 1:
                    self.assertIn("l.q_proj\" never got a gradient", done.stderr)


if __name__ == "__main__":
    unittest.main()
