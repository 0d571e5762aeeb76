"""A page that is put before its reader waits in the kernel, and the mount ends all the same.

By itself on the machine (RUN_SERIAL): where the source seems slow because the CPU is busy, several pieces are
read together and delivered together, and the one that is looked for waits for one that never comes."""

import contextlib
import os
import pathlib
import select
import signal
import subprocess
import sys
import time
import unittest

import fault_support
from fault_support import is_mounted, mounted_fs
from test_delays import FOREVER, GONE, SlowSource


class Deliveries(SlowSource):
    """A page that is delivered waits in the kernel: a read that waits for the source has locked it."""

    options = ""
    ON = """
import os, sys
file = os.open(sys.argv[1], os.O_RDONLY)
os.lseek(file, int(sys.argv[2]), os.SEEK_SET)
try:
    while os.read(file, 100_000):
        pass
except OSError as error:
    sys.exit(error.errno)
"""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.checkpoint = mounted_fs.Checkpoint(cls.shared / "large", megabytes=32)

    def setUp(self):
        super().setUp()
        # In one file, the tensors of the second shard behind those of the first.
        self.file = self.target / "fp32-safetensors@max_shard=1GB/model.safetensors"
        _, placed = fault_support.header_of(self.file)
        first, second = (shard[6:11] for shard in mounted_fs.Checkpoint.SHARDS)
        inside = sorted((begin, name) for name, (_, _, begin, _) in placed.items())
        self.border, self.behind = next(
            (begin, name) for (_, before), (begin, name) in zip(inside, inside[1:])
            if first in before and second in name)  # fmt: skip

    def readers_of_a_page_that_waits(self):
        shard, begin, end = fault_support.place_of(self.checkpoint.path, self.behind)
        self.source.late(shard, FOREVER, begin, end)
        readers = []
        # The first has locked pages before the border; what is delivered to the second are these.
        for begin in (self.border - 8192, 0):
            reader = subprocess.Popen([sys.executable, "-c", self.ON, self.file, str(begin)])
            self.addCleanup(self.end, reader)
            readers.append(reader)
            self.wait_until(lambda: self.waiting_in_kernel(readers), "the reader did not read")
        self.wait_until(self.delivers_in_kernel, "no page that is delivered waits")
        return readers

    def delivers_in_kernel(self):
        """Whether a thread of the daemon sleeps so that no signal wakes it, and not for the source, whose
        reads wait in request_wait_answer() of the kernel's fs/fuse/dev.c."""
        for thread in pathlib.Path(f"/proc/{self.target.pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if (thread / "stat").read_text().rpartition(")")[2].split()[0] == "D" and \
                        (thread / "wchan").read_text() != "request_wait_answer":
                    return True
        return False

    def wait_until(self, condition, what):
        deadline = time.monotonic() + mounted_fs.LIMIT
        while not condition():
            self.assertLess(time.monotonic(), deadline, what)
            select.select([], [], [], 0.01)

    def assert_nobody_waits(self, readers):
        for reader in readers:
            self.assertIn(self.wait(reader), GONE)
        self.wait_until(lambda: not self.delivers_in_kernel(), "a page still waits")
        self.assertFalse(is_mounted(self.target.target))

    def test_a_second_signal_ends_the_mount(self):
        readers = self.readers_of_a_page_that_waits()
        self.stop_at_once()
        self.assert_nobody_waits(readers)
        self.let_the_source_go()
        self.assertTrue(mounted_fs.wait_for_end(self.target.pid))

    def test_a_killed_daemon_leaves_nobody_waiting(self):
        readers = self.readers_of_a_page_that_waits()
        os.kill(self.target.pid, signal.SIGKILL)
        for reader in readers:
            self.assertIn(self.wait(reader), GONE)
        self.let_the_source_go()  # threads that wait for it end no sooner
        self.assertTrue(mounted_fs.wait_for_end(self.target.pid))


class DeliveriesStoppedNow(Deliveries):
    options = "stop=now"

    def stop_at_once(self):
        os.kill(self.target.pid, signal.SIGTERM)


if __name__ == "__main__":
    unittest.main(verbosity=2)
