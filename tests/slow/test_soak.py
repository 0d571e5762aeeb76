#!/usr/bin/env python3
"""Minutes of everything at once on three mounts of one source, cached, direct, and through a source
that fails now and then: copies by all tools, random reads, readers that are killed, views that come
and go. Each byte that is read must be the export's, and the daemons must not grow: each lives in a
memory cgroup of its budget and 64 MB, where cgroups can be made; elsewhere its memory is sampled,
which is said.

    test_soak.py [SECONDS]        (default 300)
"""
import contextlib
import errno
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
from counting_source import CountingSource  # noqa: E402
from test_copies import (  # noqa: E402
    COPIERS, VIEW, Exported, by_mmap, by_private_mmap, by_sendfile)

SECONDS = 300
BUDGET = 64 << 20
BESIDE = 64 << 20  # bytes beside the budget and the catalog, which is small here: the daemon's promise


class Cgroup:
    """A memory cgroup with a limit; `made` says whether there is one."""

    VERSIONS = [  # where, the limit, the peak, the count of what was killed
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.max_usage_in_bytes", "memory.oom_control"),
        ("/sys/fs/cgroup", "memory.max", "memory.peak", "memory.events"),
    ]

    def __init__(self, name, limit):
        self.path = None
        for top, limits, peak, events in self.VERSIONS:
            path = pathlib.Path(top) / f"ckfs-soak-{os.getpid()}-{name}"
            try:
                path.mkdir()
            except OSError:
                continue
            try:
                (path / limits).write_text(str(limit))
            except OSError:
                path.rmdir()
                continue
            self.path, self.peak_file, self.events = path, path / peak, path / events
            return
        print(f"{name}: no memory cgroup can be made here: memory is sampled instead", file=sys.stderr)

    made = property(lambda self: self.path is not None)

    def enter(self):
        """In a child, before it becomes the program."""
        if self.made:
            (self.path / "cgroup.procs").write_text(str(os.getpid()))

    def peak(self):
        return int(self.peak_file.read_text())

    def killed(self):
        return any(line.startswith("oom_kill ") and line.split()[1] != "0"
                   for line in self.events.read_text().splitlines())

    def remove(self):
        if self.made:
            self.path.rmdir()


class Daemon:
    """A mount whose daemon lives in its cgroup, and what it holds, sampled."""

    def __init__(self, source, target, log, *options):
        self.target = target
        self.cgroup = Cgroup(target.name, BUDGET + BESIDE)
        target.mkdir()
        subprocess.run([mounted_fs.CKFS, "mount", "--memory", str(BUDGET), "--log-file", log, *options,
                        source, target], check=True, preexec_fn=self.cgroup.enter)
        (self.pid,) = mounted_fs.processes(target)
        self.samples = []

    def sample(self):
        status = dict(line.split(":", 1) for line in
                      pathlib.Path(f"/proc/{self.pid}/status").read_text().splitlines())
        self.samples.append((int(status["RssAnon"].split()[0]) * 1024, int(status["Threads"]),
                             len(os.listdir(f"/proc/{self.pid}/fd"))))

    def check(self, test):
        third = len(self.samples) // 3
        first, warm, late = (tuple(map(max, zip(*self.samples[begin : begin + third])))
                             for begin in (0, third, 2 * third))
        print(f"{self.target.name}: memory, threads, files: {first}, {warm}, {late}", file=sys.stderr)
        test.assertLess(max(first[0], warm[0], late[0]), BUDGET + BESIDE)
        # A thread that reads has a ring of its own.
        test.assertLessEqual(late[2], warm[2] + 4 + max(0, late[1] - warm[1]))
        if self.cgroup.made:
            print(f"{self.target.name}: cgroup's peak: {self.cgroup.peak()}", file=sys.stderr)
            test.assertLessEqual(self.cgroup.peak(), BUDGET + BESIDE)
            test.assertFalse(self.cgroup.killed(), "the kernel killed it for its memory")

    def close(self):
        mounted_fs.ckfs("umount", self.target, check=False)
        mounted_fs.wait_for_end(self.pid)
        self.cgroup.remove()


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
                at, size = rng.randrange(len(content)), rng.choice([4096, 70000, 1 << 20])
                got, wanted = os.pread(descriptor, size, at), content[at : at + size]
                if mnt.name == "flaky" and len(got) < len(wanted):
                    wanted = wanted[: len(got)]  # the kernel had asked in two pieces: the second failed
                    self.failed += 1
                if got != wanted:
                    raise AssertionError(f"{mnt.name}/{name}: other bytes at {at}")
            if rng.random() < 0.5:  # so that the daemon is asked again
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)

    def kill(self, rng, mnt, _):
        files = sorted((mnt / VIEW).iterdir())
        with subprocess.Popen(["cat", *files], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as reader:
            reader.stdout.read(rng.randrange(4 << 20))
            reader.kill()

    def look(self, rng, mnt, _):
        view = mnt / f"{VIEW}@max_shard={rng.randrange(100, 10_000)}KB"
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
                try:
                    work(rng, mnt, out)
                except OSError as error:
                    if mnt.name != "flaky" or error.errno != errno.EIO:
                        raise
                    self.failed += 1
                self.done[number] = self.done.get(number, 0) + 1
        except Exception as error:  # a thread has nobody to raise it to
            self.failures.append(error)
            self.ended.set()

    def fail_now_and_then(self, source):
        """Each file of the source in turn cannot be read for a moment."""
        rng = random.Random(0)
        names = sorted(path.name for path in self.source.glob("*.safetensors"))
        while not self.ended.wait(rng.uniform(0.05, 0.5)):
            at = rng.randrange(1 << 20)
            source.fail(rng.choice(names), errno.EIO, at, at + (1 << 20))
            self.ended.wait(rng.uniform(0.05, 0.2))
            source.clear()

    def test_everything_at_once(self):
        self.failures, self.failed = [], 0
        log = self.work / "log"
        with contextlib.ExitStack() as stack:
            failing = stack.enter_context(CountingSource(self.source, self.work / "failing"))
            daemons = [Daemon(self.source, self.work / "cached", log),
                       Daemon(self.source, self.work / "direct", log, "-o", "direct"),
                       Daemon(failing.path, self.work / "flaky", self.work / "flaky-log", "-o", "direct")]
            for daemon in daemons:
                stack.callback(daemon.close)
            cached, direct, flaky = (daemon.target for daemon in daemons)
            works = [self.copy, self.copy, self.read, self.read, self.kill, self.look]
            pairs = [(work, mnt) for work in works for mnt in (cached, direct)]
            pairs += [(work, flaky) for work in (self.read, self.read, self.kill, self.look)]
            threads = [threading.Thread(target=self.go_on, args=(work, number, mnt))
                       for number, (work, mnt) in enumerate(pairs)]
            for thread in threads:
                thread.start()
            threads.append(threading.Thread(target=self.fail_now_and_then, args=(failing,)))
            threads[-1].start()
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
        print(f"rounds: {sorted(self.done.items())}, failed: {self.failed}", file=sys.stderr)
        self.assertEqual(len(self.done), len(pairs), "every kind of work was done")
        self.assertGreater(self.failed, 0, "the source that fails did")
        self.assertNotIn("error", log.read_text())


if __name__ == "__main__":
    if len(sys.argv) > 1:
        SECONDS = int(sys.argv.pop())
    unittest.main()
