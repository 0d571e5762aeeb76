#!/usr/bin/env python3
"""Measures ckfs against stated baselines, all sides interleaved in one run; prints tables of ratios.

    run.py --build DIR [NAME...]

NAME: kernels cached direct reread export mount memory gather bytes zero; all of them without one.
Every throughput row is the median over passes of the ratio of two neighbouring measurements, after a warm-up pass: this machine's
speed drifts, the ratio of neighbours does not. Rows end with `ok`, `below goal`, or `BELOW FLOOR`; the last makes the run fail. A
run in which the constant-memory server is itself too slow says `void`, and fails.
"""
import argparse
import contextlib
import json
import os
import resource
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "support"))
MIB = 1 << 20
PASSES = 7
FILE_BYTES = 1 << 30  # of a view's file: pages are then recycled, not fetched anew from the host


class Bench:
    def __init__(self, build, work):
        self.build = build
        self.ckfs = os.path.join(build, "ckfs")
        self.tools = os.path.join(build, "tests", "bench")
        self.work = work
        self.failed = []

    def path(self, *names):
        return os.path.join(self.work, *names)

    def row(self, what, value, goal, floor, unit="x", more=False):
        """`more`: larger is worse (seconds, bytes)."""
        good = value <= goal if more else value >= goal
        enough = value <= floor if more else value >= floor
        verdict = "ok" if good else "below goal" if enough else "BELOW FLOOR"
        if not enough:
            self.failed.append(what)
        print(f"  {what:<66} {value:>9.2f} {unit:<3} goal {goal:g} floor {floor:g}  {verdict}", flush=True)


# --- checkpoints to measure on -----------------------------------------------------------------------------------------------

def fp8_checkpoint(directory, shards):
    """FP8 blocks with F32 scales, `shards` files that each give FILE_BYTES of BF16; finite pseudo-random values."""
    rows, columns = 2048, 7168
    pool = bytes(b ^ 1 if b & 0x7F == 0x7F else b for b in os.urandom(4 * MIB))  # 7f and ff are NaN
    os.makedirs(directory)
    weight_map = {}
    for shard in range(shards):
        name = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        header, at = {"__metadata__": {"format": "pt"}}, 0
        for k in range(FILE_BYTES // (2 * rows * columns)):
            tensor = f"model.layers.{shard}.mlp.experts.{k}.down_proj.weight"
            for suffix, dtype, shape, size in (("", "F8_E4M3", [rows, columns], rows * columns),
                                               ("_scale_inv", "F32", [rows // 128, columns // 128], rows * columns // 4096)):
                header[tensor + suffix] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
                weight_map[tensor + suffix] = name
                at += size
        raw = json.dumps(header, separators=(",", ":")).encode()
        with open(os.path.join(directory, name), "wb") as f:
            f.write(struct.pack("<Q", len(raw)) + raw)
            for tensor, entry in header.items():
                if tensor == "__metadata__":
                    continue
                size = entry["data_offsets"][1] - entry["data_offsets"][0]
                if entry["dtype"] == "F32":
                    f.write(struct.pack("<f", 0.0078125) * (size // 4))
                else:
                    offset = os.urandom(2)[0] * 4096
                    while size:
                        piece = pool[offset:offset + size]
                        f.write(piece)
                        size -= len(piece)
                        offset = 0
    config = {"model_type": "deepseek_v3", "torch_dtype": "bfloat16",
              "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    json.dump(config, open(os.path.join(directory, "config.json"), "w"))
    json.dump({"metadata": {}, "weight_map": weight_map}, open(os.path.join(directory, "model.safetensors.index.json"), "w"))
    return directory


def scale_checkpoint(directory, model, *options):
    tool = os.path.join(HERE, "..", "tools", "make_scale.py")
    subprocess.run([sys.executable, tool, model, directory, *options], check=True, stdout=subprocess.DEVNULL)
    return directory


# --- mounts --------------------------------------------------------------------------------------------------------------------

def raise_readahead(mountpoint):
    device = os.stat(mountpoint).st_dev
    with open(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb", "w") as f:
        f.write("1024")


@contextlib.contextmanager
def constant(bench, direct=False):
    mountpoint = tempfile.mkdtemp(dir=bench.work)
    server = subprocess.Popen([os.path.join(bench.tools, "constant_fs"), mountpoint, str(FILE_BYTES)] + (["direct"] if direct else []))
    try:
        path = os.path.join(mountpoint, "constant")
        deadline = time.monotonic() + 20
        while not os.path.exists(path):
            if server.poll() is not None or time.monotonic() > deadline:
                raise SystemExit("bench: the constant-memory server did not start")
        raise_readahead(mountpoint)
        yield path
    finally:
        server.terminate()
        server.wait()


@contextlib.contextmanager
def mounted(bench, source, *options):
    mountpoint = tempfile.mkdtemp(dir=bench.work)
    subprocess.run([bench.ckfs, "mount", source, mountpoint, *options], check=True)
    try:
        yield mountpoint
    finally:
        subprocess.run([bench.ckfs, "umount", mountpoint], check=True)


def daemon_of(mountpoint):
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            words = open(f"/proc/{pid}/cmdline", "rb").read().split(b"\0")
            if b"mount" in words[1:2] and os.fsencode(mountpoint) in words:
                return pid
    raise SystemExit(f"bench: {mountpoint}: no daemon")


def status(pid, field):
    for line in open(f"/proc/{pid}/status"):
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    return 0


def peak_memory(pid):
    """VmHWM less file pages."""
    return status(pid, "VmHWM") - status(pid, "RssFile") - status(pid, "RssShmem")


# --- readers --------------------------------------------------------------------------------------------------------------------

BUFFER = bytearray(MIB)


def read_all(path, drop):
    """Seconds per byte of a sequential read in pieces of 1 MiB; `drop`: the page cache of the file is dropped first."""
    fd = os.open(path, os.O_RDONLY)
    try:
        if drop:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        begin, done = time.perf_counter(), 0
        while n := os.readv(fd, [BUFFER]):
            done += n
        return (time.perf_counter() - begin) / done
    finally:
        os.close(fd)


def ratios(sides, passes=PASSES):
    """sides: functions that give seconds per byte. -> medians over passes of sides[0] / side, for each other side, and all speeds."""
    for side in sides:
        side()
    seen = [[side() for side in sides] for _ in range(passes)]
    speeds = [statistics.median(1e-9 / one[k] for one in seen) for k in range(len(sides))]
    return [statistics.median(one[0] / one[k] for one in seen) for k in range(1, len(sides))], speeds


def warm(*paths):
    for path in paths:
        read_all(path, False)


def view_file(mountpoint):
    return os.path.join(mountpoint, "bf16-safetensors", "model-00001-of-00002.safetensors")


def fp8(bench):
    directory = bench.path("fp8")
    if not os.path.exists(directory):
        fp8_checkpoint(directory, 2)
    return directory


def plain(bench):
    path = bench.path("plain")
    if not os.path.exists(path):
        with open(path, "wb") as f:
            for _ in range(FILE_BYTES // MIB):
                f.write(os.urandom(4096) * 256)
    return path


def against_constant(bench, direct, goal, floor, void):
    source, ext4 = fp8(bench), plain(bench)
    how = "direct" if direct else "cached"
    options = ["-o", "direct"] if direct else []
    with constant(bench, direct) as ceiling, mounted(bench, source, *options) as mountpoint:
        if not direct:
            raise_readahead(mountpoint)
        shards = [os.path.join(source, f) for f in os.listdir(source)]

        def view():
            warm(*shards)
            return read_all(view_file(mountpoint), True)

        def native():
            warm(ext4)
            return read_all(ext4, False)

        (ratio, of_ext4), speeds = ratios([lambda: read_all(ceiling, True), view, native])
        print(f"  constant {speeds[0]:.2f} GB/s, view {speeds[1]:.2f}, cached ext4 {speeds[2]:.2f}")
        if 1 / of_ext4 < void:
            print(f"  void: the constant server reaches {1 / of_ext4:.2f} of cached ext4 (at least {void})")
            bench.failed.append(f"{how}: void")
        bench.row(f"fp8 to bf16, {how}, 1 reader, cold : constant-memory server", ratio, goal, floor)


# --- what is measured -------------------------------------------------------------------------------------------------------------

def bench_kernels(bench):
    subprocess.run([os.path.join(bench.tools, "kernels_bench")], check=True)


def bench_cached(bench):
    against_constant(bench, False, 0.75, 0.65, 0.20)


def bench_direct(bench):
    against_constant(bench, True, 0.70, 0.58, 0.40)


def bench_reread(bench):
    ext4 = plain(bench)
    with constant(bench) as ceiling, mounted(bench, fp8(bench)) as mountpoint:
        path = view_file(mountpoint)
        warm(path, ext4, ceiling)
        (ratio, of_ceiling), speeds = ratios([lambda: read_all(ext4, False), lambda: read_all(path, False),
                                              lambda: read_all(ceiling, False)])
        # FUSE keeps pages of 4 KiB, ext4 large ones: what any FUSE file reaches is the second ratio.
        print(f"  cached ext4 {speeds[0]:.2f} GB/s, view {speeds[1]:.2f}, constant {speeds[2]:.2f} ({of_ceiling:.2f} of ext4)")
        bench.row("second read of a view's file : cached ext4", ratio, 0.95, 0.75)


def timed(command):
    """-> seconds, peak resident bytes."""
    begin = time.perf_counter()
    process = subprocess.Popen(command)
    _, code, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(code)
    if process.returncode:
        raise SystemExit(f"bench: {command[0]}: exit {process.returncode}")
    return time.perf_counter() - begin, usage.ru_maxrss * 1024


def bench_export(bench):
    source = fp8(bench)
    out = bench.path("tmpfs")
    os.makedirs(out)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6g", "tmpfs", out], check=True)
    try:
        def torch():
            directory = tempfile.mkdtemp(dir=out)
            result = timed([sys.executable, os.path.join(HERE, "baseline_export.py"), source, directory])
            shutil.rmtree(directory)
            return result

        def ckfs():
            directory = os.path.join(tempfile.mkdtemp(dir=out), "view")
            result = timed([bench.ckfs, "export", source, "bf16-safetensors", directory])
            shutil.rmtree(os.path.dirname(directory))
            return result

        torch(), ckfs()
        seen = [(torch(), ckfs()) for _ in range(5)]
        t, c = (statistics.median(one[k][0] for one in seen) for k in (0, 1))
        print(f"  torch {t:.2f} s, ckfs {c:.2f} s for {2 * FILE_BYTES / 1e9:.1f} GB")
        bench.row("export of fp8 to bf16, tmpfs : torch, all cores", statistics.median(a[0] / b[0] for a, b in seen), 10, 6)
        bench.row("its peak memory : torch's", statistics.median(b[1] / a[1] for a, b in seen), 0.1, 0.1, more=True)
    finally:
        subprocess.run(["umount", out], check=True)
        os.rmdir(out)


def bench_mount(bench):
    for model, seconds, memory in (("deepseek-v3", 1.0, 100e6), ("qwen3-235b", 0.5, 60e6)):
        source = scale_checkpoint(bench.path(model), model)
        seen = []
        for _ in range(5):
            mountpoint = tempfile.mkdtemp(dir=bench.work)
            begin = time.perf_counter()
            subprocess.run([bench.ckfs, "mount", source, mountpoint], check=True)
            subprocess.run(["ls", "-lR", mountpoint], check=True, stdout=subprocess.DEVNULL)
            seen.append((time.perf_counter() - begin, status(daemon_of(mountpoint), "VmHWM")))
            subprocess.run([bench.ckfs, "umount", mountpoint], check=True)
        bench.row(f"{model}: mount and ls -lR", statistics.median(s for s, _ in seen), seconds, seconds, "s", more=True)
        bench.row(f"{model}: peak resident memory of the daemon", statistics.median(m for _, m in seen) / 1e6, memory / 1e6,
                  memory / 1e6, "MB", more=True)
        shutil.rmtree(source)


def bench_memory(bench):
    source = scale_checkpoint(bench.path("ten"), "deepseek-v3", "--layers", "6", "--experts", "40")
    size = sum(os.path.getsize(os.path.join(source, f)) for f in os.listdir(source))
    budget = 256 * MIB
    with mounted(bench, source, "--memory", "256MiB") as mountpoint:
        subprocess.run(["ls", "-lR", mountpoint], check=True, stdout=subprocess.DEVNULL)
        pid = daemon_of(mountpoint)
        catalog = status(pid, "VmRSS") - status(pid, "RssFile") - status(pid, "RssShmem")
        directory = os.path.join(mountpoint, "bf16-safetensors")
        work = [(os.path.join(directory, f), at) for f in os.listdir(directory)
                for at in range(0, os.path.getsize(os.path.join(directory, f)), 64 * MIB)]
        lock = threading.Lock()

        def reader():
            buffer = bytearray(MIB)
            while True:
                with lock:
                    if not work:
                        return
                    path, at = work.pop()
                with open(path, "rb", buffering=0) as f:
                    f.seek(at)
                    for _ in range(64):
                        if not f.readinto(buffer):
                            break
                    os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

        threads = [threading.Thread(target=reader) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        over = peak_memory(pid) - budget - catalog
        print(f"  source {size / 1e9:.1f} GB, catalog {catalog / 1e6:.0f} MB, peak {peak_memory(pid) / 1e6:.0f} MB")
        bench.row("16 readers of everything, 256 MiB: peak less budget and catalog", max(0, over) / MIB, 64, 64, "MiB", more=True)
    shutil.rmtree(source)


def bench_gather(bench):
    matrix = bench.path("matrix")
    rows, columns = 131072, 16384
    with open(matrix, "wb") as f:
        f.truncate(rows * columns * 2)
    program = [os.path.join(bench.tools, "gather_bench"), matrix, str(rows), str(columns), str(64 * MIB)]
    seconds, size, engine, peak = map(float, subprocess.run(program, check=True, capture_output=True, text=True).stdout.split())
    print(f"  bf16 [{rows}, {columns}] transposed: {size / seconds / 1e9:.2f} GB/s, engine's peak {engine / MIB:.0f} MiB")
    bench.row("a 4 GiB gather, 64 MiB: peak less budget", max(0, peak - 64 * MIB) / MIB, 64, 64, "MiB", more=True)
    os.remove(matrix)


def bench_bytes(bench):
    from counting_source import CountingSource
    source = scale_checkpoint(bench.path("small"), "deepseek-v3", "--layers", "4", "--experts", "2", "--fill")
    needed = 0
    for name in os.listdir(source):
        if name.endswith(".safetensors"):
            with open(os.path.join(source, name), "rb") as f:
                needed += os.path.getsize(f.name) - 8 - struct.unpack("<Q", f.read(8))[0]
    os.environ["CKFS_BUILD"] = bench.build
    with CountingSource(source, bench.path("counted")) as counting, mounted(bench, str(counting.path)) as mountpoint:
        directory = os.path.join(mountpoint, "bf16-safetensors")
        os.listdir(directory)
        counting.reset()
        for name in sorted(os.listdir(directory)):
            if name.endswith(".safetensors"):
                read_all(os.path.join(directory, name), False)
        read = sum(one["bytes"] for path, one in counting.counts()["files"].items() if path.endswith(".safetensors"))
    bench.row("source bytes read : needed, a whole view in order", read / needed, 1.02, 1.02, more=True)
    shutil.rmtree(source)


# --- ZeRO ---------------------------------------------------------------------------------------------------------------------------

ZERO_SHARD = "1GB"
ZERO_VIEW = f"fp32-consolidated@max_shard={ZERO_SHARD}"


def zero_checkpoint(directory, model, *options):
    tool = os.path.join(HERE, "..", "tools", "make_zero.py")
    subprocess.run([sys.executable, tool, model, directory, *options], check=True, stdout=subprocess.DEVNULL)
    return directory


def optimizer_files(source):
    return [os.path.join(folder, name) for folder, _, names in os.walk(source) for name in sorted(names) if "_optim_states" in name]


def partition(path):
    """(offset, bytes) of the fp32 partition, which make_zero.py puts last, behind the Adam moments."""
    size = os.path.getsize(path)
    return size // 3 * 2 + 4 * MIB, size // 3 - 8 * MIB


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
    directory = os.path.join(mountpoint, ZERO_VIEW)
    return [os.path.join(directory, name) for name in sorted(os.listdir(directory)) if name.endswith(".safetensors")]


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
    out = bench.path("tmpfs-zero")
    os.makedirs(out)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6g", "tmpfs", out], check=True)
    try:
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
    finally:
        subprocess.run(["umount", out], check=True)
        os.rmdir(out)


def zero_cached(bench, source):
    with constant(bench) as ceiling, mounted(bench, source) as mountpoint:
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
    from counting_source import CountingSource
    os.environ["CKFS_BUILD"] = bench.build
    total = 0
    with CountingSource(source, bench.path("counted-zero")) as counting, mounted(bench, str(counting.path)) as mountpoint:
        paths = view_files(mountpoint)
        counting.reset()
        for path in paths:
            with open(path, "rb") as f:
                total += os.path.getsize(path) - 8 - struct.unpack("<Q", f.read(8))[0]
            read_all(path, False)
        read = sum(one["bytes"] for one in counting.counts()["files"].values())
    bench.row("source bytes read : fp32 bytes of the model, in order", read / total, 1.01, 1.01, more=True)


def bench_zero(bench):
    zero_mount(bench)
    source = zero_checkpoint(bench.path("llama-1b"), "llama-1b", "--ranks", "4", "--fill")
    for part in (zero_copies, zero_cached, zero_random, zero_bytes):
        part(bench, source)
    shutil.rmtree(source)


BENCHES = {name[6:]: function for name, function in list(globals().items()) if name.startswith("bench_")}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", required=True)
    parser.add_argument("names", nargs="*", choices=[[], *BENCHES], metavar="NAME", help=" ".join(BENCHES))
    arguments = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    with tempfile.TemporaryDirectory(prefix="ckfs-bench.", dir=arguments.build) as work:
        bench = Bench(os.path.abspath(arguments.build), os.path.abspath(work))
        for name in arguments.names or BENCHES:
            print(f"{name}", flush=True)
            BENCHES[name](bench)
    if bench.failed:
        print("bench: below the floor: " + "; ".join(bench.failed), file=sys.stderr)
    return 1 if bench.failed else 0


if __name__ == "__main__":
    sys.exit(main())
