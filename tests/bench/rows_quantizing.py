"""Rows on quantizing views of BF16 models: conversion, speed, source bytes, mount."""
import mmap
import os
import random
import shutil
import statistics
import subprocess
import tempfile
import time

from checkpoints import FILE_BYTES, scale_checkpoint, two_files
from harness import (BUFFER, HERE, MIB, constant, mounted, raise_readahead, ratios, read_all, recycled_memory,
                     counting, shards_of, status_of, timed, tmpfs, warm)
from rows_quantized import header_size, source_ratio
from rows_view import mount_and_list

FP8 = "fp8-safetensors"
INT4 = "ct-safetensors@scheme=W4A16"
COLUMNS, BLOCK = 7168, 128


def bf16(bench):
    def matrix(module, rows, columns):
        yield module + ".weight", "BF16", [rows, columns]
    return two_files(bench, "bf16", matrix, {"model_type": "deepseek_v3", "torch_dtype": "bfloat16"})


def conversion(bench, source):
    """`ckfs export` against slime's functions, file by file."""
    python = os.path.join(HERE, "..", "..", ".venv", "hf", "bin", "python")
    with recycled_memory(10 << 30), tmpfs(bench, "tmpfs-fp8", "3g") as out:
        def run(*command):
            directory = os.path.join(tempfile.mkdtemp(dir=out), "view")
            warm(*shards_of(source))
            result = timed([*command, directory])
            shutil.rmtree(os.path.dirname(directory))
            return result

        def tool():
            return run(python, os.path.join(HERE, "baseline_fp8.py"), source)

        def ckfs():
            return run(bench.ckfs, "export", source, FP8)

        tool(), ckfs()
        seen = [(tool(), ckfs()) for _ in range(3)]
    t, c = (statistics.median(one[k][0] for one in seen) for k in (0, 1))
    bench.note(f"slime's functions {t:.2f} s, ckfs {c:.2f} s for {2 * FILE_BYTES / 1e9:.1f} GB")
    bench.row("export of BF16 to FP8, tmpfs : slime's functions, all cores",
              statistics.median(a[0] / b[0] for a, b in seen), 10, 5)
    bench.row("its peak memory : theirs", statistics.median(b[1] / a[1] for a, b in seen), 0.1, 0.1, more=True)


def copy_mapped(path):
    """Seconds per byte of memcpy from the page cache to a buffer of 1 MiB."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE,
                                             prot=mmap.PROT_READ) as mapped:
        begin, size = time.perf_counter(), len(mapped) // MIB * MIB
        with memoryview(mapped) as source:
            for at in range(0, size, MIB):
                BUFFER[:] = source[at:at + MIB]
        return (time.perf_counter() - begin) / size


def speed(bench, source, view):
    (first, *_) = shards_of(source)
    with recycled_memory(), constant(bench, FILE_BYTES) as ceiling, mounted(bench, source) as mountpoint:
        raise_readahead(mountpoint)
        path = shards_of(os.path.join(mountpoint, view))[0]
        source_bytes_each = os.path.getsize(first) / os.path.getsize(path)

        def shown():
            warm(*shards_of(source))
            return read_all(path, True)

        (of_constant, of_copy), speeds = ratios(
            [shown, lambda: read_all(ceiling, True), lambda: copy_mapped(first) * source_bytes_each])
    bench.note(f"{view} {speeds[0]:.2f} GB/s of its own bytes, constant {speeds[1]:.2f}, memcpy of its source "
               f"{speeds[2]:.2f}")
    bench.row(f"BF16 to {view}, cached, 1 reader : the slower of these", 1 / min(of_constant, of_copy), 0.6, 0.4)


def export_bytes(bench, source, view):
    """Source bytes that an export reads : those of its tensors."""
    needed = sum(os.path.getsize(path) - 8 - header_size(path) for path in shards_of(source))
    with counting(bench, source, "counted-bf16") as counted, tmpfs(bench, "tmpfs-bytes", "3g") as out:
        subprocess.run([bench.ckfs, "export", "--memory", "256MiB", "--progress", "none", counted.path, view,
                        os.path.join(out, "view")], check=True, stderr=subprocess.DEVNULL)
        read = sum(one["bytes"] for one in counted.counts()["files"].values())
    return read / needed


def random_codes(bench, source):
    """Source bytes of reads of 4 KiB : those of the blocks' row that each lies in."""
    numbers = random.Random(3)
    with mounted(bench, source, "--io", "pread", "-o", "direct") as mountpoint:
        path = shards_of(os.path.join(mountpoint, FP8))[0]
        rows = (FILE_BYTES // (2 * COLUMNS * BLOCK)) - 1
        with open(path, "rb", buffering=0) as file:
            header = 8 + int.from_bytes(file.read(8), "little")
            scales = FILE_BYTES // 2 // BLOCK ** 2 * 4
            chosen = numbers.sample(range(rows), 64)
            before = status_of(bench, mountpoint)["source_bytes"]
            for row in chosen:
                # Not at the ends: the matrices do not begin at pages of the file.
                file.seek(header + scales + row * COLUMNS * BLOCK + numbers.randrange(BLOCK // 4, BLOCK // 2) * COLUMNS)
                file.read(4096)
            read = status_of(bench, mountpoint)["source_bytes"] - before
    bench.row("random 4 KiB of FP8 codes: source bytes : a row of blocks", read / (64 * COLUMNS * BLOCK * 2), 1.05, 1.05,
              more=True)


def bench_quantize(bench):
    source = bf16(bench)
    conversion(bench, source)
    for view in FP8, INT4:
        speed(bench, source, view)
    for view in FP8, INT4, "nf4-safetensors":
        bench.row(f"export of {view}, 256 MiB: source bytes : needed", export_bytes(bench, source, view), 1.05, 1.05,
                  more=True)
    # Scales lie before the codes, so a reader of the file in order needs each value twice; the source's pages
    # are in the page cache the second time.
    bench.note(f"a mounted file in order: {source_ratio(bench, source, FP8, '--io', 'pread'):.2f}")
    random_codes(bench, source)
    shutil.rmtree(source)
    seconds, peak = mount_and_list(bench, scale_checkpoint(bench.path("deepseek-v3"), "deepseek-v3"))
    bench.row("deepseek-v3, quantizing views too: mount and ls -lR", seconds, 1.5, 1.5, "s", more=True)
    bench.row("its peak resident memory", peak / 1e6, 150, 150, "MB", more=True)
