"""Rows on files of FSDP ranks."""
import os
import shutil
import statistics
import subprocess
import tempfile
import time

from checkpoints import fsdp_checkpoint
from harness import BUFFER, HERE, counting, daemon_of, mounted, read_all, shards_of, status, timed, tmpfs
from rows_zero import touch_memory

VIEW = "bf16-safetensors"


def warm(source):
    for name in sorted(os.listdir(source)):
        if name.endswith(".pt"):
            with open(os.path.join(source, name), "rb", buffering=0) as file:
                while file.readinto(BUFFER):
                    pass


def fsdp_mount(bench):
    source = fsdp_checkpoint(bench.path("qwen3-8b-512"), "--ranks", "512")
    seen = []
    for _ in range(5):
        mountpoint = tempfile.mkdtemp(dir=bench.work)
        begin = time.perf_counter()
        subprocess.run([bench.ckfs, "mount", source, mountpoint], check=True)
        subprocess.run(["ls", "-lR", mountpoint], check=True, stdout=subprocess.DEVNULL)
        seen.append((time.perf_counter() - begin, status(daemon_of(mountpoint), "VmHWM")))
        subprocess.run([bench.ckfs, "umount", mountpoint], check=True)
    bench.row("qwen3-8b, FSDP, 512 ranks: mount and ls -lR", statistics.median(s for s, _ in seen), 2, 2, "s", more=True)
    bench.row("its peak resident memory", statistics.median(m for _, m in seen) / 1e6, 150, 150, "MB", more=True)
    shutil.rmtree(source)


def fsdp_copies(bench, source):
    python = os.path.join(HERE, "..", "..", ".venv", "hf", "bin", "python")

    def peak(command):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        said = process.stdout.read()
        _, code, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(code)
        if process.returncode:
            raise SystemExit(f"bench: {command[1]}: exit {process.returncode}")
        return said, usage.ru_maxrss * 1024

    with tmpfs(bench, "tmpfs-fsdp", "4g") as out:
        def with_directory(run):
            directory = tempfile.mkdtemp(dir=out)
            warm(source)
            touch_memory(8 << 30)
            result = run(os.path.join(directory, "out"))
            shutil.rmtree(directory)
            return result

        def merge(directory):
            said, memory = peak([python, os.path.join(HERE, "baseline_fsdp.py"), source, directory])
            return float(said), memory

        def export(directory):
            return timed([bench.ckfs, "export", source, VIEW, directory])

        with_directory(merge)
        seen = [[with_directory(run) for run in (merge, export)] for _ in range(3)]
        m, e = (statistics.median(one[k][0] for one in seen) for k in range(2))
        print(f"  verl's merge {m:.2f} s, export {e:.2f} s")
        bench.row("export of 8 FSDP ranks to BF16, tmpfs : verl's merge", statistics.median(a[0] / b[0] for a, b in seen), 5, 3)
        bench.row("verl's peak memory : the export's", statistics.median(a[1] / b[1] for a, b in seen), 20, 20)


def fsdp_bytes(bench, source):
    needed = sum(os.path.getsize(os.path.join(source, name)) for name in os.listdir(source) if name.endswith(".pt"))
    with counting(bench, source, "counted-fsdp") as counted, mounted(bench, counted.path) as mountpoint:
        paths = shards_of(os.path.join(mountpoint, VIEW))
        counted.reset()
        for path in paths:
            read_all(path, False)
        read = sum(one["bytes"] for one in counted.counts()["files"].values())
    bench.row("source bytes read : bytes of the ranks' files, in order", read / needed, 1.05, 1.05, more=True)


def bench_fsdp(bench):
    fsdp_mount(bench)
    source = fsdp_checkpoint(bench.path("qwen3-1b-8"), "--ranks", "8", "--layers", "8", "--hidden", "2560", "--fill")
    for part in (fsdp_copies, fsdp_bytes):
        part(bench, source)
    shutil.rmtree(source)
