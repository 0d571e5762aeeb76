"""A network mount that streams: rclone over WebDAV on the loopback, with Debian's rclone.

    with rclone.served(directory, log) as server, rclone.mounted(server.url, mountpoint):
        ... mountpoint shows directory ...
        server.requests()

rclone, gcsfuse and their like open one HTTP stream for each open file: what is read in order streams
on, a jump is a new request, and what had been fetched ahead is thrown away.
"""

import contextlib
import os
import socket
import subprocess
import time
from pathlib import Path

ENVIRONMENT = {"RCLONE_CONFIG": "", "RCLONE_CONFIG_DAV_TYPE": "webdav",
               "RCLONE_CONFIG_DAV_VENDOR": "other"}


def _wait(what, process, answers, seconds=30):
    deadline = time.monotonic() + seconds
    while not answers():
        if process.poll() is not None:
            raise RuntimeError(f"rclone: {what} ended with {process.returncode}")
        if time.monotonic() > deadline:
            raise RuntimeError(f"rclone: {what}: no answer within {seconds} s")
        time.sleep(0.02)


def _end(process):
    process.terminate()
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class Server:
    def __init__(self, url, log, pid):
        self.url = url
        self.pid = pid
        self._log = Path(log)

    def requests(self):
        """Requests for bytes since the start."""
        return self._log.read_text().count(": GET from ")

    def bytes_read(self):
        """What the server has read, of files and of requests."""
        fields = dict(line.split(": ") for line in
                      Path(f"/proc/{self.pid}/io").read_text().splitlines())
        return int(fields["rchar"])


@contextlib.contextmanager
def served(directory, log):
    """A WebDAV server of `directory`; what it was asked for goes to `log`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with open(log, "w") as output:
        process = subprocess.Popen(
            ["rclone", "serve", "webdav", str(directory), "--addr", f"127.0.0.1:{port}",
             "--read-only", "-v"], stdout=output, stderr=output, env={**os.environ, **ENVIRONMENT})

    def answers():
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5):
            return True
        return False

    try:
        _wait("serve", process, answers)
        yield Server(f"http://127.0.0.1:{port}", log, process.pid)
    finally:
        _end(process)


@contextlib.contextmanager
def mounted(url, mountpoint, *options):
    """A fresh mount: nothing of it is cached."""
    Path(mountpoint).mkdir(parents=True, exist_ok=True)
    process = subprocess.Popen(
        ["rclone", "mount", "dav:", str(mountpoint), "--vfs-cache-mode", "off", "--read-only",
         *options],
        env={**os.environ, **ENVIRONMENT, "RCLONE_CONFIG_DAV_URL": url})
    try:
        _wait("mount", process, lambda: os.path.ismount(mountpoint))
        yield Path(mountpoint)
    finally:
        # First: a daemon that has just been unmounted from it may still have its files open, and
        # rclone would leave a dead mount behind.
        subprocess.run(["fusermount3", "-u", "-z", str(mountpoint)], check=False)
        _end(process)
