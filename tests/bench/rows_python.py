"""Rows on the Python package, in a process of its own: against safetensors on a converted copy."""
import json
import os
import statistics
import subprocess
import sys

from checkpoints import fp8, scale_checkpoint
from harness import HERE, MIB, PASSES, drop_caches, shards_of, warm

ROOT = os.path.dirname(os.path.dirname(HERE))

# Prints seconds and peak memory; `how` is one of the measured ways.
PROGRAM = """
import json, os, resource, sys, time
begin = time.perf_counter()
how, path = sys.argv[1:3]
if how != "open":
    import torch
    torch.set_num_threads(1)
if how.startswith("copy"):
    import safetensors
else:
    import ckfs
shards = sorted(name for name in os.listdir(path) if name.endswith(".safetensors"))
if how != "open":
    begin = time.perf_counter()
if how == "open":
    len(ckfs.open(path))
elif how == "view":
    model = ckfs.open(path)
    for name in model:
        model[name].torch()
elif how == "copy":
    for shard in shards:
        with safetensors.safe_open(os.path.join(path, shard), framework="pt") as file:
            for name in file.keys():
                file.get_tensor(name).clone()
else:
    if how == "load":
        model = ckfs.open(path)
        places = {name: torch.empty(tensor.shape, dtype=torch.bfloat16) for name, tensor in model.items()}
        model.load_into(places)
    else:
        places = {}
        for shard in shards:
            with safetensors.safe_open(os.path.join(path, shard), framework="pt") as file:
                for name in file.keys():
                    places[name] = torch.empty(file.get_slice(name).get_shape(), dtype=torch.bfloat16)
                    places[name].copy_(file.get_tensor(name))
print(json.dumps([time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]))
"""


def measured(bench, how, path):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, how, path], check=True, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": os.path.join(ROOT, "src/python"),
             "CKFS_LIBRARY": os.path.join(bench.build, "libckfs.so.1")})
    return json.loads(done.stdout)


def against_copy(bench, what, view, copy, cold, goal, floor, more=False):
    source = fp8(bench)
    converted = bench.path("python-copy")
    if not os.path.isdir(converted):
        subprocess.run([bench.ckfs, "export", source, "bf16-safetensors", converted], check=True,
                       stdout=subprocess.DEVNULL)
    seen = []
    for number in range(PASSES + 1):
        pair = []
        for how, path in ((view, source), (copy, converted)):
            drop_caches() if cold else warm(*shards_of(path))
            pair.append(measured(bench, how, path)[0])
        if number:  # the first warms up
            seen.append(pair)
    bench.note("; ".join(f"{name} {statistics.median(pair[k] for pair in seen):.2f} s"
                         for k, name in enumerate((view, copy))))
    ratio = statistics.median(b / a if not more else a / b for a, b in seen)
    bench.row(what, ratio, goal, floor, more=more)


def bench_python(bench):
    against_copy(bench, "torch() of every tensor of fp8 as bf16, cached : safe_open of a copy",
                 "view", "copy", False, 0.7, 0.5)
    against_copy(bench, "time of load_into() of fp8 as bf16, cold : of a converted copy",
                 "load", "copyload", True, 1.0, 1.3, more=True)
    source = scale_checkpoint(bench.path("python-scale"), "deepseek-v3")
    seconds, memory = zip(*(measured(bench, "open", source) for _ in range(3)))
    bench.row("import and open of DeepSeek-V3's shape", statistics.median(seconds), 1, 1, "s", more=True)
    bench.row("its peak memory", max(memory) * MIB / 1e6, 150, 150, "MB", more=True)
