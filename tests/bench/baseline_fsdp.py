#!/usr/bin/env python3
"""What people run today: verl's merge of the files of FSDP ranks, to safetensors in BF16.

    baseline_fsdp.py SRC OUT

As verl/model_merger/fsdp_model_merger.py does it for one mesh axis: every rank's file is loaded by
threads, each part is cast, and the parts of a tensor are put one behind the other; the model is then
saved in shards of 5 GB. Prints the seconds that it took, without those of importing torch.
"""
import concurrent.futures
import os
import re
import sys
import time

import torch
from huggingface_hub import save_torch_state_dict
from torch.distributed.tensor import DTensor


def load(path):
    return torch.load(path, map_location="cpu", weights_only=False)


def main():
    source, out = sys.argv[1:]
    begin = time.perf_counter()
    paths = sorted((os.path.join(source, name) for name in os.listdir(source)
                    if re.fullmatch(r"model_world_size_\d+_rank_\d+\.pt", name)),
                   key=lambda path: int(re.search(r"rank_(\d+)", path)[1]))
    with concurrent.futures.ThreadPoolExecutor(min(32, os.cpu_count())) as pool:
        ranks = list(pool.map(load, paths))
    merged = {}
    for name in list(ranks[0]):
        parts = []
        for rank in ranks:
            tensor = rank.pop(name)
            local = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
            parts.append(local.bfloat16())
        merged[name] = torch.cat(parts, dim=0)
    del ranks
    os.makedirs(out)
    save_torch_state_dict(merged, out, max_shard_size="5GB")
    print(time.perf_counter() - begin)


main()
