"""Rows on checkpoints of DeepSpeed ZeRO."""
import json
import os
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time

from checkpoints import FILE_BYTES, zero_checkpoint
from harness import (BUFFER, HERE, MIB, constant, counting, daemon_of, mounted, raise_readahead,
                     ratios, read_all, shards_of, status, timed, tmpfs)

ZERO_SHARD = "1GB"
ZERO_VIEW = f"fp32-consolidated@max_shard={ZERO_SHARD}"


def optimizer_files(source):
    return [os.path.join(folder, name) for folder, _, names in os.walk(source) for name in sorted(names) if "_optim_states" in name]


def partition(path):
    """(offset, bytes) of what surely is fp32 partition, which make_zero.py puts last, behind the
    Adam moments."""
    size = os.path.getsize(path)
    slack = min(4 * MIB, size // 48)
    return size // 3 * 2 + slack, size // 3 - 2 * slack


def warm_partitions(source):
    for path in optimizer_files(source):
        at, left = partition(path)
        with open(path, "rb", buffering=0) as f:
            f.seek(at)
            while left > 0 and (n := f.readinto(BUFFER)):
                left -= n


def touch_memory(size):
    """Has a virtual machine's host back the memory that comes next: otherwise whoever asks for it first pays for that."""
    program = "import mmap, sys; mmap.mmap(-1, int(sys.argv[1]), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE)"
    subprocess.run([sys.executable, "-c", program, str(size)], check=True)  # a child's: ours would count in the peak of every later child


def view_files(mountpoint):
    return shards_of(os.path.join(mountpoint, ZERO_VIEW))


def zero_mount(bench):
    source = zero_checkpoint(bench.path("llama-70b"), "llama-70b", "--ranks", "64")
    seen = []
    for _ in range(5):
        mountpoint = tempfile.mkdtemp(dir=bench.work)
        begin = time.perf_counter()
        subprocess.run([bench.ckfs, "mount", source, mountpoint], check=True)
        subprocess.run(["ls", "-lR", mountpoint], check=True, stdout=subprocess.DEVNULL)
        seen.append((time.perf_counter() - begin, status(daemon_of(mountpoint), "VmHWM")))
        subprocess.run([bench.ckfs, "umount", mountpoint], check=True)
    bench.row("llama-70b, ZeRO-3, 64 ranks: mount and ls -lR", statistics.median(s for s, _ in seen), 2, 2, "s", more=True)
    bench.row("its peak resident memory", statistics.median(m for _, m in seen) / 1e6, 150, 150, "MB", more=True)
    shutil.rmtree(source)


def zero_copies(bench, source):
    python = os.path.join(HERE, "..", "..", ".venv", "deepspeed", "bin", "python")
    with tmpfs(bench, "tmpfs-zero", "6g") as out:
        def with_directory(run):
            directory = tempfile.mkdtemp(dir=out)
            warm_partitions(source)
            touch_memory(10 << 30)
            result = run(os.path.join(directory, "out"))
            shutil.rmtree(directory)
            return result

        def tool(directory):
            command = [python, os.path.join(HERE, "baseline_zero.py"), source, directory, ZERO_SHARD]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            seconds = process.stdout.read()
            _, code, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(code)
            if process.returncode:
                raise SystemExit(f"bench: zero_to_fp32: exit {process.returncode}")
            return float(seconds), usage.ru_maxrss * 1024

        def export(directory):
            return timed([bench.ckfs, "export", source, ZERO_VIEW, directory])

        def copy(directory, *options):
            with mounted(bench, source, *options) as mountpoint:
                return timed(["cp", "-r", os.path.join(mountpoint, ZERO_VIEW), directory])

        def copy_direct(directory):  # how a copy is made once: the page cache would be filled for nobody
            return copy(directory, "-o", "direct")

        with_directory(tool)
        seen = [[with_directory(run) for run in (tool, export, copy_direct, copy)] for _ in range(3)]
        t, e, d, c = (statistics.median(one[k][0] for one in seen) for k in range(4))
        print(f"  zero_to_fp32 {t:.2f} s, export {e:.2f} s, cp {d:.2f} s, cp through the page cache {c:.2f} s")
        bench.row("export of fp32-consolidated, tmpfs : zero_to_fp32", statistics.median(a[0] / b[0] for a, b, *_ in seen), 4, 3)
        bench.row("zero_to_fp32's peak memory : the export's", statistics.median(a[1] / b[1] for a, b, *_ in seen), 20, 20)
        bench.row("cp from the mount (-o direct), tmpfs : zero_to_fp32", statistics.median(a[0] / b[0] for a, _, b, _ in seen), 2, 1.5)
        bench.row("the same through the page cache : zero_to_fp32", statistics.median(a[0] / b[0] for a, _, _, b in seen), 2, 1.5)


def zero_cached(bench, source):
    with constant(bench, FILE_BYTES) as ceiling, mounted(bench, source) as mountpoint:
        raise_readahead(mountpoint)
        path = view_files(mountpoint)[0]

        def view():
            warm_partitions(source)
            return read_all(path, True)

        (ratio,), speeds = ratios([lambda: read_all(ceiling, True), view])
        print(f"  constant {speeds[0]:.2f} GB/s, view {speeds[1]:.2f}")
        bench.row("fp32-consolidated, cached, 1 reader, cold : constant-memory server", ratio, 0.82, 0.70)


def zero_random(bench, source):
    """O_DIRECT: each read is one request to the daemon, which reads the cached source."""
    def reads(paths, offset, size):
        warm_partitions(source)
        command = ["fio", "--name=reads", "--filename=" + ":".join(paths), "--readonly", "--rw=randread", "--bs=4k", "--direct=1",
                   "--ioengine=psync", "--thread", "--numjobs=16", "--group_reporting", "--time_based", "--runtime=4",
                   f"--offset={offset}", f"--size={size}", "--randrepeat=0", "--output-format=json"]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return 1 / json.loads(done.stdout)["jobs"][0]["read"]["iops"]

    with mounted(bench, source) as mountpoint:
        views = view_files(mountpoint)
        smallest = min(os.path.getsize(path) for path in views) // 4096 * 4096
        plain_file = optimizer_files(os.path.join(mountpoint, "source"))[0]
        at, size = (n // 4096 * 4096 for n in partition(plain_file))
        (ratio,), speeds = ratios([lambda: reads([plain_file], at, size),
                                   lambda: reads(views, 0, smallest * len(views))], 3)
        print(f"  source/ {speeds[0] * 1e9:.0f} reads/s, view {speeds[1] * 1e9:.0f}")
        bench.row("random 4 KiB reads, 16 threads : a file of source/", ratio, 0.8, 0.8)


def zero_bytes(bench, source):
    total = 0
    with counting(bench, source, "counted-zero") as counted, mounted(bench, counted.path) as mountpoint:
        paths = view_files(mountpoint)
        counted.reset()
        for path in paths:
            with open(path, "rb") as f:
                total += os.path.getsize(path) - 8 - struct.unpack("<Q", f.read(8))[0]
            read_all(path, False)
        read = sum(one["bytes"] for one in counted.counts()["files"].values())
    bench.row("source bytes read : fp32 bytes of the model, in order", read / total, 1.01, 1.01, more=True)


def bench_zero(bench):
    zero_mount(bench)
    source = zero_checkpoint(bench.path("llama-1b"), "llama-1b", "--ranks", "4", "--fill")
    for part in (zero_copies, zero_cached, zero_random, zero_bytes):
        part(bench, source)
    shutil.rmtree(source)


def bench_ranks(bench):
    """The same model from 4 and from 512 ranks: a file of the view needs a piece of every rank."""
    sources = [zero_checkpoint(bench.path(f"llama-1b-{ranks}"), "llama-1b", "--ranks", str(ranks),
                               "--fill") for ranks in (4, 512)]
    with mounted(bench, sources[0]) as few, mounted(bench, sources[1]) as many:
        def side(source, mountpoint):
            raise_readahead(mountpoint)
            path = shards_of(os.path.join(mountpoint, "bf16-safetensors@max_shard=1GB"))[0]

            def read():
                warm_partitions(source)
                return read_all(path, True)
            return read

        (ratio,), speeds = ratios([side(sources[0], few), side(sources[1], many)], 5)
        bench.note(f"4 ranks {speeds[0]:.2f} GB/s, 512 ranks {speeds[1]:.2f}")
        bench.row("BF16 view of ZeRO-3, 512 ranks : 4 ranks, cached", ratio, 0.9, 0.9)
    for source in sources:
        shutil.rmtree(source)
