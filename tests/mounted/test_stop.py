"""Readers who are gone, and a decode that would take minutes: a chunk of 128 GiB of zeros in 4 MB."""

import json
import os
import pathlib
import shutil
import signal
import struct
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../support"))
import mounted_fs  # noqa: E402
from mounted_fs import ROOT  # noqa: E402

SHAPE = [1 << 15, 1 << 20]  # of F32
SIZE = 4 << 35
SOON = 2  # seconds
READ = "import os, sys; os.pread(os.open(sys.argv[1], int(sys.argv[3])), 1, int(sys.argv[2]))"


def zeros(size):
    """A zstd frame of that many zeros: blocks of 128 KiB, each a byte that is repeated."""
    block = 128 << 10
    blocks = size // block
    middle, last = (struct.pack("<I", block << 3 | 1 << 1 | end)[:3] + b"\0" for end in (0, 1))
    return b"\x28\xb5\x2f\xfd\xc0\x38" + struct.pack("<Q", size) + middle * (blocks - 1) + last


def cpu_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Stop(mounted_fs.TestCase):
    def setUp(self):
        super().setUp()
        self.source = self.directory / "item"
        shutil.copytree(ROOT / "tests/data/orbax/plain_v2/source", self.source)
        self.write_array(SHAPE, SHAPE)
        (self.source / "big/0.0").write_bytes(zeros(SIZE))

    def write_array(self, shape, chunks):
        description = self.source / "big/.zarray"
        array = json.loads(description.read_text())
        array.update(shape=shape, chunks=chunks)
        description.write_text(json.dumps(array))

    def open_view(self, options=""):
        """The mount, the file that holds the tensor, and where the tensor's last byte is."""
        mount = self.mount(options, source=self.source)
        for file in (mount / "safetensors").glob("*.safetensors"):
            with open(file, "rb") as data:
                (length,) = struct.unpack("<Q", data.read(8))
                header = json.loads(data.read(length))
            for name, entry in header.items():
                begin, end = entry.get("data_offsets", (0, 0))
                if end - begin == SIZE:
                    return mount, file, 8 + length + end - 1
        raise AssertionError("the tensor is in no file")

    def start_reader(self, mount, file, offset, flags=os.O_RDONLY):
        """A process that reads one byte, once the daemon is at work for it."""
        reader = subprocess.Popen([sys.executable, "-c", READ, file, str(offset), str(flags)],
                                  stderr=subprocess.DEVNULL)
        self.addCleanup(reader.wait)
        self.addCleanup(reader.kill)
        before = cpu_seconds(mount.pid)
        self.wait_for(lambda: cpu_seconds(mount.pid) > before + 0.3)
        self.assertIsNone(reader.poll())
        return reader

    def wait_for(self, is_so, seconds=mounted_fs.LIMIT):
        end = time.monotonic() + seconds
        while not is_so():
            self.assertLess(time.monotonic(), end)
            time.sleep(0.01)

    def wait_until_idle(self, pid, seconds):
        """Until the process has used no CPU for 0.2 s."""
        used, since = cpu_seconds(pid), time.monotonic()

        def is_so():
            nonlocal used, since
            if cpu_seconds(pid) != used:
                used, since = cpu_seconds(pid), time.monotonic()
            return time.monotonic() - since > 0.2

        self.wait_for(is_so, seconds)

    def test_the_decode_of_a_killed_reader_stops(self):
        mount, file, last = self.open_view()
        for flags in (os.O_RDONLY, os.O_RDONLY | os.O_DIRECT):
            for number in (signal.SIGKILL, signal.SIGTERM):
                with self.subTest(flags=flags, number=number):
                    reader = self.start_reader(mount, file, last, flags)
                    reader.send_signal(number)
                    self.wait_until_idle(mount.pid, SOON)
                    reader.wait()
        mount.unmount()  # nobody holds it

    def test_a_signal_that_a_reader_handles_does_not_cost_him_his_bytes(self):
        mount, file, last = self.open_view()
        program = ("import signal, os, sys; signal.signal(signal.SIGUSR1, lambda *_: None);" + READ)
        reader = subprocess.Popen([sys.executable, "-c", program, file, str(last), "0"])
        self.addCleanup(reader.wait)
        self.addCleanup(reader.kill)
        before = cpu_seconds(mount.pid)
        self.wait_for(lambda: cpu_seconds(mount.pid) > before + 0.3)
        reader.send_signal(signal.SIGUSR1)
        self.assertRaises(subprocess.TimeoutExpired, reader.wait, SOON)
        after = cpu_seconds(mount.pid)
        self.wait_for(lambda: cpu_seconds(mount.pid) > after + 0.5)  # it still decodes

    def test_other_bytes_of_the_file_do_not_wait(self):
        mount, file, last = self.open_view()
        reader = self.start_reader(mount, file, last)
        self.wait_for(lambda: cpu_seconds(mount.pid) > 1)  # its first blocks are gone
        begin = time.monotonic()
        with open(file, "rb") as data:
            data.seek(last + 1 - SIZE)
            self.assertEqual(data.read(100), bytes(100))
        self.assertLess(time.monotonic() - begin, SOON)
        self.assertIsNone(reader.poll())

    def test_a_signal_ends_the_daemon_though_it_decodes(self):
        mount, file, last = self.open_view("stop=now")
        reader = self.start_reader(mount, file, last)
        begin = time.monotonic()
        os.kill(mount.pid, signal.SIGTERM)
        self.assertTrue(mounted_fs.wait_for_end(mount.pid))
        self.assertLess(time.monotonic() - begin, SOON)
        self.assertNotEqual(reader.wait(mounted_fs.LIMIT), 0)

    def test_a_signal_ends_the_daemon_whose_reader_is_killed(self):
        mount, file, last = self.open_view()
        reader = self.start_reader(mount, file, last)
        reader.kill()
        begin = time.monotonic()
        os.kill(mount.pid, signal.SIGTERM)
        self.assertTrue(mounted_fs.wait_for_end(mount.pid))
        self.assertLess(time.monotonic() - begin, SOON)

    def test_a_signal_ends_what_reads_all_of_a_view(self):
        out = self.directory / "out"
        # Of the chunk 128 bytes are the array's: the first of each half.
        self.write_array([2, 16], [2, SIZE // 8])
        for words, code in ((["export", self.source, "safetensors", out], 1),
                            (["digest", self.source, "safetensors"], 1)):
            with self.subTest(words[0]):
                process = subprocess.Popen([mounted_fs.CKFS, *map(str, words)],
                                           stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                self.wait_for(lambda: cpu_seconds(process.pid) > 0.5)
                begin = time.monotonic()
                process.send_signal(signal.SIGINT)
                process.communicate(timeout=mounted_fs.LIMIT)
                self.assertLess(time.monotonic() - begin, SOON)
                self.assertEqual(process.returncode, code)


if __name__ == "__main__":
    mounted_fs.main()
