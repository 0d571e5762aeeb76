"""SEMANTICS: read in all its ways, mmap, O_DIRECT, -o direct, large offsets, many threads."""

import contextlib
import ctypes
import mmap
import os
import pathlib
import random
import subprocess
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import mounted_fs
from mounted_fs import libc, read_direct, widen

SHARDS = mounted_fs.Checkpoint.SHARDS
WIDE = "fp32-safetensors/" + SHARDS[0]


class Reading(mounted_fs.TestCase):
    def setUp(self):
        super().setUp()
        self.target = self.mount(self.options)
        self.path = self.target / WIDE
        self.bytes = self.path.read_bytes()
        self.file = os.open(self.path, os.O_RDONLY)
        self.addCleanup(os.close, self.file)

    options = ""

    def test_bytes_are_the_widened_source(self):
        for shard in SHARDS:
            tensors = mounted_fs.read_tensors((self.target / "fp32-safetensors" / shard).read_bytes())
            for name, data in tensors.items():
                self.assertEqual(data, widen(self.checkpoint.tensors[name]), name)
        for name in (*SHARDS, "config.json", "assets/notes/read.txt"):
            source = (self.checkpoint.path / name).read_bytes()
            self.assertEqual((self.target / "source" / name).read_bytes(), source, name)

    def test_read_stops_at_the_end(self):
        size = len(self.bytes)
        self.assertEqual(os.pread(self.file, 100, size - 10), self.bytes[-10:])
        self.assertEqual(os.pread(self.file, 100, size), b"")
        self.assertEqual(os.pread(self.file, 100, size + 12345), b"")
        self.assertEqual(os.pread(self.file, 1, 2**62), b"")

    def test_zero_length(self):
        for offset in (0, 5, len(self.bytes), len(self.bytes) + 5):
            self.assertEqual(os.pread(self.file, 0, offset), b"")

    def test_negative_offset(self):
        self.fails("EINVAL", os.pread, self.file, 1, -1)

    def test_any_range(self):
        numbers = random.Random(3)
        for _ in range(300):
            offset = numbers.randrange(len(self.bytes))
            length = min(numbers.choice((1, 7, 4095, 4096, 131073)), len(self.bytes) - offset)
            self.assertEqual(os.pread(self.file, length, offset), self.bytes[offset:][:length])

    def test_one_byte_at_a_time(self):
        with open(self.path, "rb", buffering=0) as file:
            self.assertEqual(b"".join(file.read(1) for _ in range(2000)), self.bytes[:2000])

    def test_seek_finds_data_everywhere(self):
        size = len(self.bytes)
        self.assertEqual(os.lseek(self.file, 0, os.SEEK_DATA), 0)
        self.assertEqual(os.lseek(self.file, 1000, os.SEEK_DATA), 1000)
        self.assertEqual(os.lseek(self.file, 1000, os.SEEK_HOLE), size)
        self.assertEqual(os.lseek(self.file, 0, os.SEEK_END), size)
        self.fails("ENXIO", os.lseek, self.file, size, os.SEEK_DATA)

    def test_o_direct(self):
        numbers = random.Random(4)
        for size in (512, 4096, 1 << 20, 4 << 20):
            offset = numbers.randrange(len(self.bytes) // 512) * 512
            self.assertEqual(read_direct(self.path, offset, size), self.bytes[offset:][:size])

    def test_o_direct_needs_no_alignment(self):
        for offset, size in ((1, 1), (3, 511), (4097, 12345), (len(self.bytes) - 7, 100)):
            self.assertEqual(read_direct(self.path, offset, size), self.bytes[offset:][:size])

    def test_private_mapping(self):
        with mmap.mmap(self.file, 0, mmap.MAP_PRIVATE, mmap.PROT_READ) as mapping:
            self.assertEqual(mapping[:], self.bytes)
        with mmap.mmap(self.file, 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE) as mapping:
            mapping[0:4] = b"mine"
            self.assertEqual(mapping[4:100], self.bytes[4:100])
        self.assertEqual(os.pread(self.file, 4, 0), self.bytes[:4])

    def test_shared_mapping(self):
        with mmap.mmap(self.file, 0, mmap.MAP_SHARED, mmap.PROT_READ) as mapping:
            self.assertEqual(mapping[:], self.bytes)
        self.fails("EACCES", mmap.mmap, self.file, 0, mmap.MAP_SHARED, mmap.PROT_WRITE)

    def test_sendfile(self):
        copy = os.open(self.directory / "copy", os.O_RDWR | os.O_CREAT)
        self.addCleanup(os.close, copy)
        sent = 0
        while got := os.sendfile(copy, self.file, sent, 1 << 20):
            sent += got
        self.assertEqual(os.pread(copy, sent + 1, 0), self.bytes)

    def test_copy_file_range_is_refused_so_that_tools_copy_by_read(self):
        copy = os.open(self.directory / "copy", os.O_RDWR | os.O_CREAT)
        self.addCleanup(os.close, copy)
        self.assertIn(
            mounted_fs.error_of(os.copy_file_range, self.file, copy, 100), ("EXDEV", "EOPNOTSUPP")
        )
        mounted_fs.run("cp", self.path, self.directory / "other")
        self.assertEqual((self.directory / "other").read_bytes(), self.bytes)

    def test_fsync_and_advice_are_harmless(self):
        os.fsync(self.file)
        os.posix_fadvise(self.file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.posix_fadvise(self.file, 0, 0, os.POSIX_FADV_WILLNEED)
        self.assertEqual(os.pread(self.file, 100, 0), self.bytes[:100])

    def test_locks_are_the_kernels_own(self):
        import fcntl

        other = os.open(self.path, os.O_RDONLY)
        self.addCleanup(os.close, other)
        fcntl.flock(self.file, fcntl.LOCK_EX)
        self.fails("EAGAIN", fcntl.flock, other, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def test_many_threads_on_one_file(self):
        wrong = []

        def read(seed):
            numbers = random.Random(seed)
            for _ in range(100):
                offset = numbers.randrange(len(self.bytes))
                if os.pread(self.file, 70000, offset) != self.bytes[offset:][:70000]:
                    wrong.append(offset)
                if seed % 4 == 0:
                    os.posix_fadvise(self.file, 0, 0, os.POSIX_FADV_DONTNEED)

        threads = [threading.Thread(target=read, args=(seed,)) for seed in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])

    def test_bytes_come_back_after_the_caches_were_dropped(self):
        os.posix_fadvise(self.file, 0, 0, os.POSIX_FADV_DONTNEED)
        with contextlib.suppress(OSError):  # an ordinary user, a container
            pathlib.Path("/proc/sys/vm/drop_caches").write_text("3")
        self.assertEqual(self.path.read_bytes(), self.bytes)
        self.assertEqual(os.pread(self.file, 10, 0), self.bytes[:10])

    def test_another_program_reads_the_same(self):
        done = subprocess.run(["cat", self.path], stdout=subprocess.PIPE, check=True)
        self.assertEqual(done.stdout, self.bytes)

    def test_a_directory_is_not_read(self):
        descriptor = os.open(self.target / "source", os.O_RDONLY)
        self.addCleanup(os.close, descriptor)
        self.fails("EISDIR", os.read, descriptor, 10)


class CachedReading(Reading):
    def test_a_second_read_does_not_ask_the_daemon(self):
        for _ in range(5):  # the kernel may take pages away at any time
            before = self.target.status()["bytes_to_readers"]
            self.assertEqual(self.path.read_bytes(), self.bytes)
            if self.target.status()["bytes_to_readers"] == before:
                return
        self.fail("each read asks again")

    def test_who_raises_the_read_ahead_gets_the_same_bytes(self):
        device = os.stat(self.path).st_dev
        name = f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb"
        setting = pathlib.Path(name)
        with contextlib.suppress(OSError):  # an ordinary user, a container
            setting.write_text("1024")
        raised = int(setting.read_text()) == 1024
        numbers = random.Random(5)
        before = self.target.status()
        for _ in range(10):
            os.posix_fadvise(self.file, 0, 0, os.POSIX_FADV_DONTNEED)
            offset = numbers.randrange(len(self.bytes) // 2)
            descriptor = os.open(self.path, os.O_RDONLY)
            try:
                os.lseek(descriptor, offset, os.SEEK_SET)
                got = b"".join(iter(lambda: os.read(descriptor, 1 << 20), b""))
            finally:
                os.close(descriptor)
            self.assertTrue(got == self.bytes[offset:], offset)
        after = self.target.status()
        asked = after["requests"] - before["requests"]
        answered = mounted_fs.answered(after) - mounted_fs.answered(before)
        self.assertEqual(answered / asked > 256 << 10, raised)


class DirectReading(Reading):
    """-o direct: every read goes to the daemon, and a shared mapping is not possible."""

    options = "direct"

    def test_shared_mapping(self):
        self.fails("ENODEV", mmap.mmap, self.file, 0, mmap.MAP_SHARED, mmap.PROT_READ)

    def test_a_second_read_asks_the_daemon(self):
        before = self.target.status()["bytes_to_readers"]
        self.assertEqual(self.path.read_bytes(), self.bytes)
        self.assertGreaterEqual(self.target.status()["bytes_to_readers"], before + len(self.bytes))


class LargeFile(mounted_fs.TestCase):
    NUMEL = 1_200_000_000  # 2.4 GB stored, 4.8 GB as F32
    MARKS = {
        0: b"\x01\x40",
        2**29 - 1: b"\x02\x40",  # ends at 2 GiB of the F32 data
        2**29: b"\x03\x40",
        2**30 - 1: b"\x04\x40",  # ends at 4 GiB of the F32 data, 2 GiB of the stored
        2**30: b"\x05\x40",
        NUMEL - 1: b"\x06\x40",
    }

    def test_offsets_beyond_two_and_four_gibibytes(self):
        mounted_fs.sparse_checkpoint(self.directory / "big", self.NUMEL, self.MARKS)
        mount = self.mount(source=self.directory / "big")
        for view, width in (("fp32-safetensors", 4), ("source", 2)):
            path = mount / view / "model.safetensors"
            with open(path, "rb") as file:
                header = 8 + int.from_bytes(file.read(8), "little")
                for element, data in self.MARKS.items():
                    around = os.pread(file.fileno(), 3 * width, header + width * (element - 1))
                    if element == 0:
                        around = b"\0" * width + os.pread(file.fileno(), 2 * width, header)
                    expected = bytearray(3 * width)
                    for neighbour in (-1, 0, 1):
                        at = (neighbour + 2) * width - 2
                        expected[at : at + 2] = self.MARKS.get(element + neighbour, b"\0\0")
                    if element == self.NUMEL - 1:
                        expected = expected[: 2 * width]
                    self.assertEqual(around, bytes(expected), (view, element))
            size = header + width * self.NUMEL
            self.assertEqual(os.stat(path).st_size, size)
            with (
                open(path, "rb") as file,
                mmap.mmap(file.fileno(), size, mmap.MAP_SHARED, mmap.PROT_READ) as mapping,
            ):
                self.assertEqual(mapping[size - 2 : size], b"\x06\x40")


class Bounds(mounted_fs.TestCase):
    def test_a_bad_buffer_is_the_readers_fault(self):
        mount = self.mount()
        descriptor = os.open(mount / WIDE, os.O_RDONLY)
        self.addCleanup(os.close, descriptor)
        libc.pread.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64]
        self.assertEqual(libc.pread(descriptor, 8, 4096, 0), -1)
        self.assertEqual(ctypes.get_errno(), 14)  # EFAULT
        self.assertEqual(len(os.pread(descriptor, 4096, 0)), 4096)


del Reading  # the base of two classes, not a test by itself


if __name__ == "__main__":
    mounted_fs.main()
