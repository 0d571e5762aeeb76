"""Rows on single views of checkpoints in memory: speed, memory, bytes."""
import os
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time

from checkpoints import FILE_BYTES, dcp_checkpoint, fp8, matrix, plain, scale_checkpoint
from harness import (HERE, MIB, TOOLS, constant, counting, daemon_of, mounted, peak_memory,
                     raise_readahead, ratios, read_all, recycled_memory, resident_memory, shards_of, status,
                     timed, tmpfs, warm)


def view_file(mountpoint):
    return os.path.join(mountpoint, "bf16-safetensors", "model-00001-of-00002.safetensors")


def against_constant(bench, what, source, direct, goal, floor, void=None):
    """One reader of the first file of a BF16 view, in order, against the constant-memory server;
    `void`: what that has to reach of a plain file of ext4, or the run is void."""
    how = "direct" if direct else "cached"
    options = ["-o", "direct"] if direct else []
    with recycled_memory(), constant(bench, FILE_BYTES, direct) as ceiling, \
            mounted(bench, source, *options) as mountpoint:
        if not direct:
            raise_readahead(mountpoint)
        path = shards_of(os.path.join(mountpoint, "bf16-safetensors"))[0]

        def view():
            warm(*shards_of(source))
            return read_all(path, True)

        def native():
            ext4 = plain(bench)
            warm(ext4)
            return read_all(ext4, False)

        sides = [lambda: read_all(ceiling, True), view] + ([native] if void else [])
        (ratio, *of_ext4), speeds = ratios(sides)
        bench.note(f"constant {speeds[0]:.2f} GB/s, view {speeds[1]:.2f}" +
                   (f", cached ext4 {speeds[2]:.2f}" if void else ""))
        if void and 1 / of_ext4[0] < void:
            bench.note(f"void: the constant server reaches {1 / of_ext4[0]:.2f} of cached ext4 "
                       f"(at least {void})")
            bench.failed.append(f"{how}: void")
        bench.row(f"{what}, {how}, 1 reader, cold : constant-memory server", ratio, goal, floor)


def bench_kernels(bench):
    subprocess.run([os.path.join(bench.tools, "kernels_bench")], check=True)


def bench_cached(bench):
    against_constant(bench, "fp8 to bf16", fp8(bench), False, 0.75, 0.65, 0.20)


def bench_direct(bench):
    against_constant(bench, "fp8 to bf16", fp8(bench), True, 0.70, 0.58, 0.40)


def bench_reread(bench):
    ext4 = plain(bench)
    with constant(bench, FILE_BYTES) as ceiling, mounted(bench, fp8(bench)) as mountpoint:
        path = view_file(mountpoint)
        warm(path, ext4, ceiling)
        (ratio, of_ceiling), speeds = ratios([lambda: read_all(ext4, False), lambda: read_all(path, False),
                                              lambda: read_all(ceiling, False)])
        # FUSE keeps pages of 4 KiB, ext4 large ones: what any FUSE file reaches is the second ratio.
        print(f"  cached ext4 {speeds[0]:.2f} GB/s, view {speeds[1]:.2f}, constant {speeds[2]:.2f} ({of_ceiling:.2f} of ext4)")
        bench.row("second read of a view's file : cached ext4", ratio, 0.95, 0.75)


def bench_export(bench):
    source = fp8(bench)
    with tmpfs(bench, "tmpfs", "6g") as out:
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


def mount_and_list(bench, source, more=(), options=()):
    """-> seconds, the daemon's peak bytes: the median of five mounts and `ls -lR` of all that they show,
    and of the views `more`."""
    seen = []
    for _ in range(5):
        mountpoint = tempfile.mkdtemp(dir=bench.work)
        begin = time.perf_counter()
        subprocess.run([bench.ckfs, "mount", source, mountpoint, *options], check=True)
        subprocess.run(["ls", "-lR", mountpoint, *(os.path.join(mountpoint, view) for view in more)],
                       check=True, stdout=subprocess.DEVNULL)
        seen.append((time.perf_counter() - begin, status(daemon_of(mountpoint), "VmHWM")))
        subprocess.run([bench.ckfs, "umount", mountpoint], check=True)
    return [statistics.median(values) for values in zip(*seen)]


def bench_mount(bench):
    fused = "bf16-safetensors@experts=fused"  # not listed: it is there when it is looked up
    for model, goals, memory, more in (
            ("deepseek-v3", (1.5, 1.5), (150, 150), []), ("qwen3-235b", (0.5, 0.5), (60, 60), []),
            ("kimi-k2.6", (1.5, 2.0), (150, 200), [fused])):
        source = scale_checkpoint(bench.path(model), model)
        seconds, peak = mount_and_list(bench, source, more)
        bench.row(f"{model}: mount and ls -lR", seconds, *goals, "s", more=True)
        bench.row(f"{model}: peak resident memory of the daemon", peak / 1e6, *memory, "MB", more=True)
        shutil.rmtree(source)


def bench_orbaxmount(bench):
    source = bench.path("orbax")
    arrays, chunks = subprocess.run([sys.executable, os.path.join(TOOLS, "make_orbax_scale.py"), source],
                                    check=True, capture_output=True, text=True).stdout.split()
    seconds, peak = mount_and_list(bench, source)
    what = f"Orbax item of {arrays} arrays, {chunks} chunks"
    bench.row(f"{what}: mount and ls -lR", seconds, 1.0, 1.0, "s", more=True)
    bench.row(f"{what}: peak resident memory of the daemon", peak / 1e6, 100, 100, "MB", more=True)
    shutil.rmtree(source)


def bench_dcpmount(bench):
    """The model of a DCP checkpoint of 512 ranks, against torch, which reads its .metadata."""
    tensors, ranks = 723, 512  # Llama 3.1 70B
    source = dcp_checkpoint(bench.path("dcp"), "--tensors", str(tensors), "--pieces", str(ranks),
                            "--files", str(ranks), "--bytes", str(tensors * ranks * 64))
    program = ("import resource, sys, time; from torch.distributed.checkpoint import FileSystemReader;"
               "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10;"
               "before, begin = peak(), time.perf_counter();"
               "FileSystemReader(sys.argv[1]).read_metadata();"
               "print(time.perf_counter() - begin, peak() - before)")
    torch = [sys.executable, "-c", program, source]
    theirs = [map(float, subprocess.run(torch, check=True, capture_output=True, text=True).stdout.split())
              for _ in range(3)]
    read, held = [statistics.median(values) for values in zip(*theirs)]
    seconds, peak = mount_and_list(bench, source)
    bench.note(f".metadata of {os.path.getsize(os.path.join(source, '.metadata')) / 1e6:.0f} MB; torch "
               f"{read:.1f} s, {held / 1e6:.0f} MB; ckfs {seconds:.1f} s, {peak / 1e6:.0f} MB")
    bench.row(f"DCP of {tensors} tensors, {ranks} ranks: mount and ls -lR : torch's read_metadata",
              seconds / read, 0.5, 0.7, more=True)
    bench.row("its peak memory : torch's", peak / held, 0.35, 0.5, more=True)
    shutil.rmtree(source)


def bench_memory(bench):
    source = scale_checkpoint(bench.path("ten"), "deepseek-v3", "--layers", "6", "--experts", "40")
    size = sum(os.path.getsize(os.path.join(source, f)) for f in os.listdir(source))
    budget = 256 * MIB
    with mounted(bench, source, "--memory", "256MiB") as mountpoint:
        subprocess.run(["ls", "-lR", mountpoint], check=True, stdout=subprocess.DEVNULL)
        pid = daemon_of(mountpoint)
        catalog = resident_memory(pid)
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


def gather(bench, path, rows, columns, memory, workers):
    """-> seconds, bytes, the engine's peak, the process's peak."""
    program = [os.path.join(bench.tools, "gather_bench"), path, rows, columns, memory, workers]
    done = subprocess.run([str(word) for word in program], check=True, capture_output=True,
                          text=True)
    return tuple(map(float, done.stdout.split()))


def bench_gather(bench):
    rows, columns = 131072, 16384
    path = matrix(bench, rows, columns)
    seconds, size, engine, peak = gather(bench, path, rows, columns, 64 * MIB, 0)
    speed = f"{size / seconds / 1e9:.2f} GB/s"
    bench.note(f"bf16 [{rows}, {columns}] transposed: {speed}, engine's peak {engine / MIB:.0f} MiB")
    bench.row("a 4 GiB gather, 64 MiB: peak less budget", max(0, peak - 64 * MIB) / MIB, 64, 64,
              "MiB", more=True)

    rows = columns = 16384
    path = matrix(bench, rows, columns, fill=True)
    warm(path)

    def workers(count):
        seconds, size, *_ = gather(bench, path, rows, columns, 1 << 30, count)
        return seconds / size

    with recycled_memory():
        (ratio,), speeds = ratios([lambda: workers(1), lambda: workers(2)])
    bench.note(f"1 worker {speeds[0]:.2f} GB/s, 2 workers {speeds[1]:.2f}")
    bench.row("a gather in order, 2 workers : 1 worker", ratio, 1.8, 1.6)
    os.remove(path)


def bench_bytes(bench):
    source = scale_checkpoint(bench.path("small"), "deepseek-v3", "--layers", "4", "--experts", "2", "--fill")
    needed = 0
    for name in os.listdir(source):
        if name.endswith(".safetensors"):
            with open(os.path.join(source, name), "rb") as f:
                needed += os.path.getsize(f.name) - 8 - struct.unpack("<Q", f.read(8))[0]
    with counting(bench, source, "counted") as counted, mounted(bench, counted.path) as mountpoint:
        directory = os.path.join(mountpoint, "bf16-safetensors")
        os.listdir(directory)
        counted.reset()
        for name in sorted(os.listdir(directory)):
            if name.endswith(".safetensors"):
                read_all(os.path.join(directory, name), False)
        read = sum(one["bytes"] for path, one in counted.counts()["files"].items() if path.endswith(".safetensors"))
    bench.row("source bytes read : needed, a whole view in order", read / needed, 1.02, 1.02, more=True)
    shutil.rmtree(source)
