"""One rank of a program on Megatron-Core that loads models on CPU: its part of each tensor, as
Megatron's own layers ask for it.

    megatron_worker.py JOBS.json      started by torch.distributed.run

JOBS.json is a list of {"directory", "tensors": {name: {"dtype", "shape"}}, "out"}. A rank saves its pieces
in out/RANK.pt: a list of (name, index of layer and expert, axis that ranks share, place along it, tensor).
"""
import itertools
import json
import os
import re
import sys

import torch
import torch.distributed as dist

# Nothing here runs on a GPU, and nothing is compiled.
torch.cuda.current_device = lambda: torch.device("cpu")
torch.cuda.synchronize = lambda *_: None
torch.compile = lambda f=None, *_, **__: f if f is not None else (lambda g: g)

from megatron.core import dist_checkpointing  # noqa: E402
from megatron.core.dist_checkpointing import ShardedTensor  # noqa: E402

ROWS = re.compile(r"(linear_qkv|linear_fc1|linear_q_up_proj|linear_kv_up_proj|linear_q_proj|word_embeddings|"
                  r"output_layer|eh_proj)\.(weight|bias)$|softmax_offset$")
COLUMNS = re.compile(r"(linear_proj|linear_fc2)\.weight$")
GATED = re.compile(r"linear_fc1\.(weight|bias)$")
VOCABULARY = re.compile(r"(word_embeddings|output_layer)\.weight$")
STACKED_LAYERS = re.compile(r"^decoder\.layers\.(?!\d)")
STACKED_EXPERTS = re.compile(r"\.experts\.experts\.(?!\d)")
DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}


def padded(rows, ranks):
    """Rows of a vocabulary, as Megatron makes them divisible."""
    return -(-rows // (8 * ranks)) * 8 * ranks


def asked(name, dtype, shape, rank, ranks):
    """[(piece without its tensor, ShardedTensor)]: a layer and an expert at a time, the halves of a gated
    MLP each by itself."""
    leading = bool(STACKED_LAYERS.search(name)) + bool(STACKED_EXPERTS.search(name))
    axis = 0 if ROWS.search(name) else 1 if COLUMNS.search(name) else None
    halves = 2 if GATED.search(name) else 1
    vocabulary = bool(VOCABULARY.search(name))
    for index in itertools.product(*map(range, shape[:leading])):
        for half in range(halves):
            local, places, replica, place = list(shape[leading:]), [], (0, rank, 0), 0
            places = [(d, i, shape[d]) for d, i in enumerate(index)]
            if vocabulary:
                local[0] = padded(local[0], ranks)
            if axis is not None:
                place, replica = half * ranks + rank, (0, 0, 0)
                assert local[axis] % (ranks * halves) == 0, name
                local[axis] //= ranks * halves
                places.append((leading + axis, place, ranks * halves))
            # Not zeros, with which padding is filled.
            yield (name, index, axis, place), ShardedTensor.from_rank_offsets(
                name, torch.ones(local, dtype=DTYPES[dtype]), *places, replica_id=replica,
                prepend_axis_num=leading, allow_shape_mismatch=vocabulary)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    with open(sys.argv[1]) as file:
        jobs = json.load(file)
    for job in jobs:
        pieces = [piece for name, tensor in job["tensors"].items()
                  for piece in asked(name, tensor["dtype"], tensor["shape"], rank, ranks)]
        loaded = dist_checkpointing.load({str(n): tensor for n, (_, tensor) in enumerate(pieces)},
                                         job["directory"])
        common = dist_checkpointing.load_common_state_dict(job["directory"])
        assert (common["iteration"], common["checkpoint_version"]) == (0, 3.0), common
        stored = dist_checkpointing.load_tensors_metadata(job["directory"])
        assert set(stored) == set(job["tensors"]), set(stored) ^ set(job["tensors"])
        torch.save([(*piece, loaded[str(n)].clone()) for n, (piece, _) in enumerate(pieces)],
                   os.path.join(job["out"], f"{rank}.pt"))
    dist.barrier()
    dist.destroy_process_group()


main()
sys.stdout.flush()
sys.stderr.flush()
os._exit(0)  # threads of torch's that are left to the interpreter's end have aborted a worker there
