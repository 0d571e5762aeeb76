#!/usr/bin/env python3
"""Minutes of everything at once on two mounts of one source, cached and direct: copies by all tools,
random reads, readers that are killed, views that come and go. Each byte must be the export's, and
the daemons must not grow.

    test_soak.py [SECONDS]        (default 120)
"""
import os
import pathlib
import random
import shutil
import subprocess
import sys
import threading
import time
import unittest

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "loaders"), str(TESTS / "support")]
import mounted_fs  # noqa: E402
from support import mounted  # noqa: E402
from test_copies import (  # noqa: E402
    COPIERS, VIEW, Exported, by_mmap, by_private_mmap, by_sendfile)

SECONDS = 120
BUDGET = 64 << 20
BESIDE = 64 << 20  # bytes beside the budget and the catalog, which is small here: the daemon's promise


class Daemon:
    """What a daemon holds, sampled."""

    def __init__(self, mountpoint):
        (self.pid,) = mounted_fs.processes(mountpoint)
        self.samples = []

    def sample(self):
        status = dict(line.split(":", 1) for line in
                      pathlib.Path(f"/proc/{self.pid}/status").read_text().splitlines())
        self.samples.append((int(status["VmRSS"].split()[0]) * 1024, int(status["Threads"]),
                             len(os.listdir(f"/proc/{self.pid}/fd"))))

    def check(self, test):
        third = len(self.samples) // 3
        first, warm, late = (tuple(map(max, zip(*self.samples[begin : begin + third])))
                             for begin in (0, third, 2 * third))
        print(f"process {self.pid}: memory, threads, files: {first}, {warm}, {late}",
              file=sys.stderr)
        test.assertLess(late[0], BUDGET + BESIDE)
        test.assertLessEqual(late[2], warm[2] + 4)


class Soak(Exported):
    def setUp(self):
        super().setUp()
        self.ended = threading.Event()
        self.done = {}

    # One round each; what goes wrong ends the whole.

    def copy(self, rng, mnt, out):
        copiers = [c for c in COPIERS if mnt.name == "cached"
                   or c not in (by_mmap, by_private_mmap, by_sendfile)]
        out.mkdir()
        copier = rng.choice(copiers)
        for name, content in self.content.items():
            copier(mnt / VIEW / name, out / name)
            if (out / name).read_bytes() != content:
                raise AssertionError(f"{copier.__name__}: {mnt.name}/{name}: other bytes")
        shutil.rmtree(out)

    def read(self, rng, mnt, _):
        name = rng.choice(list(self.content))
        content = self.content[name]
        descriptor = os.open(mnt / VIEW / name, os.O_RDONLY)
        try:
            for _ in range(20):
                at, size = rng.randrange(len(content)), rng.choice([1, 4096, 70000, 1 << 20])
                if os.pread(descriptor, size, at) != content[at : at + size]:
                    raise AssertionError(f"{mnt.name}/{name}: other bytes at {at}")
            if rng.random() < 0.5:  # so that the daemon is asked again
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)

    def kill(self, rng, mnt, _):
        files = sorted((mnt / VIEW).iterdir())
        with subprocess.Popen(["cat", *files], stdout=subprocess.PIPE) as reader:
            reader.stdout.read(rng.randrange(4 << 20))
            reader.kill()

    def look(self, rng, mnt, _):
        view = mnt / f"{VIEW}@max_shard={rng.randrange(100_000, 10_000_000)}"
        shards = [path for path in view.iterdir() if path.suffix == ".safetensors"]
        with open(rng.choice(shards), "rb") as file:
            file.seek(8)
            if file.read(2) != b'{"':
                raise AssertionError(f"{view}: no header")
        (mnt / ".ckfs/status.json").read_text()

    def go_on(self, work, number, mnt):
        rng = random.Random(number)
        out = self.work / f"out-{number}"
        try:
            while not self.ended.is_set():
                work(rng, mnt, out)
                self.done[number] = self.done.get(number, 0) + 1
        except Exception as error:  # a thread has nobody to raise it to
            self.failures.append(error)
            self.ended.set()

    def test_everything_at_once(self):
        self.failures = []
        options = ["--memory", str(BUDGET), "--log-file", self.work / "log"]
        with mounted(self.source, self.work / "cached", *options) as cached, \
                mounted(self.source, self.work / "direct", "-o", "direct", *options) as direct:
            daemons = [Daemon(cached), Daemon(direct)]
            works = [self.copy, self.copy, self.read, self.read, self.kill, self.look]
            threads = [threading.Thread(target=self.go_on, args=(work, number, mnt))
                       for number, (work, mnt) in enumerate(
                           (work, mnt) for work in works for mnt in (cached, direct))]
            for thread in threads:
                thread.start()
            end = time.monotonic() + SECONDS
            while time.monotonic() < end and not self.ended.wait(SECONDS / 60):
                for daemon in daemons:
                    daemon.sample()
            self.ended.set()
            for thread in threads:
                thread.join()
            self.assertEqual(self.failures, [])
            for daemon in daemons:
                daemon.check(self)
        print(f"rounds: {sorted(self.done.items())}", file=sys.stderr)
        self.assertEqual(len(self.done), len(threads), "every kind of work was done")
        self.assertNotIn("error", (self.work / "log").read_text())


if __name__ == "__main__":
    if len(sys.argv) > 1:
        SECONDS = int(sys.argv.pop())
    unittest.main()
