"""Rows on checkpoints of Megatron-Core, both ways. DeepSeek-V3's shapes."""
import os
import shutil

from checkpoints import megatron_checkpoint, scale_checkpoint
from harness import counting, mounted, read_all, shards_of
from rows_maxtext import beside_server, deepseek, needed_bytes, walked
from rows_view import mount_and_list

WRITTEN = "megatron-torch-dist"


def rank_files(directory):
    """Of ranks that have chunks."""
    return sorted(path for path in walked(directory) if path.endswith(".distcp") and os.path.getsize(path))


def bench_megatronmount(bench):
    """Of sparse checkpoints, of all their layers and experts."""
    directory = bench.path("megatron-v3")
    run, options = megatron_checkpoint(directory)
    seconds, peak = mount_and_list(bench, run, options=options)
    what = "deepseek-v3, torch_dist of 512 ranks with optimizer"
    bench.row(f"{what}: mount and ls -lR", seconds, 2, 2, "s", more=True)
    bench.row("its peak resident memory", peak / 1e6, 300, 300, "MB", more=True)
    with counting(bench, run, "counted-megatron") as counted:
        mount_and_list(bench, counted.path, options=options)
        read = sum(one["bytes"] for path, one in counted.counts()["files"].items() if path.endswith(".distcp"))
    bench.row("read of ranks' files by a mount and ls -lR", read / 5 / 1e6, 64, 64, "MB", more=True)
    shutil.rmtree(directory)

    source = scale_checkpoint(bench.path("deepseek-v3"), "deepseek-v3")
    seconds, peak = mount_and_list(bench, source, [WRITTEN])
    bench.row(f"deepseek-v3, FP8, as {WRITTEN}: mount and ls -lR", seconds, 2, 2, "s", more=True)
    bench.row("its peak resident memory", peak / 1e6, 200, 200, "MB", more=True)
    shutil.rmtree(source)


def read_in_order(bench, source, files_below, options=()):
    """-> bytes read of the source's data for those of the files of a view."""
    with counting(bench, source, "counted") as counted, mounted(bench, counted.path, *options) as mountpoint:
        paths = files_below(mountpoint)
        counted.reset()
        for path in paths:
            read_all(path, False)
        return sum(one["bytes"] for path, one in counted.counts()["files"].items()
                   if path.endswith((".distcp", ".safetensors")))


def bench_megatron(bench):
    """Views of four layers with 16 experts, 6 GB as BF16."""
    directory = bench.path("megatron-small")
    run, options = megatron_checkpoint(directory, "--layers", "4", "--experts", "16", "--without-optimizer", "--fill")
    stored = rank_files(run)

    def shards(mountpoint):
        return shards_of(os.path.join(mountpoint, "bf16-safetensors"))

    def ranks(mountpoint):
        return rank_files(os.path.join(mountpoint, WRITTEN))

    ratio, speeds = beside_server(bench, run, stored, lambda mountpoint: shards(mountpoint)[0], options)
    bench.note(f"constant {speeds[0]:.2f} GB/s, view {speeds[1]:.2f}")
    bench.row("torch_dist to bf16-safetensors, cached, 1 reader : constant server", ratio, 0.8, 0.65)
    needed = sum(map(os.path.getsize, stored))
    bench.row("its source bytes : needed, in order", read_in_order(bench, run, shards, options) / needed,
              1.05, 1.05, more=True)
    shutil.rmtree(directory)

    source = deepseek(bench)
    ratio, speeds = beside_server(bench, source, shards_of(source), lambda mountpoint: ranks(mountpoint)[0])
    bench.note(f"constant {speeds[0]:.2f} GB/s, view {speeds[1]:.2f}")
    bench.row(f"FP8 to {WRITTEN}, a data file, cached, 1 reader : constant server", ratio, 0.65, 0.5)
    needed = needed_bytes(source, (".embed_tokens.weight", ".shared_head.head.weight"))
    bench.row("its source bytes : needed, in order", read_in_order(bench, source, ranks) / needed, 1.05, 1.05, more=True)
