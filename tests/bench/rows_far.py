"""Rows of sources on other machines: the stand-ins of tests/tools/object_server.py, with a delay for
each request and a rate for each connection. Client and servers share this machine's CPUs."""
import contextlib
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

from checkpoints import fp8_as_saved, many_shards
from harness import MIB, TOOLS, mounted, status_of

CONNECTIONS = 8
RATE = 50_000_000
PASSES = 3


class Far:
    """The servers, with the checkpoint `source` in each of them."""

    def __init__(self, bench, source, **faults):
        self.bench = bench
        self.root = pathlib.Path(tempfile.mkdtemp(dir=bench.work))
        for folder in ("hub/org", "s3/bucket", "gcs/bucket", "web"):
            (self.root / folder).mkdir(parents=True)
            # The servers give nothing that lies outside.
            shutil.copytree(source, self.root / folder / "model", copy_function=os.link)
        self.process = subprocess.Popen([sys.executable, os.path.join(TOOLS, "object_server.py"), "--root", self.root],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.ports = json.loads(self.process.stdout.readline())
        self.environment = {
            "HOME": str(self.root), "HF_ENDPOINT": self.url("hub"), "AWS_ENDPOINT_URL_S3": self.url("s3"),
            "STORAGE_EMULATOR_HOST": self.url("gcs"), "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "x", "CKFS_CACHE_SIZE": "0"}
        self.faults(**faults)

    def faults(self, **faults):
        self.control("/faults", {"rules": [], "page": 1000, **faults})

    def url(self, service):
        return f"http://127.0.0.1:{self.ports[service]}"

    def control(self, path, value=None):
        body = None if value is None else json.dumps(value).encode()
        with urllib.request.urlopen(urllib.request.Request(self.url("control") + path, body)) as answer:
            return json.load(answer)

    def requests(self):
        """By service, since the last call."""
        counts = self.control("/counts")
        self.control("/reset")
        return {service: its["requests"] for service, its in counts.items() if service != "log"}

    def close(self):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()
        shutil.rmtree(self.root)


@contextlib.contextmanager
def far(bench, source, **faults):
    servers = Far(bench, source, **faults)
    before = dict(os.environ)
    os.environ.update(servers.environment)
    try:
        yield servers
    finally:
        os.environ.clear()
        os.environ.update(before)
        servers.close()


def read_file(path):
    """-> seconds of a read in pieces of 1 MiB."""
    begin = time.perf_counter()
    with open(path, "rb", buffering=0) as file:
        while file.read(MIB):
            pass
    return time.perf_counter() - begin


def curl(url, size, connections):
    """-> seconds of curl with so many ranges at once, one on each connection."""
    step = -(-size // connections)
    begin = time.perf_counter()
    running = [subprocess.Popen(["curl", "-s", "-f", "-o", "/dev/null", "-r", f"{at}-{min(size, at + step) - 1}", url])
               for at in range(0, size, step)]
    if any(each.wait() for each in running):
        raise SystemExit("bench: curl failed")
    return time.perf_counter() - begin


def new_directory(bench):
    """A daemon that ends may still write its cache."""
    return tempfile.TemporaryDirectory(dir=bench.work, ignore_cleanup_errors=True)


def mounted_read(bench, source, name, *options):
    with mounted(bench, source, *options) as mountpoint:
        seconds = read_file(os.path.join(mountpoint, name))
        return seconds, status_of(bench, mountpoint)


def bench_far(bench):
    if not shutil.which("curl"):
        raise SystemExit("bench: far: curl is missing (apt-get install curl)")
    source = fp8_as_saved(bench)
    name = next(each for each in sorted(os.listdir(source)) if each.endswith(".safetensors"))
    size = os.path.getsize(os.path.join(source, name))
    connections = ("--connections", str(CONNECTIONS))
    with far(bench, source, delay_ms=20, rate=RATE) as servers:
        # Without signatures: curl asks the web server for the same bytes.
        url, location = f"{servers.url('web')}/model/{name}", "gs://bucket/model"
        curl(url, size, 1)  # the servers read the file once
        rows = []
        for _ in range(PASSES):
            line = curl(url, size, CONNECTIONS)
            with new_directory(bench) as cache:  # an empty disk cache, as the first mount has it
                new = ("--cache-size", "10GiB", "--cache-dir", os.path.join(cache, "ckfs"))
                copy, _ = mounted_read(bench, location, f"source/{name}", *connections, *new)
            with new_directory(bench) as cache:
                new = ("--cache-size", "10GiB", "--cache-dir", os.path.join(cache, "ckfs"))
                view, status = mounted_read(bench, location, f"bf16-safetensors/{name}", *connections, *new)
            local, _ = mounted_read(bench, source, f"bf16-safetensors/{name}")
            rows.append((line / copy, max(line, local) / view))
            bench.note(f"curl {size / line / 1e6:.0f} MB/s, source/ {size / copy / 1e6:.0f}, view "
                       f"{size / view / 1e6:.0f} of source, of a local source {size / local / 1e6:.0f}; "
                       f"{status['remote']['requests']} requests, {status['remote']['bytes'] / size:.3f} bytes a byte")
        file, view = (statistics.median(column) for column in zip(*rows))
        bench.row(f"file of a far source in order, {CONNECTIONS} connections : curl", file, 0.95, 0.85)
        bench.row("its BF16 view : the slower of curl and of a local source", view, 0.9, 0.75)
        bench.row("bytes fetched for the view : its source's", status["remote"]["bytes"] / size, 1.01, 1.02, more=True)
    shutil.rmtree(source)


def bench_farmount(bench):
    count = 163
    source = many_shards(bench, count)
    with far(bench, source, delay_ms=50) as servers, new_directory(bench) as cache:
        words = ("--cache-size", "1GiB", "--cache-dir", os.path.join(cache, "ckfs"))

        def once():
            servers.requests()
            begin = time.perf_counter()
            with mounted(bench, "hf://org/model", *words) as mountpoint:
                subprocess.run(["ls", "-lR", mountpoint], check=True, stdout=subprocess.DEVNULL)
                seconds = time.perf_counter() - begin
            return seconds, servers.requests()

        seconds, asked = once()
        bench.note(f"requests of the first: {asked}")
        bench.row(f"mount and ls -lR of {count} far shards at 50 ms", seconds, 1.5, 3, "s", more=True)
        seconds, asked = once()
        bench.row("the same with a warm cache", seconds, 0.2, 0.4, "s", more=True)
        bench.row("requests for that", sum(asked.values()), 1, 1, "", more=True)
    shutil.rmtree(source)


def bench_farfaults(bench):
    source = fp8_as_saved(bench)
    name = next(each for each in sorted(os.listdir(source)) if each.endswith(".safetensors"))
    size = os.path.getsize(os.path.join(source, name))
    probe = os.path.join(bench.build, "ckfs_remote_probe")
    fetcher = os.path.join(bench.build, "ckfs-fetcher")
    piece = max(4096, size // 10_000)
    rules = [{"service": "gcs", "path": "alt=media", "every": every, "kind": kind}
             for every, kind in ((101, "503"), (103, "cut"), (1009, "stall"))]
    with far(bench, source, delay_ms=5) as servers:
        def copied():
            with new_directory(bench) as out:
                begin = time.perf_counter()
                subprocess.run([probe, fetcher, "gs://bucket/model", "copy", f"out={out}", f"piece={piece}",
                                "stats=1"], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                seconds = time.perf_counter() - begin
                for each in os.listdir(source):
                    if subprocess.run(["cmp", os.path.join(source, each), os.path.join(out, each)],
                                      check=False).returncode:
                        raise SystemExit(f"bench: {each} differs")
                return seconds

        copied()
        smooth = copied()
        servers.faults(delay_ms=5, rules=rules)
        rough = copied()
        bench.note(f"{size // piece} requests of {piece} bytes for each file: {smooth:.1f} s, with faults {rough:.1f} s")
        bench.row("1% 503, 1% cut, 0.1% stalled for good : without faults", rough / smooth, 1.15, 1.4, more=True)
    shutil.rmtree(source)
