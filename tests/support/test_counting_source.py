"""The counting source itself: it mirrors faithfully, counts exactly and fails as it is told."""

import errno
import os
import tempfile
import time
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from counting_source import CountingSource

SIZE = 3_000_000


class CountingSourceTest(unittest.TestCase):
    def setUp(self):
        self.work = tempfile.TemporaryDirectory()
        self.addCleanup(self.work.cleanup)
        self.directory = Path(self.work.name) / "source"
        self.directory.mkdir()
        self.data = os.urandom(SIZE)
        self.file = self.directory / "a b.bin"
        self.file.write_bytes(self.data)
        os.utime(self.file, ns=(1, 1_600_000_000_123_456_789))
        (self.directory / "sub").mkdir()
        (self.directory / "sub" / "x").write_bytes(b"hello")
        (self.directory / "link").symlink_to("a b.bin")
        self.source = CountingSource(self.directory, Path(self.work.name) / "mount")
        self.addCleanup(self.source.close)

    def open(self, name="a b.bin"):
        fd = os.open(self.source.path / name, os.O_RDONLY)
        self.addCleanup(os.close, fd)
        return fd

    def assert_errno(self, number, function, *arguments):
        with self.assertRaises(OSError) as raised:
            function(*arguments)
        self.assertEqual(raised.exception.errno, number)

    def test_mirrors_names_times_and_inodes(self):
        self.assertEqual(sorted(os.listdir(self.source.path)), ["a b.bin", "link", "sub"])
        self.assertEqual(os.readlink(self.source.path / "link"), "a b.bin")
        shown, real = os.stat(self.source.path / "a b.bin"), os.stat(self.file)
        for field in ("st_size", "st_mtime_ns", "st_ino", "st_mode"):
            self.assertEqual(getattr(shown, field), getattr(real, field), field)
        self.assertEqual((self.source.path / "a b.bin").read_bytes(), self.data)
        self.assertEqual((self.source.path / "sub/x").read_bytes(), b"hello")

    def test_counts_each_byte_of_each_read(self):
        fd = self.open()
        self.source.reset()
        for offset in (5, 50, 2_000_001, 5):
            self.assertEqual(os.pread(fd, 100, offset), self.data[offset : offset + 100])
        counts = self.source.counts()
        self.assertEqual(counts["bytes"], 400)
        self.assertEqual(counts["requests"], 4)
        file = counts["files"]["a b.bin"]
        self.assertEqual(file["ranges"], [[5, 150], [2_000_001, 2_000_101]])
        self.assertEqual(file["unique_bytes"], 245)
        self.assertEqual(self.source.log()[2], ("a b.bin", 2_000_001, 100))

    def test_counts_reads_of_many_threads(self):
        fd = self.open()
        self.source.reset()
        with ThreadPoolExecutor(8) as pool:
            parts = list(pool.map(lambda i: os.pread(fd, 1000, i * 1000), range(1000)))
        self.assertEqual(b"".join(parts), self.data[:1_000_000])
        file = self.source.counts()["files"]["a b.bin"]
        self.assertEqual((file["bytes"], file["requests"]), (1_000_000, 1000))
        self.assertEqual(file["ranges"], [[0, 1_000_000]])

    def test_poisoned_reads_fail_and_are_counted(self):
        fd = self.open()
        self.source.poison("a b.bin", 500, 600)
        self.assertEqual(len(os.pread(fd, 500, 0)), 500)
        self.assertEqual(len(os.pread(fd, 100, 600)), 100)
        self.assert_errno(errno.EIO, os.pread, fd, 100, 599)
        counts = self.source.counts()
        self.assertEqual(counts["poisoned_reads"], 1)
        self.assertEqual(counts["poisoned"], [["a b.bin", 599, 699]])
        self.source.clear()
        self.assertEqual(len(os.pread(fd, 100, 599)), 100)

    def test_fails_with_any_errno_in_all_files(self):
        self.source.fail("*", errno.ESTALE, 3)
        self.assertEqual(os.pread(self.open("sub/x"), 3, 0), b"hel")
        self.assert_errno(errno.ESTALE, os.pread, self.open("sub/x"), 5, 0)
        self.assertEqual(self.source.counts()["poisoned_reads"], 0)
        self.assertEqual(self.source.counts()["failed_reads"], 1)

    def test_is_late_where_it_is_told_to(self):
        fd = self.open()
        self.source.late("a b.bin", 200, 500, 600)
        self.assertGreaterEqual(self.seconds(lambda: os.pread(fd, 100, 599)), 0.2)
        self.assertLess(self.seconds(lambda: os.pread(fd, 100, 600)), 0.2)
        self.assertEqual(self.source.counts()["failed_reads"], 0)

    def test_gives_short_reads(self):
        self.source.short(10)
        self.assertEqual(os.pread(self.open(), 100, 7), self.data[7:17])

    def seconds(self, function):
        begin = time.monotonic()
        function()
        return time.monotonic() - begin

    def test_waits_as_a_slow_source_does(self):
        fd = self.open()
        self.source.slow(delay=20, in_flight=2)
        with ThreadPoolExecutor(8) as pool:
            read = lambda: list(pool.map(lambda i: os.pread(fd, 1000, i * 1000), range(8)))
            self.assertGreaterEqual(self.seconds(read), 0.08)
        self.source.slow(bandwidth=1_000_000)
        self.assertGreaterEqual(self.seconds(lambda: os.pread(fd, 100_000, 0)), 0.1)
        self.source.slow(total_bandwidth=1_000_000)
        self.assertGreaterEqual(self.seconds(lambda: os.pread(fd, 100_000, 0)), 0.1)
        self.source.clear()

    def test_jumps_are_slow(self):
        fd = self.open()
        self.source.jump(100)
        in_order = self.seconds(lambda: [os.pread(fd, 1000, i * 1000) for i in range(5)])
        jumping = self.seconds(lambda: [os.pread(fd, 1000, i) for i in (50_000, 9_000, 70_000)])
        self.assertGreaterEqual(jumping, 0.3)
        self.assertLess(in_order, 0.3)

    def test_the_page_cache_asks_once(self):
        with CountingSource(self.directory, Path(self.work.name) / "cached", cached=True) as source:
            fd = os.open(source.path / "a b.bin", os.O_RDONLY)
            for _ in range(3):
                self.assertEqual(os.pread(fd, SIZE, 0), self.data)
            os.close(fd)
            file = source.counts()["files"]["a b.bin"]
            self.assertEqual((file["bytes"], file["ranges"]), (SIZE, [[0, SIZE]]))

    def test_shows_changes_of_the_directory_at_once(self):
        fd = self.open()
        self.assertEqual(len(os.pread(fd, 100, 200)), 100)
        os.truncate(self.file, 250)
        self.assertEqual(os.fstat(fd).st_size, 250)
        self.assertEqual(len(os.pread(fd, 100, 200)), 50)
        self.file.unlink()
        self.assert_errno(errno.ENOENT, os.stat, self.source.path / "a b.bin")

    def test_refuses_writes_and_commands_without_meaning(self):
        self.assert_errno(errno.EROFS, open, self.source.path / "sub/x", "w")
        self.assert_errno(errno.EROFS, open, self.source.path / "new", "w")
        for line in ("bogus", "poison", "poison f 3", "poison f 5 4", "short 0", "fail f 0 1 0", "delay 60001", "jump x",
                     "cloud-disk 3"):
            self.assert_errno(errno.EINVAL, self.source.command, line)

    def test_unmounts_at_its_end(self):
        self.source.close()
        self.assertFalse(os.path.ismount(self.source.path))


if __name__ == "__main__":
    unittest.main()
