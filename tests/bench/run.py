#!/usr/bin/env python3
"""Measures ckfs against stated baselines, all sides interleaved in one run; prints tables of ratios.

    run.py --build DIR [--ckfs FILE] [NAME...]

All rows without a NAME. --ckfs measures another program than DIR/ckfs (the programs in DIR/tests are
still those of the build): what it was before a change.
Every throughput row is the median over passes of the ratio of two neighbouring measurements, after a
warm-up pass: this machine's speed drifts, the ratio of neighbours does not. Rows end with `ok`,
`below goal`, or `BELOW FLOOR`; the last makes the run fail. A run in which the constant-memory server
is itself too slow says `void`, and fails.
"""
import argparse
import os
import resource
import sys
import tempfile
import time

import rows_far
import rows_fsdp
import rows_maxtext
import rows_many
import rows_megatron
import rows_orbax
import rows_python
import rows_quantized
import rows_quantizing
import rows_reads
import rows_serve
import rows_source
import rows_view
import rows_zero
from harness import Bench

# In the order in which they run.
NAMES = ("kernels", "cached", "direct", "reread", "export", "mount", "memory", "gather", "bytes",
         "amplification", "idle", "boxes", "int4", "gptoss", "random", "conversion", "needed",
         "quantize", "zero",
         "fsdp", "megatronmount", "megatron", "ranks", "fleet", "split", "digest", "verify", "slow", "network", "far", "farmount",
         "farfaults", "decode", "chunks", "reshard", "cold", "maxtext", "uncompressed", "maxtextmount",
         "orbaxmount", "dcpmount", "restore", "save", "neededmaxtext", "python", "serve", "runai")
MODULES = (rows_view, rows_reads, rows_quantized, rows_quantizing, rows_zero, rows_fsdp, rows_megatron, rows_many, rows_orbax,
           rows_source, rows_far, rows_maxtext, rows_python, rows_serve)
BENCHES = {name: next(getattr(module, "bench_" + name) for module in MODULES
                      if hasattr(module, "bench_" + name)) for name in NAMES}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", required=True)
    parser.add_argument("--ckfs", help="the program to measure, if not the build's")
    parser.add_argument("names", nargs="*", choices=[[], *BENCHES], metavar="NAME",
                        help=" ".join(BENCHES))
    arguments = parser.parse_args()
    build = os.path.abspath(arguments.build)
    ckfs = os.path.abspath(arguments.ckfs or os.path.join(build, "ckfs"))
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ckfs-bench.", dir=build) as work:
        bench = Bench(build, ckfs, os.path.abspath(work))
        for name in arguments.names or BENCHES:
            print(name, flush=True)
            before = time.monotonic()
            BENCHES[name](bench)
            bench.note(f"[{time.monotonic() - before:.0f} s]")
    print(f"bench: {time.monotonic() - started:.0f} s", file=sys.stderr)
    if bench.failed:
        print("bench: below the floor: " + "; ".join(bench.failed), file=sys.stderr)
    return 1 if bench.failed else 0


if __name__ == "__main__":
    sys.exit(main())
