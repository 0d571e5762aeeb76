#!/usr/bin/env python3
"""What a loader does with a directory of safetensors files, as a program of its own: its mappings
end with it, and what it imports is in memory before the clock starts.

    loads.py load_file FILE...             every tensor of every file, copied
    loads.py safe_open FILE TENSOR         one tensor
    loads.py slices FILE NUMBER            row part NUMBER of four of each matrix, by get_slice
    loads.py from_pretrained DIRECTORY     transformers
    loads.py mappings FILE...              a new open and mapping for each tensor, as llama.cpp's
                                           converter does

Prints "ready", waits for a line, loads, and prints the seconds that took.
"""
import json
import mmap
import os
import sys
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch  # noqa: E402
from safetensors import safe_open  # noqa: E402
from safetensors.torch import load_file  # noqa: E402


def load_files(*paths):
    for path in paths:
        for tensor in load_file(path).values():
            tensor.clone()  # on a CPU the tensors are pages of the file until somebody reads them


def one_tensor(path, name):
    with safe_open(path, "pt") as file:
        file.get_tensor(name).clone()


def slices(path, number):
    with safe_open(path, "pt") as file:
        for name in file.keys():
            part = file.get_slice(name)
            shape = part.get_shape()
            if len(shape) == 2:
                rows = shape[0] // 4
                part[int(number) * rows:(int(number) + 1) * rows].clone()


def from_pretrained(directory):
    model = Auto.from_pretrained(directory, dtype="auto")
    for parameter in model.parameters():
        parameter.data.clone()


def mappings(*paths):
    for path in paths:
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        for entry in header.values():
            begin, end = (8 + length + offset for offset in entry["data_offsets"])
            with open(path, "rb") as file, \
                    mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ) as mapped:
                mapped[begin:end]


MODES = {"load_file": load_files, "safe_open": one_tensor, "slices": slices,
         "from_pretrained": from_pretrained, "mappings": mappings}

if sys.argv[1] == "from_pretrained":
    from transformers import AutoModelForCausalLM as Auto
    from transformers.models.llama import modeling_llama  # noqa: F401, found by name later
    from transformers.utils import logging
    logging.disable_progress_bar()
torch.set_num_threads(1)  # a copy goes from front to back, as one to a GPU does
print("ready", flush=True)
sys.stdin.readline()
start = time.perf_counter()
MODES[sys.argv[1]](*sys.argv[2:])
print(time.perf_counter() - start, flush=True)
