"""Runs the stand-in servers and the fetcher, for tests of remote sources."""
import contextlib
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import threading
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("CKFS_BUILD", ROOT / "build/dev")).resolve()
FETCHER = BUILD / "ckfs-fetcher"
PROBE = BUILD / "ckfs_remote_probe"
SERVER = ROOT / "tests/tools/object_server.py"


def make_model(folder, seed=1):
    """A few files with odd names, and bytes that differ at each offset."""
    rng = random.Random(seed)
    files = {"config.json": 700, "model-00001-of-00002.safetensors": 3_000_000,
             "model-00002-of-00002.safetensors": 1_234_567, "step=1/a b+c.txt": 1000,
             "te/model.safetensors": 65_537, "empty.txt": 0, "ünïcode%20.json": 10}
    for name, size in files.items():
        path = pathlib.Path(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(rng.randbytes(size))
    return files


class Servers:
    """The stand-ins, with a model in each of them."""

    def __init__(self, *arguments):
        self.stack = contextlib.ExitStack()
        self.root = pathlib.Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        self.folders = {"hub": "hub/org/model", "s3": "s3/bucket/run/model",
                        "gcs": "gcs/bucket/run/model", "web": "web/model"}
        for folder in self.folders.values():
            self.files = make_model(self.root / folder)
        make_model(self.root / "s3/bucket/run/model-old", 2)
        make_model(self.root / "gcs/bucket/run/model-old", 2)
        self.process = subprocess.Popen(
            [sys.executable, SERVER, "--root", self.root, *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.ports = json.loads(self.process.stdout.readline())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait(30)
        self.process.stdout.close()
        self.stack.close()

    def url(self, service):
        return "http://127.0.0.1:%d" % self.ports[service]

    def control(self, path, value=None):
        body = None if value is None else json.dumps(value).encode()
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(urllib.request.Request(self.url("control") + path, body)) as answer:
            return json.load(answer)

    def faults(self, rules=(), **more):
        self.control("/faults", {"rules": list(rules), **more})

    def counts(self):
        return self.control("/counts")

    def environment(self, **more):
        """That of a process that knows nothing but the stand-ins, and keeps nothing of them."""
        keep = {k: os.environ[k] for k in ("PATH", "LD_LIBRARY_PATH", "ASAN_OPTIONS") if
                k in os.environ}
        return {**keep, "HOME": str(self.root), "HF_ENDPOINT": self.url("hub"),
                "AWS_ENDPOINT_URL_S3": self.url("s3"), "STORAGE_EMULATOR_HOST": self.url("gcs"),
                "AWS_EC2_METADATA_DISABLED": "true", "CKFS_CACHE_SIZE": "0", **more}

    def locations(self):
        return {"hub": "hf://org/model", "s3": "s3://bucket/run/model",
                "gcs": "gs://bucket/run/model", "web": self.url("web") + "/model/config.json"}


class Answer:
    def __init__(self, process, out):
        self.status = process.returncode
        self.lines = [json.loads(line) for line in process.stdout.splitlines()]
        self.error = process.stderr
        self.out = out

    @property
    def head(self):
        return self.lines[0]

    @property
    def objects(self):
        return {line["name"]: line for line in self.lines if "name" in line}

    @property
    def stats(self):
        return self.lines[-1]


def probe(environment, location, verb="list", **options):
    """Runs the probe until it ends."""
    with tempfile.TemporaryDirectory() as out:
        command = [PROBE, FETCHER, location, verb, f"out={out}",
                   *(f"{name}={value}" for name, value in options.items())]
        process = subprocess.run(command, env=environment, capture_output=True, text=True,
                                 timeout=120, check=False)
        copied = {path.relative_to(out).as_posix(): path.read_bytes()
                  for path in pathlib.Path(out).rglob("*") if path.is_file()}
    return Answer(process, copied)


@contextlib.contextmanager
def probe_that_waits(environment, location, out, **options):
    """A probe that has listed, and copies when `go` is called; gives (process, its lines so far)."""
    command = [PROBE, FETCHER, location, "copy", f"out={out}", "wait=1",
               *(f"{name}={value}" for name, value in options.items())]
    process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    killer = threading.Timer(120, process.kill)
    killer.start()
    try:
        yield process
    finally:
        killer.cancel()
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            pipe.close()
