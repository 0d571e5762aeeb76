"""Rows on `ckfs serve`: ranged readers against a mount and against nginx with a converted copy, and
what vLLM streams from S3 with against that copy."""
import contextlib
import os
import shutil
import socket
import statistics
import subprocess
import sys
import time
import urllib.parse

from checkpoints import fp8
from harness import HERE, MIB, PASSES, mounted, shards_of, warm

ROOT = os.path.dirname(os.path.dirname(HERE))
VIEW = "bf16-safetensors"
READERS = 16
RANGE = 8 * MIB  # as Run:ai's streamer asks for it

# Prints seconds for all tensors of the files below `root`. Imports, and the start of the streamer's
# threads, come before.
STREAMER = """
import sys, time
import torch
from runai_model_streamer import SafetensorsStreamer, list_safetensors
root = sys.argv[1]
begin = time.perf_counter()
with SafetensorsStreamer() as streamer:
    streamer.stream_files(list_safetensors(root))
    for name, tensor in streamer.get_tensors():
        pass
print(time.perf_counter() - begin)
"""


@contextlib.contextmanager
def served(bench, source):
    """-> the URL of the source's bucket."""
    server = subprocess.Popen([bench.ckfs, "serve", source, "--listen", "127.0.0.1:0"],
                              stdout=subprocess.PIPE, text=True)
    try:
        line = server.stdout.readline().strip()
        if not line:
            raise SystemExit("bench: ckfs serve does not serve")
        yield line.rstrip("/")
    finally:
        server.terminate()
        server.wait()


@contextlib.contextmanager
def nginx(bench, directory):
    """-> the URL of the directory's files."""
    program = shutil.which("nginx", path=os.environ["PATH"] + ":/usr/sbin")
    if program is None:
        raise SystemExit("bench: serve: nginx is missing (apt-get install nginx-light)")
    work = bench.path("nginx")
    os.makedirs(work)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with open(os.path.join(work, "nginx.conf"), "w") as f:
        f.write(f"""
daemon off; pid {work}/pid; error_log {work}/error.log; worker_processes auto; user root;
events {{ worker_connections 256; }}
http {{
  access_log off; sendfile on; keepalive_requests 1000000;
  client_body_temp_path {work}/body; proxy_temp_path {work}/proxy; fastcgi_temp_path {work}/fastcgi;
  uwsgi_temp_path {work}/uwsgi; scgi_temp_path {work}/scgi;
  server {{ listen 127.0.0.1:{port}; root {directory}; }}
}}""")
    server = subprocess.Popen([program, "-c", os.path.join(work, "nginx.conf"), "-e",
                               os.path.join(work, "error.log")])
    try:
        deadline = time.monotonic() + 20
        while True:
            with contextlib.suppress(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port)).close()
                break
            if server.poll() is not None or time.monotonic() > deadline:
                raise SystemExit("bench: serve: nginx did not start")
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()
        shutil.rmtree(work)


def ranged(*files):
    done = subprocess.run([sys.executable, os.path.join(HERE, "ranges.py"), str(READERS), str(RANGE),
                           *files], check=True, stdout=subprocess.PIPE, text=True)
    return float(done.stdout)


def streamed(bench, root, **variables):
    python = os.path.join(ROOT, ".venv/serve/bin/python")
    if not os.path.exists(python):
        raise SystemExit("bench: runai: .venv/serve is missing (./dev venv serve)")
    done = subprocess.run(
        [python, "-c", STREAMER, root], check=True, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "HOME": bench.work, "AWS_EC2_METADATA_DISABLED": "true",
             "AWS_REGION": "us-east-1", **variables})
    return float(done.stdout.splitlines()[-1])


def converted_copy(bench, source):
    copy = bench.path("serve-copy")
    if not os.path.isdir(copy):
        subprocess.run([bench.ckfs, "export", source, VIEW, copy], check=True,
                       stdout=subprocess.DEVNULL)
    return copy


def passes_of(sides):
    """sides: {name: function that gives seconds}. -> for each pass {name: seconds}, after one that
    warms up."""
    seen = [{name: side() for name, side in sides.items()} for _ in range(PASSES + 1)][1:]
    return seen, "; ".join(f"{name} {statistics.median(one[name] for one in seen):.2f} s"
                           for name in sides)


def bench_serve(bench):
    source = fp8(bench)
    copy = converted_copy(bench, source)
    names = [os.path.basename(path) for path in shards_of(copy)]
    warm(*shards_of(source), *shards_of(copy))
    with served(bench, source) as bucket, nginx(bench, copy) as web, \
            mounted(bench, source, "-o", "direct") as mountpoint:
        seen, text = passes_of({
            "serve": lambda: ranged(*(f"{bucket}/{VIEW}/{name}" for name in names)),
            "mount": lambda: ranged(*(os.path.join(mountpoint, VIEW, name) for name in names)),
            "nginx": lambda: ranged(*(f"{web}/{name}" for name in names))})
    bench.note(text)
    for other, what, goal, floor in (("mount", "a mount -o direct", 0.9, 0.7),
                                     ("nginx", "nginx with a converted copy", 0.7, 0.5)):
        bench.row(f"serve: {READERS} ranged readers of fp8 as bf16 : {what}",
                  statistics.median(one[other] / one["serve"] for one in seen), goal, floor)


def bench_runai(bench):
    source = fp8(bench)
    copy = converted_copy(bench, source)
    warm(*shards_of(source), *shards_of(copy))
    with served(bench, source) as bucket:
        parts = urllib.parse.urlsplit(bucket)
        seen, text = passes_of({
            "serve": lambda: streamed(
                bench, f"s3:/{parts.path}/{VIEW}", AWS_ENDPOINT_URL=f"http://{parts.netloc}",
                RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING="0", RUNAI_STREAMER_S3_UNSIGNED="1"),
            "copy": lambda: streamed(bench, copy)})
    bench.note(text)
    bench.row("runai streamer from ckfs serve, fp8 as bf16 : from a converted copy",
              statistics.median(one["copy"] / one["serve"] for one in seen), 0.7, 0.5)
