"""The row of `run.py network`: a view of a checkpoint on a mount that streams, against that mount itself."""
import contextlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import rclone  # noqa: E402

PASSES = 5


def dd(path):
    """What has been read leaves the page cache (nocache): with all of it there the first touch of
    memory that the host of a virtual machine has not backed is a third of the time."""
    begin = time.perf_counter()
    subprocess.run(["dd", f"if={path}", "of=/dev/null", "bs=1M", "iflag=nocache", "status=none"], check=True)
    return time.perf_counter() - begin


def run(bench):
    from checkpoints import fp8_as_saved

    if not shutil.which("rclone"):
        raise SystemExit("bench: network: rclone is missing (apt-get install rclone)")
    source = fp8_as_saved(bench)
    name = next(name for name in sorted(os.listdir(source)) if name.endswith(".safetensors"))
    size = os.path.getsize(os.path.join(source, name))
    with tempfile.TemporaryDirectory(dir=bench.work) as work, contextlib.ExitStack() as stack:
        server = stack.enter_context(rclone.served(source, os.path.join(work, "log")))
        network = os.path.join(work, "network")

        def itself():
            return dd(os.path.join(network, name))

        def view(*options):
            mountpoint = tempfile.mkdtemp(dir=work)
            subprocess.run([bench.ckfs, "mount", *options, network, mountpoint], check=True)
            try:
                return dd(os.path.join(mountpoint, "bf16-safetensors", name))
            finally:
                subprocess.run([bench.ckfs, "umount", mountpoint], check=True)

        def measured(side, *options):
            with rclone.mounted(server.url, network, *options):  # fresh: nothing is cached
                requests, read = server.requests(), server.bytes_read()
                seconds = side()
                return seconds, server.requests() - requests, (server.bytes_read() - read) / size

        # Unlimited, rclone and its server take both CPUs of a small machine, and the view what is
        # left of them; at 2 Gb/s it is the order of requests that counts.
        sides = {"the source itself": itself, "the view": view,
                 "the view, -o direct": lambda: view("-o", "direct")}
        for link, options in (("", ()), (", 2 Gb/s", ("--bwlimit", "238M"))):
            passes = [[measured(side, *options) for side in sides.values()] for _ in range(PASSES)]
            for what, results in zip(sides, zip(*passes)):
                seconds, requests, read = map(statistics.median, zip(*results))
                bench.note(f"{what}: {size / seconds / 1e6:.0f} MB/s of source, {requests:.0f} requests, {read:.2f} bytes a byte")
            for k, past in ((1, ""), (2, ", -o direct")):
                bench.row(f"source bytes a second: BF16 view on an rclone mount{link}{past} : dd of the source",
                          statistics.median(one[0][0] / one[k][0] for one in passes), 0.8, 0.8)
