"""Rows on quantized checkpoints and layouts of experts: speed, source bytes, conversion."""
import json
import os
import shutil
import statistics
import subprocess
import tempfile

import checkpoints
from checkpoints import FILE_BYTES
from harness import (HERE, constant, mounted, ratios, read_all, recycled_memory, shards_of,
                     status_of, timed, tmpfs, warm)
from rows_view import against_constant

BF16 = "bf16-safetensors"


def bench_int4(bench):
    against_constant(bench, "int4 to bf16", checkpoints.int4(bench), False, 0.80, 0.70)


def bench_gptoss(bench):
    source = checkpoints.gpt_oss(bench)
    against_constant(bench, "gpt-oss dense (transposed)", source, False, 0.70, 0.58)
    against_constant(bench, "gpt-oss dense (transposed)", source, True, 0.65, 0.50)


def random_reads(path):
    """Seconds for a read of 4 KiB by 16 threads, past the page cache of the mount."""
    size = os.path.getsize(path) // 4096 * 4096
    command = ["fio", "--name=reads", f"--filename={path}", "--readonly", "--rw=randread",
               "--bs=4k", "--direct=1", "--ioengine=psync", "--thread", "--numjobs=16",
               "--group_reporting", "--time_based", "--runtime=4", f"--size={size}",
               "--randrepeat=0", "--output-format=json"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return 1 / json.loads(done.stdout)["jobs"][0]["read"]["iops"]


def bench_random(bench):
    """Tiles would serve many of such reads if they stayed; with 64 MiB few do."""
    for what, source, view, limit in (
            ("stacked bf16 experts", checkpoints.experts_packed, BF16 + "@experts=fused", 0.2),
            ("gpt-oss dense", checkpoints.gpt_oss, BF16, None)):
        directory = source(bench)
        with constant(bench, FILE_BYTES) as ceiling, \
                mounted(bench, directory, "--memory", "64MiB") as mountpoint:
            path = shards_of(os.path.join(mountpoint, view))[0]
            warm(*shards_of(directory))
            (ratio,), speeds = ratios([lambda: random_reads(ceiling), lambda: random_reads(path)],
                                      3)
        bench.note(f"{what}: constant {speeds[0] * 1e9:.0f} reads/s, view {speeds[1] * 1e9:.0f}, "
                   f"{ratio:.3f}")
        if limit is not None:
            bench.row(f"{what} transposed, random 4 KiB reads, 16 threads : constant server",
                      ratio, limit, limit)


def bench_conversion(bench):
    """`ckfs export` against the converter of compressed-tensors, which does the same."""
    source = checkpoints.int4(bench)
    python = os.path.join(HERE, "..", "..", ".venv", "compressed", "bin", "python")
    with recycled_memory(10 << 30), tmpfs(bench, "tmpfs", "6g") as out:
        def tool():
            directory = os.path.join(tempfile.mkdtemp(dir=out), "view")
            result = timed([python, os.path.join(HERE, "baseline_compressed.py"), source, directory])
            shutil.rmtree(os.path.dirname(directory))
            return result

        def ckfs():
            directory = os.path.join(tempfile.mkdtemp(dir=out), "view")
            result = timed([bench.ckfs, "export", source, BF16, directory])
            shutil.rmtree(os.path.dirname(directory))
            return result

        tool(), ckfs()
        seen = [(tool(), ckfs()) for _ in range(3)]
    t, c = (statistics.median(one[k][0] for one in seen) for k in (0, 1))
    bench.note(f"compressed-tensors {t:.2f} s, ckfs {c:.2f} s for {2 * FILE_BYTES / 1e9:.1f} GB")
    bench.row("export of int4 to bf16, tmpfs : compressed-tensors",
              statistics.median(a[0] / b[0] for a, b in seen), 7, 5)
    bench.row("its peak memory : compressed-tensors'",
              statistics.median(b[1] / a[1] for a, b in seen), 0.1, 0.1, more=True)


def source_ratio(bench, source, view, *options):
    """Source bytes that a reader of all of a view, in order, costs : those of all tensors."""
    needed = sum(os.path.getsize(path) - 8 - header_size(path) for path in shards_of(source))
    with mounted(bench, source, "--memory", "256MiB", *options) as mountpoint:
        paths = shards_of(os.path.join(mountpoint, view))
        before = status_of(bench, mountpoint)["source_bytes"]
        for path in paths:
            read_all(path, True)
        return (status_of(bench, mountpoint)["source_bytes"] - before) / needed


def header_size(path):
    with open(path, "rb") as f:
        return int.from_bytes(f.read(8), "little")


def bench_needed(bench):
    """Whatever the encoding and the layout, each source byte is read once. By reads: of a mapping
    nothing is counted twice that lies in the page cache."""
    fused, linear, packed = (f"{BF16}@experts={layout}" for layout in ("fused", "linear", "packed"))
    for what, source, views in (
            ("int4", checkpoints.int4, [BF16]),
            ("int4, columns in any order", checkpoints.int4_in_order, [BF16]),
            ("nvfp4", checkpoints.nvfp4, [BF16]),
            ("nf4, nested", checkpoints.nf4, [BF16]),
            ("GPTQ", lambda b: checkpoints.column_codes(b, "gptq"), [BF16]),
            ("GPTQ, rows in any order", lambda b: checkpoints.column_codes(b, "gptq", True), [BF16]),
            ("AWQ", lambda b: checkpoints.column_codes(b, "awq"), [BF16]),
            ("gpt-oss", checkpoints.gpt_oss, [BF16, linear, packed]),
            ("int4 experts", checkpoints.experts_by_one, [BF16, fused]),
            ("stacked experts", checkpoints.experts_packed, [BF16, fused, linear])):
        directory = source(bench)
        for view in views:
            layout = view.partition("=")[2] or "as the source has it"
            for reader in ("auto", "pread"):
                bench.row(f"{what}, {layout}, --io {reader}: source bytes : needed",
                          source_ratio(bench, directory, view, "--io", reader), 1.05, 1.05,
                          more=True)
        if directory not in (bench.path("int4"), bench.path("gpt-oss")):
            shutil.rmtree(directory)
