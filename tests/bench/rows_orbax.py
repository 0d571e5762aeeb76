"""Rows on Orbax checkpoints with compressed chunks."""
import json
import os
import shutil
import statistics
import subprocess
import tempfile

from harness import HERE, timed, tmpfs

ORBAX = os.path.join(os.path.dirname(os.path.dirname(HERE)), ".venv", "orbax", "bin", "python")


def orbax_checkpoint(bench, layers, size):
    """A tree that Orbax wrote on 16 simulated devices: zstd chunks, cut along axis 0, the layer axis
    inside; `size` is that of the other two dimensions."""
    path = bench.path("orbax", f"{layers}-{size}")
    if not os.path.exists(path):
        subprocess.run([ORBAX, os.path.join(HERE, "baseline_orbax.py"), "write", path, str(layers), str(size)],
                       check=True, stderr=subprocess.DEVNULL)
    return path


def bench_decode(bench):
    line = subprocess.run([os.path.join(bench.tools, "chunks_bench")], check=True, capture_output=True, text=True)
    zstd, chunks, ratio = (float(word) for word in line.stdout.split())
    bench.note(f"libzstd {zstd:.2f} GB/s, chunks {chunks:.2f}")
    bench.row("zstd chunks, all cores : libzstd's streaming decode", ratio, 0.9, 0.75)


def bench_chunks(bench):
    """Export of a compressed scanned checkpoint: Orbax restore, numpy and safetensors, all cores."""
    source = orbax_checkpoint(bench, 16, 4096)
    report = json.loads(subprocess.run([bench.ckfs, "inspect", source, "--view", "safetensors", "--json"],
                                       check=True, capture_output=True, text=True).stdout)
    with tmpfs(bench, "tmpfs", "14g") as out:
        def orbax():
            directory = tempfile.mkdtemp(dir=out)
            result = timed([ORBAX, os.path.join(HERE, "baseline_orbax.py"), "export", source, directory])
            shutil.rmtree(directory)
            return result

        def ckfs():
            directory = os.path.join(tempfile.mkdtemp(dir=out), "view")
            result = timed([bench.ckfs, "export", "--memory", "256MiB", source, "safetensors", directory])
            shutil.rmtree(os.path.dirname(directory))
            return result

        seen = [(orbax(), ckfs()) for _ in range(3)]
    o, c = (statistics.median(one[k][0] for one in seen) for k in (0, 1))
    needed = report["decoding"]["needed"]
    bench.note(f"Orbax and numpy {o:.1f} s, ckfs {c:.1f} s for {needed / 1e9:.1f} GB")
    bench.row("export of zstd chunks, tmpfs : Orbax, numpy and safetensors",
              statistics.median(a[0] / b[0] for a, b in seen), 6, 3)
    bench.row("its peak memory : theirs", statistics.median(b[1] / a[1] for a, b in seen), 0.1, 0.1, more=True)
