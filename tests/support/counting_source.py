"""Starts a counting source (counting_source/counting_source.cc) over a directory and talks to it.

    with CountingSource(directory, mountpoint) as source:
        source.poison("model.safetensors", 1000)
        ... run ckfs on source.path ...
        assert source.counts()["poisoned_reads"] == 0

The program is $CKFS_BUILD/ckfs_counting_source.
"""

import json
import os
import signal
import struct
import subprocess
import time
from pathlib import Path


def _program():
    return Path(os.environ["CKFS_BUILD"]) / "ckfs_counting_source"


def tensor_data_begin(path):
    """Where the tensor data of a safetensors file begins."""
    with open(path, "rb") as file:
        return 8 + struct.unpack("<Q", file.read(8))[0]


class CountingSource:
    """A mirror of `directory` at `path`, which is created if it is not there.

    `cached`: through the page cache, reading `read_ahead` bytes ahead at most. `subtype`: the kernel
    calls it a "fuse.SUBTYPE", as another program's."""

    def __init__(self, directory, path, allow_other=False, timeout=20, cached=False, read_ahead=0,
                 subtype=""):
        self.directory = Path(directory)
        self.path = Path(path)
        self.path.mkdir(parents=True, exist_ok=True)
        command = [_program(), self.directory, self.path]
        if allow_other:
            command.append("--allow-other")
        if cached:
            command.append("--cached")
        if read_ahead:
            command.append(f"--read-ahead={read_ahead}")
        if subtype:
            command.append(f"--subtype={subtype}")
        self._process = subprocess.Popen([str(word) for word in command])
        deadline = time.monotonic() + timeout
        while not self._answers():
            status = self._process.poll()
            if status is not None:
                raise RuntimeError(f"{self.path}: the counting source ended with {status}")
            if time.monotonic() > deadline:
                self.close()
                raise RuntimeError(f"{self.path}: no answer within {timeout} s")
            time.sleep(0.01)
        if read_ahead > 128 << 10:  # only root may let a mount read further ahead than by default
            device = os.stat(self.path).st_dev
            bdi = Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb")
            bdi.write_text(str(read_ahead >> 10))

    def _answers(self):
        try:
            return os.path.ismount(self.path) and bool(self._text(".counts"))
        except OSError:
            return False

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Unmounts; also with readers still in it."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if os.path.ismount(self.path):
            subprocess.run(["fusermount3", "-u", "-z", str(self.path)], check=False)

    def _text(self, name):
        with open(self.path / name, "rb", buffering=0) as file:
            parts = []
            while part := file.read(1 << 20):
                parts.append(part)
        return b"".join(parts).decode()

    def counts(self):
        """What was read since the start or the last reset(); see .counts."""
        return json.loads(self._text(".counts"))

    def log(self):
        """[(file, offset, bytes or -errno)] in order."""
        events = []
        for line in self._text(".log").splitlines():
            offset, result, name = line.split(" ", 2)
            events.append((name, int(offset), int(result)))
        return events

    def command(self, line):
        fd = os.open(self.path / ".control", os.O_WRONLY)
        try:
            os.write(fd, (line + "\n").encode())
        finally:
            os.close(fd)

    def poison(self, name, begin=0, end="end"):
        """Reads of these bytes fail with EIO and count as poisoned_reads."""
        self.command(f"poison {name} {begin} {end}")

    def poison_tensor_data(self):
        """All bytes behind the header of every *.safetensors in the directory."""
        for path in sorted(self.directory.rglob("*.safetensors")):
            self.poison(path.relative_to(self.directory), tensor_data_begin(path))

    def fail(self, name, error, begin=0, end="end"):
        self.command(f"fail {name} {begin} {end} {error}")

    def late(self, name, milliseconds, begin=0, end="end"):
        """Reads of these bytes wait so long."""
        self.command(f"late {name} {begin} {end} {milliseconds}")

    def delay(self, milliseconds):
        self.command(f"delay {milliseconds}")

    def jump(self, milliseconds):
        """More, where an open file is not read on in order."""
        self.command(f"jump {milliseconds}")

    def slow(self, delay=0, bandwidth=0, total_bandwidth=0, in_flight=0):
        """Reads wait `delay` ms; bytes a second of each and of all; so many at a time. 0: no limit."""
        self.command(f"delay {delay}")
        self.command(f"bandwidth {bandwidth}")
        self.command(f"total-bandwidth {total_bandwidth}")
        self.command(f"in-flight {in_flight}")

    def cloud_disk(self):
        """11 ms for 2 MB, 2 GB/s with ten such in flight."""
        self.command("cloud-disk")

    def short(self, size):
        """No read gives more than `size` bytes."""
        self.command(f"short {size}")

    def clear(self):
        """Takes all poison, failures, delay and shortness back."""
        self.command("clear")

    def reset(self):
        """Counts and log from nothing."""
        self.command("reset")
