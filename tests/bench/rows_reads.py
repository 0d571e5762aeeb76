"""Rows on what a reader costs: source bytes, memory that stays, a tensor's boxes."""
import json
import mmap
import os
import random
import shutil
import statistics
import struct
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

from checkpoints import dcp_checkpoint, experts, fp8, llama, nbytes
from harness import MIB, daemon_of, mounted, resident_memory, shards_of, status_of
from loader import load

BF16 = "bf16-safetensors"


def header_of(path):
    """{name: (dtype, shape)}"""
    with open(path, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
    header.pop("__metadata__", None)
    return {name: (entry["dtype"], entry["shape"]) for name, entry in header.items()}


def stored_bytes(header, name):
    """Of a tensor and its scales."""
    return sum(nbytes(*header[n]) for n in (name, name + "_scale_inv") if n in header)


def shown_bytes(header, name):
    return 2 * nbytes("F8_E4M3", header[name][1])


def weights(header):
    return [name for name in header if not name.endswith("_scale_inv")]


def random_direct_reads(path, count, size):
    """Of one open file, past the page cache."""
    numbers = random.Random(11)
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        places = (os.fstat(descriptor).st_size - size) // 4096
        with mmap.mmap(-1, size) as buffer:
            for _ in range(count):
                os.preadv(descriptor, [buffer], numbers.randrange(places) * 4096)
    finally:
        os.close(descriptor)


def amplification(bench, source, run, needed, asked):
    """`run(view directory)` on a fresh mount. -> source bytes read : `needed`, bytes that the kernel
    asked of the daemon : `asked`, which are those that the reader wanted."""
    with mounted(bench, source) as mountpoint:
        directory = os.path.join(mountpoint, BF16)
        os.listdir(directory)
        before = status_of(bench, mountpoint)
        run(directory)
        after = status_of(bench, mountpoint)
    source_bytes, answered, delivered = (
        after[key] - before[key] for key in ("source_bytes", "bytes_to_readers", "bytes_delivered"))
    return source_bytes / needed, (answered - delivered) / asked


def amplification_row(bench, what, seen, limit):
    value, asked = (statistics.median(one[k] for one in seen) for k in (0, 1))
    bench.row(what, value, limit, limit, more=True)
    bench.note(f"  (of it the kernel's own read-ahead: it asked for {asked:.2f} times what the reader "
               f"wanted; source bytes : what was asked for {value / asked:.2f})")


def bench_amplification(bench):
    source, size, count = fp8(bench), 256 << 10, 8000
    name = os.path.basename(shards_of(source)[0])
    seen = amplification(bench, source, lambda directory: random_direct_reads(
        os.path.join(directory, name), count, size), count * size, count * size)
    amplification_row(bench, "8,000 random 256 KiB O_DIRECT reads: source bytes : bytes given",
                      [seen], 0.56)

    source = experts(bench)
    shard = shards_of(source)[1]
    name, header = os.path.basename(shard), header_of(shard)
    for what, kind, limit in (
            ("a 5.8 MB tensor by safe_open: source bytes : needed", ".experts.", 1.15),
            ("a 1 MB FP8 expert by safe_open: source bytes : needed", ".small.", 1.5)):
        names = [n for n in weights(header) if kind in n]
        seen = [amplification(bench, source, lambda directory, tensor=tensor: load(
            "safe_open", os.path.join(directory, name), tensor),
            stored_bytes(header, tensor), shown_bytes(header, tensor)) for tensor in names[3::16]]
        amplification_row(bench, what, seen, limit)

    needed = sum(stored_bytes(header, n) for n in weights(header)) / 4
    shown = sum(shown_bytes(header, n) for n in weights(header)) / 4
    seen = [amplification(bench, source, lambda directory, part=part: load(
        "slices", os.path.join(directory, name), part), needed, shown) for part in (0, 1, 3)]
    amplification_row(bench, "one of four row parts of each tensor by get_slice: the same", seen,
                      1.3)

    source = llama(bench)
    needed = shown = 0
    for shard in shards_of(source):
        header = header_of(shard)
        needed += sum(stored_bytes(header, n) for n in weights(header))
        shown += sum(shown_bytes(header, n) for n in weights(header))
    seen = [amplification(bench, source, lambda directory: load("from_pretrained", directory),
                          needed, shown) for _ in range(2)]
    amplification_row(bench, "from_pretrained of a model of five shards: the same", seen, 1.15)
    seen = [amplification(bench, source, lambda directory: load(
        "mappings", *shards_of(directory)), needed, shown) for _ in range(2)]
    amplification_row(bench, "a new open and mapping for each tensor: the same", seen, 1.15)


def read_part(job):
    """Part `k` of `count` of a file, past the page cache's own copy."""
    path, k, count = job
    step = -(-os.path.getsize(path) // count // MIB) * MIB
    buffer = bytearray(MIB)
    with open(path, "rb", buffering=0) as f:
        f.seek(k * step)
        for _ in range(step // MIB):
            if not f.readinto(buffer):
                break


def bench_idle(bench):
    """Two readings of the memory: when the headers are read, and when nobody has read for 30 s."""
    source, wait = fp8(bench), 30
    with mounted(bench, source, "--memory", "1GiB") as mountpoint:
        subprocess.run(["ls", "-lR", mountpoint], check=True, stdout=subprocess.DEVNULL)
        pid = daemon_of(mountpoint)
        catalog = resident_memory(pid)
        paths = shards_of(os.path.join(mountpoint, BF16))
        with ThreadPoolExecutor(8) as pool:  # a few at once: what each was given is kept longest
            list(pool.map(read_part, [(path, k, 8) for k in range(8) for path in paths]))
        busy = resident_memory(pid)
        deadline = time.monotonic() + wait
        while time.monotonic() < deadline and resident_memory(pid) > catalog + MIB:
            time.sleep(0.5)
        kept = resident_memory(pid)
        bench.note(f"catalog {catalog / MIB:.0f} MiB, after reading {busy / MIB:.0f} MiB, "
                   f"then {kept / MIB:.0f} MiB")
    bench.row("30 s after 2 GB were read, 1 GiB: memory less catalog", (kept - catalog) / 1e6, 32,
              32, "MB", more=True)


def bench_boxes(bench):
    """A DCP tensor in pieces of 4 KiB, and the same in one piece, in process; each read is one
    piece, so that both need the same bytes."""
    piece = 4 << 10
    for boxes in (25_000, 100_000):
        sources = [dcp_checkpoint(bench.path(f"dcp-{boxes}-{pieces}"), "--pieces", str(pieces),
                                  "--bytes", str(boxes * piece)) for pieces in (1, boxes)]
        program = [os.path.join(bench.tools, "boxes_bench"), *sources, "fp32-safetensors",
                   str(piece)]
        done = subprocess.run(program, check=True, stdout=subprocess.PIPE, text=True)
        one, many, ratio = map(float, done.stdout.split())
        bench.note(f"{boxes:,} boxes {many * 1e6:.1f} us a read, one box {one * 1e6:.1f} us")
        bench.row(f"4 KiB random read in a tensor of {boxes:,} boxes : of one", ratio, 1.2, 1.5,
                  more=True)
        for source in sources:
            shutil.rmtree(source)
