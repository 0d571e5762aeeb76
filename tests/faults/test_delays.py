"""A source that does not answer: who does not need it is served, who is killed goes, a mount can be
taken away, and nobody who waited hangs."""

import errno
import json
import os
import pathlib
import select
import signal
import subprocess
import sys
import time
import unittest

import fault_support
from fault_support import ckfs, is_mounted, mounted_fs, run

SHARD = "fp32-safetensors/" + mounted_fs.Checkpoint.SHARDS[0]
FOREVER = 60_000  # milliseconds; far longer than BOUND
GONE = {errno.EIO, errno.ENOTCONN, errno.ECONNABORTED}
BOUND = 30  # seconds in which everything must be done that does not need the source
GIVEN_UP = 4  # ... in which a mount is given up: two, on a machine with other work

READER = """
import os, sys
file = os.open(sys.argv[1], os.O_RDONLY)
print("opened", flush=True)
try:
    os.pread(file, 100_000, int(sys.argv[2]))
except OSError as error:
    sys.exit(error.errno)
"""


class SlowSource(fault_support.TestCase):
    options = "mtime=1234567890"  # any option that leaves the mount cached

    def setUp(self):
        super().setUp()
        self.source = self.counting(self.checkpoint.path)
        self.target = self.logged_mount(self.source.path, self.options)
        # Looked at before the source stops: the kernel answers for it from now on.
        self.size = os.stat(self.target / SHARD).st_size

    def stop_the_source(self):
        self.source.delay(FOREVER)

    def let_the_source_go(self):
        """The source ends, and with it whatever waits for it."""
        self.source.close()

    def waiting_readers(self, count=4):
        """Programs of which each waits for bytes of its own."""
        readers = []
        for number in range(count):
            reader = subprocess.Popen(
                [sys.executable, "-c", READER, self.target / SHARD,
                 str(number * self.size // count + 8192)],
                stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            self.addCleanup(self.end, reader)
            self.assertEqual(reader.stdout.readline(), "opened\n")
            readers.append(reader)
        # Waits until one of them reaches the source, where it stays.
        deadline = time.monotonic() + mounted_fs.LIMIT
        while self.waiting_in_kernel(readers) < count:
            self.assertLess(time.monotonic(), deadline, "the readers did not read")
            select.select([], [], [], 0.01)
        return readers

    def waiting_in_kernel(self, readers):
        """How many of them sleep within a read."""
        count = 0
        for reader in readers:
            self.assertIsNone(reader.poll(), "a reader ended although the source does not answer")
            with open(f"/proc/{reader.pid}/syscall") as file:
                words = file.read().split()
            count += len(words) > 5 and int(words[3], 0) == 100_000
        return count

    def end(self, reader):
        reader.kill()
        self.source.close()  # else a direct reader stays
        reader.communicate(timeout=mounted_fs.LIMIT)

    def wait(self, reader, within=BOUND):
        try:
            return reader.wait(within)
        except subprocess.TimeoutExpired:
            self.fail(f"the reader hangs for {within} s")

    def within_bound(self, *words, check=True):
        """A ckfs command that must not wait for the source."""
        before = time.monotonic()
        done = ckfs(*words, check=check)
        self.assertLess(time.monotonic() - before, BOUND, words)
        return done

    def stop_at_once(self):
        """The first signal takes the mount out of sight, the second sends its readers home."""
        os.kill(self.target.pid, signal.SIGTERM)
        mounted_fs.wait_until_unmounted(self.target.target)
        os.kill(self.target.pid, signal.SIGTERM)

    def wait_for_first_thread(self):
        """The daemon is as much at its end as the kernel lets it be: it computes nothing any more, and
        threads that wait for the source are all that is left."""
        deadline = time.monotonic() + GIVEN_UP
        while True:
            try:
                state = pathlib.Path(f"/proc/{self.target.pid}/stat").read_text().rsplit(") ")[1][0]
            except (FileNotFoundError, ProcessLookupError):
                return
            if state in "ZX":
                return
            self.assertLess(time.monotonic(), deadline, f"the daemon goes on: {state}")
            select.select([], [], [], 0.01)

    def assert_healthy(self):
        with open(self.target / SHARD, "rb") as file:
            data = file.read()
        for name, tensor in mounted_fs.read_tensors(data).items():
            self.assertEqual(tensor, mounted_fs.widen(self.checkpoint.tensors[name]))


class Delays(SlowSource):
    def test_statistics_and_listings_answer_meanwhile(self):
        self.stop_the_source()
        self.waiting_readers(8)
        told = json.loads(self.within_bound("stats", self.target.target, "--json").stdout)
        self.assertGreater(told["requests"], 0)
        run("ls", "-lR", self.target.target)
        config = self.target / "bf16-safetensors/config.json"
        os.stat(config)

    def test_umount_answers_at_once_while_readers_wait(self):
        self.stop_the_source()
        readers = self.waiting_readers()
        done = self.within_bound("umount", self.target.target)
        self.assertIn("in use", done.stdout)
        self.assertFalse(is_mounted(self.target.target))
        self.let_the_source_go()
        for reader in readers:
            self.assertIn(self.wait(reader), {errno.EIO, errno.ESTALE})
        self.assertTrue(mounted_fs.wait_for_end(self.target.pid))

    def test_a_lazy_unmount_is_out_of_sight_at_once(self):
        self.stop_the_source()
        readers = self.waiting_readers()
        self.target.clear()
        self.assertFalse(is_mounted(self.target.target))
        for reader in readers:
            reader.kill()
        self.let_the_source_go()
        for reader in readers:
            self.wait(reader)
        self.assertTrue(mounted_fs.wait_for_end(self.target.pid))

    def test_a_second_signal_sends_the_readers_home(self):
        self.stop_the_source()
        readers = self.waiting_readers()
        self.stop_at_once()
        for reader in readers:
            self.assertIn(self.wait(reader), GONE)
        self.assertFalse(is_mounted(self.target.target))
        self.assertTrue(self.log_lines("the source has not answered"), self.log.read_text())
        # What is left is a process that the kernel holds until the source answers.
        self.let_the_source_go()
        self.assertTrue(mounted_fs.wait_for_end(self.target.pid))
        self.assertEqual(self.log_lines(" error ", "unmount"), [])

    def test_a_forced_umount_sends_the_readers_home(self):
        self.stop_the_source()
        readers = self.waiting_readers()
        done = self.within_bound("umount", "--force", self.target.target)
        self.assertEqual(done.stdout, "")
        self.assertFalse(is_mounted(self.target.target))
        for reader in readers:
            self.assertIn(self.wait(reader, GIVEN_UP), GONE)
        self.wait_for_first_thread()
        self.assertTrue(self.log_lines("the source has not answered"), self.log.read_text())
        self.let_the_source_go()
        self.assertTrue(mounted_fs.wait_for_end(self.target.pid))

    def test_a_mount_is_given_up_soon(self):
        self.stop_the_source()
        readers = self.waiting_readers()
        self.stop_at_once()
        for reader in readers:
            self.assertIn(self.wait(reader, GIVEN_UP), GONE)
        self.wait_for_first_thread()

    def test_the_place_can_be_mounted_again_at_once(self):
        self.stop_the_source()
        readers = self.waiting_readers()
        self.stop_at_once()
        for reader in readers:
            self.wait(reader)
        other = self.directory / "other"
        other.mkdir()
        source = mounted_fs.Checkpoint(other / "model", megabytes=1)
        ckfs("mount", source.path, self.target.target)
        self.addCleanup(ckfs, "umount", self.target.target)
        self.assertEqual((self.target / "source/config.json").read_bytes(),
                         (source.path / "config.json").read_bytes())  # fmt: skip

    def test_a_source_that_answers_late_gives_right_bytes(self):
        self.source.delay(30)
        self.assert_healthy()

    def test_the_end_of_the_source_ends_all_waiting(self):
        self.stop_the_source()
        readers = self.waiting_readers()
        self.let_the_source_go()
        for reader in readers:
            self.assertIn(self.wait(reader), {errno.EIO, errno.ESTALE})
        self.assertIn("fp32-safetensors", os.listdir(self.target.target))
        self.within_bound("stats", self.target.target)

    def test_killed_readers_of_a_slow_source_leave_a_working_mount(self):
        self.source.delay(2_000)
        readers = self.waiting_readers()
        for reader in readers:
            reader.kill()
        for reader in readers:
            self.assertEqual(self.wait(reader), -signal.SIGKILL)
        self.source.clear()
        self.assert_healthy()
        self.within_bound("umount", self.target.target)
        self.assertTrue(mounted_fs.wait_for_end(self.target.pid))


class DirectDelays(Delays):
    options = "direct"


class Abandoned(SlowSource):
    def test_one_signal_ends_a_daemon_that_works_for_nobody(self):
        self.stop_the_source()
        readers = self.waiting_readers()
        for reader in readers:
            reader.kill()
            reader.wait(BOUND)
        os.kill(self.target.pid, signal.SIGTERM)
        mounted_fs.wait_until_unmounted(self.target.target)
        self.wait_for_first_thread()


class KilledReaders(SlowSource):
    """Only of a cached mount: a direct read that the daemon has taken up is waited for by the
    kernel, as on a disk that does not answer."""

    def test_killed_readers_go_although_the_source_does_not_answer(self):
        self.stop_the_source()
        readers = self.waiting_readers()
        for reader in readers:
            reader.kill()
        for reader in readers:
            self.assertEqual(self.wait(reader), -signal.SIGKILL)


if __name__ == "__main__":
    unittest.main(verbosity=2)
