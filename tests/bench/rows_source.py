"""Rows on sources that are not in memory: a cold disk, a source that takes its time."""
import mmap
import os
import random
import shutil
import statistics
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

import network
from checkpoints import half_fp8, many_shards, one_shard
from harness import BUFFER, MIB, counting, drop_caches, mounted, recycled_memory, shards_of, tmpfs
from loader import Loader

BF16 = "bf16-safetensors"
IN_FLIGHT = 64  # requests that the slow source works on at a time


def read_pieces(path, size, offsets, in_flight, flags=0):
    """Seconds of reads of `size` bytes at `offsets`, so many of them under way at a time."""
    descriptor = os.open(path, os.O_RDONLY | flags)
    buffers = [mmap.mmap(-1, size) for _ in range(in_flight)]

    def read(offset):
        buffer = buffers.pop()
        got = os.preadv(descriptor, [buffer], offset)
        buffers.append(buffer)
        return got

    try:
        with ThreadPoolExecutor(in_flight) as pool:
            begin = time.perf_counter()
            done = sum(pool.map(read, offsets))
            return time.perf_counter() - begin, done
    finally:
        os.close(descriptor)


# A cold disk.


def free_memory():
    with open("/proc/meminfo") as f:
        fields = dict(line.split(":") for line in f)
    return int(fields["MemAvailable"].split()[0]) << 10


def disk_note(bench, path):
    """What the disk does: the rows below it are ratios of reads of it."""
    size = 2 * MIB
    places = range(0, os.path.getsize(path) // size * size, size)
    drop_caches()
    single = [read_pieces(path, size, [at], 1, os.O_DIRECT)[0]
              for at in random.Random(3).sample(places, min(20, len(places)))]
    seconds, done = read_pieces(path, size, places, 10, os.O_DIRECT)
    bench.note(f"disk: 2 MB in {statistics.median(single) * 1e3:.1f} ms, {done / seconds / 1e9:.2f}"
               f" GB/s with ten such in flight")


def export_view(bench, source, out):
    """What it prints about its success is not a row."""
    subprocess.run([bench.ckfs, "export", source, BF16, out], check=True,
                   stderr=subprocess.DEVNULL)


def bench_cold(bench):
    """All from the machine's own disk. The source is a ninth of the free memory: the export, the
    converted copy and the pages of a view are held beside it."""
    source = half_fp8(bench, min(2_600_000_000, free_memory() // 9))
    size = sum(os.path.getsize(path) for path in shards_of(source))
    copy = bench.path("converted")
    export_view(bench, source, copy)
    shown = sum(os.path.getsize(path) for path in shards_of(copy))
    disk_note(bench, shards_of(source)[0])

    def cat():
        drop_caches()
        begin = time.perf_counter()
        subprocess.run(["cat", *shards_of(source)], check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - begin

    def export():
        with tmpfs(bench, "cold-out", "12g") as out:
            drop_caches()
            begin = time.perf_counter()
            export_view(bench, source, os.path.join(out, "view"))
            return time.perf_counter() - begin

    def view():
        with mounted(bench, source) as mountpoint:
            loader = Loader("load_file", *shards_of(os.path.join(mountpoint, BF16)))
            drop_caches()
            return loader.run()

    def converted():
        loader = Loader("load_file", *shards_of(copy))
        drop_caches()
        return loader.run()

    seen = [[side() for side in (cat, export, view, converted)] for _ in range(3)]
    c, e, v, k = (statistics.median(one[i] for one in seen) for i in range(4))
    bench.note(f"{size / 1e9:.1f} GB: cat {c:.2f} s, export {e:.2f} s; load_file of the view's "
               f"{shown / 1e9:.1f} GB {v:.2f} s, of a converted copy {k:.2f} s")
    for what, over, under, limit in (
            ("cold: export to tmpfs : cat of the source", 1, 0, 1.15),
            ("cold: load_file of the BF16 view : cat of the source", 2, 0, 1.3),
            ("cold: load_file of the view : of a converted copy", 2, 3, 1)):
        bench.row(what, statistics.median(one[over] / one[under] for one in seen), limit, limit,
                  more=True)
    shutil.rmtree(source)
    shutil.rmtree(copy)


# A source that takes its time.


LINK = 1_250_000_000  # bytes a second of the source as a whole: 10 Gb/s


def read_and_drop(path):
    """Seconds of a sequential read in pieces of 1 MiB that leaves nothing in the page cache: with all
    in it the first touch of memory that the host of a virtual machine has not backed is what is
    measured."""
    fd, step = os.open(path, os.O_RDONLY), 32 * MIB
    try:
        begin, done = time.perf_counter(), 0
        while n := os.readv(fd, [BUFFER]):
            done += n
            if done % step == 0:
                os.posix_fadvise(fd, done - step, step, os.POSIX_FADV_DONTNEED)
        return time.perf_counter() - begin
    finally:
        os.close(fd)


def slow_read(bench, source, milliseconds):
    """A view in order : the source itself with 64 requests of 1 MiB in flight, as speeds. One large
    file, so that neither side begins anew for every file. The source has a link, as those that are
    far away have: without one, at 5 ms, two CPUs are what limits its server."""
    with counting(bench, source, f"slow-{milliseconds}") as counted:
        (path,) = shards_of(counted.path)
        size = os.path.getsize(path)

        def itself():
            return read_pieces(path, MIB, range(0, size, MIB), IN_FLIGHT)[0]

        def slowly(side):
            counted.slow(milliseconds, total_bandwidth=LINK, in_flight=IN_FLIGHT)
            seconds = side()
            counted.clear()
            return seconds

        def view():
            with mounted(bench, counted.path) as mountpoint:
                (shown,) = shards_of(os.path.join(mountpoint, BF16))
                return slowly(lambda: read_and_drop(shown))

        with recycled_memory():
            itself()  # the pages of the file below
            seen = [(slowly(itself), view()) for _ in range(3)]
    own, through = (statistics.median(one[k] for one in seen) for k in (0, 1))
    bench.note(f"{milliseconds} ms a request: the source {size / own / 1e9:.2f} GB/s, read through "
               f"the view {size / through / 1e9:.2f}")
    bench.row(f"in order from a source of {milliseconds} ms : its own bandwidth",
              statistics.median(a / b for a, b in seen), 0.9, 0.7)


def slow_mount(bench, count, milliseconds):
    """A mount : opening the same files and reading each header, one after the other."""
    source = many_shards(bench, count)
    with counting(bench, source, "slow-mount") as counted:
        counted.delay(milliseconds)

        def one_at_a_time():
            begin = time.perf_counter()
            for path in shards_of(counted.path):
                with open(path, "rb", buffering=0) as f:
                    f.read(int.from_bytes(f.read(8), "little"))
            return time.perf_counter() - begin

        def mount():
            mountpoint = tempfile.mkdtemp(dir=bench.work)
            begin = time.perf_counter()
            subprocess.run([bench.ckfs, "mount", str(counted.path), mountpoint], check=True)
            seconds = time.perf_counter() - begin
            subprocess.run([bench.ckfs, "umount", mountpoint], check=True)
            return seconds

        one, mounts = one_at_a_time(), [mount() for _ in range(3)]
    seconds = statistics.median(mounts)
    bench.note(f"{count} shards: one at a time {one:.2f} s, mount {seconds:.2f} s")
    bench.row(f"mount of {count} shards from a source of {milliseconds} ms : one at a time",
              seconds / one, 0.05, 0.05, more=True)
    shutil.rmtree(source)


def bench_slow(bench):
    source = one_shard(bench, 2 << 30)
    for milliseconds in (5, 50):
        slow_read(bench, source, milliseconds)
    shutil.rmtree(source)
    slow_mount(bench, 1000, 5)


def bench_network(bench):
    network.run(bench)
