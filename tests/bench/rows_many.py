"""Rows on copies by many processes, digests, and comparisons with a copy."""
import json
import os
import re
import shutil
import statistics
import subprocess
import tempfile
import time

from checkpoints import FILE_BYTES, fp8, scale_checkpoint
from harness import ratios, recycled_memory, shards_of, timed, tmpfs, warm

VIEW = "bf16-safetensors"


def bench_fleet(bench):
    source = fp8(bench)
    with recycled_memory(9 << 30), tmpfs(bench, "tmpfs", "6g") as out:
        def export(world):
            warm(*shards_of(source))
            directory = os.path.join(tempfile.mkdtemp(dir=out), "view")
            begin = time.perf_counter()
            processes = [subprocess.Popen([bench.ckfs, "export", "--threads", "1", "--rank", str(rank),
                                           "--world", str(world), source, VIEW, directory],
                                          stdout=subprocess.DEVNULL) for rank in range(world)]
            for process in processes:
                if process.wait() != 0:
                    raise SystemExit("bench: a rank failed")
            seconds = time.perf_counter() - begin
            shutil.rmtree(os.path.dirname(directory))
            return seconds

        (ratio,), speeds = ratios([lambda: export(1), lambda: export(2)])
        bench.note(f"1 process {1e-9 / speeds[0]:.2f} s, 2 processes {1e-9 / speeds[1]:.2f} s")
        bench.row("fp8 to bf16, tmpfs, 2 processes of 1 thread : 1 process", ratio, 1.9, 1.7)


def bench_split(bench):
    source = scale_checkpoint(bench.path("deepseek-v3"), "deepseek-v3")
    for view in (VIEW, "maxtext-scanned@fsdp=16"):
        done = subprocess.run([os.path.join(bench.tools, "split_bench"), source, view, "256"],
                              check=True, capture_output=True, text=True)
        ratio, shared, tiled, seconds = map(float, done.stdout.split())
        bench.note(f"{view}: cut in {seconds:.2f} s; {shared:.0f} source bytes beside cuts read twice, "
                   f"{tiled:.0f} of 255 cuts in a tensor that is computed in tiles")
        bench.row(f"256 parts of sparse DeepSeek-V3, {view}: largest : mean", ratio, 1.01, 1.05,
                  more=True)
    with tempfile.TemporaryDirectory(dir=bench.work) as out:
        complete(bench, source, out)
        seen = [timed([bench.ckfs, "export", "--rank", "7", "--world", "256", source, VIEW, out])[0]
                for _ in range(5)]
        bench.row("a rank of sparse DeepSeek-V3 with nothing left to do", statistics.median(seen), 1, 1,
                  "s", more=True)
    shutil.rmtree(source)


def complete(bench, source, out):
    """Records as rank 7 of 256 leaves them when it is done; the 1.3 TB are left out."""
    told = json.loads(subprocess.run([bench.ckfs, "inspect", "--json", source], check=True,
                                     capture_output=True).stdout)
    fleet = {"version": 1, "fingerprint": told["fingerprint"], "view": VIEW, "layout_version": 2,
             "world": 256, "split": "ranges"}
    own = os.path.join(out, ".ckfs-export.d")
    os.mkdir(own)
    with open(os.path.join(own, "fleet.json"), "w") as file:
        json.dump(fleet, file)
    with open(os.path.join(own, "rank-7.json"), "w") as file:
        json.dump({**fleet, "rank": 7, "host": "here", "complete": True, "parts": []}, file)


def bench_digest(bench):
    source = fp8(bench)
    cores = os.cpu_count()

    def openssl():
        """Seconds for a byte, on all cores."""
        done = subprocess.run(["openssl", "speed", "-mr", "-multi", str(cores), "-seconds", "2",
                               "-bytes", str(1 << 20), "-evp", "sha256"],
                              check=True, capture_output=True, text=True)
        return 1 / float(re.search(r"^\+F:.*:([\d.]+)$", done.stdout, re.M)[1])

    def ckfs():
        warm(*shards_of(source))
        return timed([bench.ckfs, "digest", source, VIEW])[0] / (2 * FILE_BYTES)

    (ratio,), speeds = ratios([openssl, ckfs])
    bench.row(f"sha256 of a bf16 view of fp8, {cores} cores : openssl speed", ratio, 0.9, 0.75)


def bench_verify(bench):
    source = fp8(bench)
    with tmpfs(bench, "tmpfs", "9g") as out:
        one, two = os.path.join(out, "one"), os.path.join(out, "two")
        subprocess.run([bench.ckfs, "export", source, VIEW, one], check=True, stdout=subprocess.DEVNULL)
        shutil.copytree(one, two)

        def cmp():
            begin = time.perf_counter()
            processes = [subprocess.Popen(["cmp", path, os.path.join(two, os.path.basename(path))])
                         for path in shards_of(one)]
            for process in processes:
                if process.wait() != 0:
                    raise SystemExit("bench: the copies differ")
            return time.perf_counter() - begin

        def ckfs():
            warm(*shards_of(source))
            return timed([bench.ckfs, "verify", source, VIEW, one])[0]

        (ratio,), seconds = ratios([cmp, ckfs])
        bench.row("verify of a copy in memory : cmp with a second copy", ratio, 0.5, 0.35)
