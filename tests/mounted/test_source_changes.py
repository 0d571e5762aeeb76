"""SEMANTICS: the source is truncated, replaced, touched or deleted under the mount."""

import mmap
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import mounted_fs
from mounted_fs import LIMIT, error_of

SHARDS = mounted_fs.Checkpoint.SHARDS
GONE = ("EIO", "ESTALE")


class SourceChanges(mounted_fs.TestCase):
    options = "direct"

    def setUp(self):
        super().setUp()
        self.source = mounted_fs.Checkpoint(self.directory / "source", megabytes=8)
        self.log = self.directory / "log"
        self.target = self.mount(f"{self.options},log_file={self.log}", source=self.source.path)
        self.path = self.target / "fp32-safetensors" / SHARDS[0]
        self.file = os.open(self.path, os.O_RDONLY)
        self.addCleanup(os.close, self.file)
        self.size = os.fstat(self.file).st_size
        self.expected = self.whole()

    def whole(self):
        data = self.path.read_bytes()
        for name, tensor in mounted_fs.read_tensors(data).items():
            self.assertEqual(tensor, mounted_fs.widen(self.source.tensors[name]))
        # What the page cache holds of a cached mount is served without the daemon.
        os.posix_fadvise(self.file, 0, 0, os.POSIX_FADV_DONTNEED)
        return data

    def read_until_refused(self, within=LIMIT):
        """Reads all over the file until an error comes; every byte before it must be right."""
        end = time.monotonic() + within
        offset = 1 << 20
        while time.monotonic() < end:
            try:
                data = os.pread(self.file, 100_000, offset)
            except OSError as error:
                import errno

                return errno.errorcode[error.errno]
            self.assertEqual(data, self.expected[offset : offset + 100_000])
            os.posix_fadvise(self.file, 0, 0, os.POSIX_FADV_DONTNEED)
            offset = (offset + 1_234_567) % (self.size - 200_000)
        return None

    def the_rest_works(self):
        """The daemon lives, other shards are served, and one line in the log tells what happened."""
        other = (self.target / "fp32-safetensors" / SHARDS[1]).read_bytes()
        for name, tensor in mounted_fs.read_tensors(other).items():
            self.assertEqual(tensor, mounted_fs.widen(self.source.tensors[name]))
        for _ in range(5):
            self.assertIn(error_of(os.pread, self.file, 100_000, 1 << 20), GONE)
        lines = [line for line in self.log.read_text().splitlines() if SHARDS[0] in line]
        self.assertEqual(len(lines), 1, self.log.read_text())

    def test_truncated(self):
        os.truncate(self.source.shard(0), 2_000_000)
        self.assertIn(error_of(os.pread, self.file, 100_000, self.size // 2), GONE)
        self.the_rest_works()

    def test_truncated_to_nothing(self):
        os.truncate(self.source.shard(0), 0)
        self.assertIn(error_of(os.pread, self.file, 100_000, 1 << 20), GONE)
        self.the_rest_works()

    def test_grown(self):
        with open(self.source.shard(0), "ab") as file:
            file.write(b"more")
        self.assertEqual(error_of(os.pread, self.file, 100_000, 1 << 20), "ESTALE")
        self.the_rest_works()

    def test_overwritten_in_place(self):
        with open(self.source.shard(0), "r+b") as file:
            file.seek(2_500_000)
            file.write(b"\xff" * 4096)
        self.assertEqual(error_of(os.pread, self.file, 100_000, 4_900_000), "ESTALE")
        self.the_rest_works()

    def test_touched(self):
        os.utime(self.source.shard(0))
        self.assertEqual(error_of(os.pread, self.file, 100_000, 1 << 20), "ESTALE")
        self.the_rest_works()

    def test_replaced_by_another_file(self):
        other = self.source.path / "other"
        other.write_bytes(b"\x7f" * os.stat(self.source.shard(0)).st_size)
        os.replace(other, self.source.shard(0))
        self.assertIn(self.read_until_refused(), GONE)
        self.the_rest_works()

    def test_replaced_by_a_file_of_the_same_size_and_time(self):
        before = os.stat(self.source.shard(0))
        other = self.source.path / "other"
        other.write_bytes(b"\x7f" * before.st_size)
        os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
        os.replace(other, self.source.shard(0))
        self.assertIn(self.read_until_refused(), GONE)
        self.the_rest_works()

    def test_deleted(self):
        os.unlink(self.source.shard(0))
        self.assertIn(self.read_until_refused(), GONE)
        self.the_rest_works()

    def test_the_whole_directory_deleted(self):
        shutil.rmtree(self.source.path)
        self.assertIn(self.read_until_refused(), GONE)
        self.assertIn("fp32-safetensors", os.listdir(self.target.target))
        self.assertEqual(os.fstat(self.file).st_size, self.size)

    def test_a_changed_source_stays_stale_although_it_is_put_back(self):
        status = os.stat(self.source.shard(0))
        os.utime(self.source.shard(0))
        self.assertEqual(error_of(os.pread, self.file, 100_000, 1 << 20), "ESTALE")
        os.utime(self.source.shard(0), ns=(status.st_atime_ns, status.st_mtime_ns))
        self.assertEqual(error_of(os.pread, self.file, 100_000, 2 << 20), "ESTALE")

    def test_a_mount_of_the_changed_source_is_right_again(self):
        os.utime(self.source.shard(0))
        again = self.mount(source=self.source.path, name="again")
        self.assertEqual((again / "fp32-safetensors" / SHARDS[0]).read_bytes(), self.expected)


    def change_ctime(self):
        """By a write that hides itself: the mtime is set back."""
        before = os.stat(self.source.shard(0))
        end = time.monotonic() + LIMIT
        while os.stat(self.source.shard(0)).st_ctime_ns == before.st_ctime_ns:
            self.assertLess(time.monotonic(), end)
            os.utime(self.source.shard(0), ns=(before.st_atime_ns, before.st_mtime_ns))

    def test_attributes_changed(self):
        self.change_ctime()
        self.assertEqual(os.pread(self.file, 100_000, 1 << 20), self.expected[1 << 20 :][:100_000])
        os.chmod(self.source.shard(0), 0o600)
        self.assertEqual(os.pread(self.file, 100_000, 3 << 20), self.expected[3 << 20 :][:100_000])
        lines = [line for line in self.log.read_text().splitlines() if SHARDS[0] in line]
        self.assertEqual(len(lines), 1, lines)
        self.assertRegex(lines[0], "warning .*its attributes changed")

    def test_attributes_changed_under_strict(self):
        log = self.directory / "strict-log"
        target = self.mount(f"{self.options},strict,log_file={log}", source=self.source.path,
                            name="strict")  # fmt: skip
        with open(target / "fp32-safetensors" / SHARDS[0], "rb", buffering=0) as file:
            self.assertEqual(os.pread(file.fileno(), 4096, 1 << 20), self.expected[1 << 20 :][:4096])
            self.change_ctime()
            self.assertEqual(error_of(os.pread, file.fileno(), 100_000, 3 << 20), "ESTALE")
        self.assertIn("its attributes changed", log.read_text())


class CachedSourceChanges(SourceChanges):
    options = "mtime=1234567890"  # any option that leaves the mount cached

    def test_a_mapping_gives_its_reader_sigbus(self):
        program = """
import mmap, os, sys
file = os.open(sys.argv[1], os.O_RDONLY)
mapping = mmap.mmap(file, 0, mmap.MAP_SHARED, mmap.PROT_READ)
mapping[0]
print("mapped", flush=True)
sys.stdin.readline()
sum(mapping[i] for i in range(0, len(mapping), 4096))
"""
        os.posix_fadvise(self.file, 0, 0, os.POSIX_FADV_DONTNEED)
        reader = subprocess.Popen([sys.executable, "-c", program, str(self.path)],
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # fmt: skip
        self.assertEqual(reader.stdout.readline(), "mapped\n")
        os.truncate(self.source.shard(0), 1000)
        reader.communicate("go\n", timeout=LIMIT)
        self.assertEqual(reader.returncode, -signal.SIGBUS)
        self.the_rest_works()

    def test_pages_that_are_cached_stay_readable(self):
        with mmap.mmap(self.file, 0, mmap.MAP_SHARED, mmap.PROT_READ) as mapping:
            self.assertEqual(mapping[:], self.expected)
            os.truncate(self.source.shard(0), 0)
            self.assertEqual(mapping[4096:8192], self.expected[4096:8192])


if __name__ == "__main__":
    mounted_fs.main()
