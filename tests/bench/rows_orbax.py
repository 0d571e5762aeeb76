"""Rows on Orbax checkpoints with compressed chunks."""
import json
import os
import re
import shutil
import statistics
import subprocess
import tempfile

from harness import HERE, timed, tmpfs

ORBAX = os.path.join(os.path.dirname(os.path.dirname(HERE)), ".venv", "orbax", "bin", "python")


def orbax_checkpoint(bench, layers, size):
    """A MaxText tree that Orbax wrote on 16 simulated devices: zstd chunks, the layers inside, cut along
    the hidden dimension, which has `size`; and config.json beside the item."""
    path = bench.path("orbax", f"maxtext-{layers}-{size}")
    if not os.path.exists(path):
        os.makedirs(path)
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
    source = orbax_checkpoint(bench, 32, 2048)
    item, view, config = os.path.join(source, "item"), "bf16-safetensors", ["--config", source]
    report = json.loads(subprocess.run([bench.ckfs, "inspect", item, "--view", view, "--json", *config],
                                       check=True, capture_output=True, text=True).stdout)
    needed = report["decoding"]["needed"]
    with tmpfs(bench, "tmpfs", "14g") as out:
        def orbax():
            directory = tempfile.mkdtemp(dir=out)
            result = timed([ORBAX, os.path.join(HERE, "baseline_orbax.py"), "export", source, directory])
            shutil.rmtree(directory)
            return result

        def command(directory):
            return [bench.ckfs, "export", "--memory", "256MiB", *config, item, view, directory]

        def ckfs():
            directory = os.path.join(tempfile.mkdtemp(dir=out), "view")
            result = timed(command(directory))
            shutil.rmtree(os.path.dirname(directory))
            return result

        def decoded():
            """Bytes that an export decodes, and that it keeps on the disk, as its log says."""
            directory = os.path.join(tempfile.mkdtemp(dir=out), "view")
            log = subprocess.run([*command(directory), "--log-level", "info"], check=True,
                                 capture_output=True, text=True).stderr
            shutil.rmtree(os.path.dirname(directory))
            return map(int, re.search(r"(\d+) bytes of chunks were decoded, (\d+) of them", log).groups())

        seen = [(orbax(), ckfs()) for _ in range(3)]
        made, kept = decoded()
    o, c = (statistics.median(one[k][0] for one in seen) for k in (0, 1))
    bench.note(f"Orbax and numpy {o:.1f} s, ckfs {c:.1f} s for {needed / 1e9:.1f} GB, "
               f"{kept / 1e9:.1f} GB of them kept in OUT for a while")
    bench.row("export of zstd chunks, tmpfs : Orbax, numpy and safetensors",
              statistics.median(a[0] / b[0] for a, b in seen), 6, 3)
    bench.row("its peak memory : theirs", statistics.median(b[1] / a[1] for a, b in seen), 0.1, 0.1, more=True)
    bench.row("decoded bytes : array bytes", made / needed, 1.02, 1.02, more=True)


def bench_reshard(bench):
    """The same arrays cut for other devices: Orbax restores them onto 32 simulated ones and saves them."""
    source = orbax_checkpoint(bench, 32, 2048)
    item, config = os.path.join(source, "item"), ["--config", source]
    with tmpfs(bench, "tmpfs", "14g") as out:
        def run(command, *names):
            directory = tempfile.mkdtemp(dir=out)
            result = timed([*command, os.path.join(directory, *names)])
            shutil.rmtree(directory)
            return result

        sides = [lambda: run([ORBAX, os.path.join(HERE, "baseline_orbax.py"), "reshard", source]),
                 lambda: run([bench.ckfs, "export", "--memory", "256MiB", *config, item,
                              "maxtext-scanned@ep=2,fsdp=16"], "view")]
        seen = [[side() for side in sides] for _ in range(3)]
    o, c = (statistics.median(one[k][0] for one in seen) for k in (0, 1))
    bench.note(f"Orbax {o:.1f} s, ckfs {c:.1f} s")
    bench.row("export of zstd chunks for fsdp=16, ep=2, tmpfs : Orbax restore and save",
              statistics.median(a[0] / b[0] for a, b in seen), 6, 3)
    bench.row("its peak memory : theirs", statistics.median(b[1] / a[1] for a, b in seen), 0.1, 0.1, more=True)
