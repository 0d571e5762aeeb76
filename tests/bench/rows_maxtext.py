"""Rows on MaxText views: an Orbax checkpoint that is made of a Hugging Face one."""
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time

from checkpoints import scale_checkpoint
from harness import (HERE, constant, daemon_of, mounted, raise_readahead, ratios,
                     read_all, recycled_memory, shards_of, status, status_of, timed, tmpfs, warm)
from rows_orbax import orbax_checkpoint
from rows_quantized import header_size

PYTHON = os.path.join(HERE, "..", "..", ".venv", "orbax", "bin", "python")
ITEM = os.path.join("0", "items")


def filled(bench, model, layers, experts):
    directory = bench.path(f"{model}-{layers}-{experts}")
    if not os.path.exists(directory):
        scale_checkpoint(directory, model, "--layers", str(layers), "--experts", str(experts),
                         "--fill")
    return directory


def qwen3(bench):
    return filled(bench, "qwen3-235b", 2, 24)  # 3.2 GB of bf16


def deepseek(bench):
    return filled(bench, "deepseek-v3", 4, 16)


def walked(directory):
    return [os.path.join(root, name) for root, _, names in os.walk(directory) for name in names]


def data_files(item):
    return sorted(path for path in walked(item) if os.path.basename(os.path.dirname(path)) == "d")


def restored(what, item, *dropped):
    done = subprocess.run([PYTHON, os.path.join(HERE, "restore_item.py"), what, item, *dropped], check=True,
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return float(done.stdout.split()[-1])


def beside_server(bench, source, stored, path_below, options=()):
    """One reader in order of a file of a mount of `source`, whose `stored` files are cached, against the
    constant-memory server with a file as long: each gets the pages that the other one has left."""
    with recycled_memory(9 << 30), mounted(bench, source, *options) as mountpoint:
        raise_readahead(mountpoint)
        path = path_below(mountpoint)
        with constant(bench, os.path.getsize(path)) as ceiling:
            def of_server():
                return read_all(ceiling, True)

            def of_view():
                warm(*stored)
                return read_all(path, True)

            (ratio,), speeds = ratios([of_server, of_view], 5)
    return ratio, speeds


def bench_maxtext(bench):
    """Data files of items."""
    for what, source, view, limits in (
            ("direct chunks (bf16)", qwen3, "maxtext-unscanned", (0.82, 0.70)),
            ("fp8 to bf16", deepseek, "maxtext-unscanned", (0.67, 0.55)),
            ("scanned (bf16)", qwen3, "maxtext-scanned", (0.65, 0.52))):
        directory = source(bench)
        ratio, speeds = beside_server(bench, directory, shards_of(directory),
                                      lambda mountpoint: data_files(os.path.join(mountpoint, view, ITEM))[0])  # noqa: B023
        bench.note(f"{what}: constant {speeds[0]:.2f} GB/s, view {speeds[1]:.2f}")
        bench.row(f"maxtext data file, {what}, cached, 1 reader : constant server", ratio, *limits)


def bench_uncompressed(bench):
    """Tensors of an item whose chunks are not compressed, nor transposed: each is cut along its own
    dimensions, as for 16 devices."""
    item = bench.path("uncompressed")
    subprocess.run([bench.ckfs, "export", os.path.join(orbax_checkpoint(bench, 16, 2048), "item"), "orbax", item],
                   check=True)
    ratio, speeds = beside_server(bench, item, data_files(item),
                                  lambda mountpoint: shards_of(os.path.join(mountpoint, "safetensors"))[0])
    bench.note(f"constant {speeds[0]:.2f} GB/s, view {speeds[1]:.2f}")
    bench.row("uncompressed item, safetensors, cached, 1 reader : constant server", ratio, 0.82, 0.70)
    shutil.rmtree(item)


def bench_maxtextmount(bench):
    """Of sparse checkpoints: nothing but headers is read."""
    for model, seconds, memory in (("deepseek-v3", 1.5, 130), ("deepseek-v4", 1.5, 130),
                                   ("kimi-k2.6", 3.0, 200)):
        source = scale_checkpoint(bench.path(model), model)
        seen = []
        for _ in range(3):
            mountpoint = tempfile.mkdtemp(dir=bench.work)
            begin = time.perf_counter()
            subprocess.run([bench.ckfs, "mount", source, mountpoint], check=True)
            subprocess.run(["ls", "-lR", mountpoint], check=True, stdout=subprocess.DEVNULL)
            seen.append((time.perf_counter() - begin, status(daemon_of(mountpoint), "VmHWM")))
            if model != "deepseek-v3" or len(seen) < 3:
                subprocess.run([bench.ckfs, "umount", mountpoint], check=True)
        bench.row(f"{model}: mount and ls -lR, both MaxText views", statistics.median(s for s, _ in seen),
                  seconds, seconds, "s", more=True)
        bench.row(f"{model}: peak resident memory of the daemon", statistics.median(m for _, m in seen) / 1e6,
                  memory, memory, "MB", more=True)
        if model == "deepseek-v3":
            begin = time.perf_counter()
            os.stat(os.path.join(mountpoint, "maxtext-scanned@fsdp=64"))
            bench.row("deepseek-v3: first look-up of maxtext-scanned@fsdp=64", time.perf_counter() - begin,
                      3, 3, "s", more=True)
            bench.row("deepseek-v3: peak resident memory of the daemon, with it",
                      status(daemon_of(mountpoint), "VmHWM") / 1e6, 250, 250, "MB", more=True)
            item = os.path.join(mountpoint, "maxtext-unscanned", ITEM)
            copy = bench.path("metadata")
            shutil.copytree(item, copy, ignore=shutil.ignore_patterns("d"))
            # Its nodes lie in the first data files, which hold chunks as well.
            sparse_copy(item, copy)
            passes = [(restored("metadata", copy), restored("metadata", item)) for _ in range(3)]
            bench.note(f"abstract restore: copy {statistics.median(a for a, _ in passes):.2f} s, "
                       f"view {statistics.median(b for _, b in passes):.2f}")
            bench.row("abstract restore through the mount : of a copy", statistics.median(b / a for a, b in passes),
                      1.5, 1.5, more=True)
            subprocess.run([bench.ckfs, "umount", mountpoint], check=True)
        shutil.rmtree(source)


def sparse_copy(item, copy):
    """The data files of an item: those with nodes as they are, the others as long as they are."""
    for path in data_files(item):
        out = os.path.join(copy, os.path.relpath(path, item))
        os.makedirs(os.path.dirname(out), exist_ok=True)
        size = os.path.getsize(path)
        if size < 64 << 20:
            shutil.copyfile(path, out)
        else:
            with open(out, "wb") as file:
                file.truncate(size)


def bench_restore(bench):
    """Orbax restores all arrays: from the mount, and from an export on the machine's disk."""
    source = qwen3(bench)
    copy = bench.path("item")
    subprocess.run([bench.ckfs, "export", source, "maxtext-unscanned", copy], check=True)
    with mounted(bench, source) as mountpoint:
        # Each with the files that its bytes come from.
        view = os.path.join(mountpoint, "maxtext-unscanned", ITEM)
        sides = [(os.path.join(copy, ITEM), copy), (view, view, source)]
        os.sync()
        for what, cold in (("cold", True), ("cached", False)):
            seen = []
            for turn in range(4):
                one = []
                for item, *files in sides:
                    for directory in files:
                        subprocess.run(["cat", *walked(directory)], check=True, stdout=subprocess.DEVNULL)
                    one.append(restored("arrays", item, *(files if cold else ())))
                if turn > 0:
                    seen.append(one)
            bench.note(f"{what}: copy {statistics.median(a for a, _ in seen):.2f} s, "
                       f"mount {statistics.median(b for _, b in seen):.2f} s")
            bench.row(f"Orbax restore from the mount : of an ext4 copy, {what}",
                      statistics.median(b / a for a, b in seen), 1.1, 1.4, more=True)
    shutil.rmtree(copy)


def bench_save(bench):
    """`ckfs export` against safetensors, NumPy and Orbax's own save."""
    source = filled(bench, "qwen3-235b", 2, 12)
    for layout in ("unscanned", "scanned"):
        with recycled_memory(13 << 30), tmpfs(bench, "tmpfs", "5g") as out:
            def tool(layout=layout, out=out):
                directory = os.path.join(out, "item")
                result = timed([PYTHON, os.path.join(HERE, "baseline_maxtext.py"), layout, source, directory])
                shutil.rmtree(directory)
                return result

            def ckfs(layout=layout, out=out):
                directory = os.path.join(out, "view")
                result = timed([bench.ckfs, "export", source, f"maxtext-{layout}", directory])
                shutil.rmtree(directory)
                return result

            tool(), ckfs()
            seen = [(tool(), ckfs()) for _ in range(3)]
        t, c = (statistics.median(one[k][0] for one in seen) for k in (0, 1))
        bench.note(f"{layout}: Orbax {t:.2f} s, ckfs {c:.2f} s")
        bench.row(f"export to maxtext-{layout}, tmpfs : safetensors, NumPy, Orbax",
                  statistics.median(a[0] / b[0] for a, b in seen), 10, 5)
        bench.row("its peak memory : theirs", statistics.median(b[1] / a[1] for a, b in seen), 0.1, 0.1,
                  more=True)


def needed_bytes(source, left_out_of_last=("",)):
    """Of all tensors but those of layers behind the last, which predict further tokens, or of them those
    whose names end so."""
    with open(os.path.join(source, "config.json")) as file:
        left_out = f"model.layers.{json.load(file)['num_hidden_layers']}."
    total = 0
    for path in shards_of(source):
        with open(path, "rb") as file:
            header = json.loads(file.read(8 + header_size(path))[8:])
        total += sum(tensor["data_offsets"][1] - tensor["data_offsets"][0]
                     for name, tensor in header.items()
                     if name != "__metadata__" and not (name.startswith(left_out) and name.endswith(left_out_of_last)))
    return total


def bench_neededmaxtext(bench):
    """Whatever the layout and the chunks, each source byte is read once. By reads, as in `needed`."""
    for source, views in (
            (filled(bench, "qwen3-235b", 2, 12),
             ("maxtext-unscanned", "maxtext-scanned", "maxtext-unscanned@ep=2,fsdp=4",
              "maxtext-scanned@ep=2,fsdp=4", "maxtext-scanned@tp=4", "maxtext-unscanned@storage=zarr3")),
            (deepseek(bench), ("maxtext-unscanned", "maxtext-scanned", "maxtext-scanned@ep=2,fsdp=4"))):
        needed = needed_bytes(source)
        for view in views:
            with mounted(bench, source, "--memory", "256MiB", "--io", "pread") as mountpoint:
                item = os.path.join(mountpoint, view, ITEM)
                before = status_of(bench, mountpoint)["source_bytes"]
                for root, folders, names in os.walk(item):
                    folders.sort()
                    for name in sorted(names):
                        path = os.path.join(root, name)
                        if os.path.getsize(path):
                            read_all(path, True)
                ratio = (status_of(bench, mountpoint)["source_bytes"] - before) / needed
            bench.row(f"{os.path.basename(source)} {view}: source bytes read : needed", ratio, 1.05, 1.05,
                      more=True)
