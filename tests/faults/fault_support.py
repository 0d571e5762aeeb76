"""What the fault tests share: ckfs above a counting source, mounts with a log, the place of every
tensor in its file, and programs run without some right.

Standard library only. CKFS_BIN is the program under test, CKFS_BUILD has ckfs_counting_source.
"""

import json
import os
import pathlib
import re
import shutil
import signal
import struct
import subprocess
import sys

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS / "support"))
import mounted_fs
from counting_source import CountingSource
from mounted_fs import CKFS, ckfs, is_mounted, run

GOLDEN = TESTS / "data" / "hf"
ONE_LINE = re.compile(r"\Ackfs: [^\n]+\n\Z")


class Source(CountingSource):
    """A counting source whose end waits for nothing that it delays."""

    def close(self):
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        tool = ["umount", "-l"] if os.geteuid() == 0 else ["fusermount3", "-u", "-z"]
        if is_mounted(self.path):
            subprocess.run([*tool, str(self.path)], check=False)


def header_of(data_or_path):
    """(where the tensor data begins, {name: (dtype, shape, begin, end)}) of a safetensors file;
    positions are those in the file."""
    if isinstance(data_or_path, bytes):
        data = data_or_path
    else:
        with open(data_or_path, "rb", buffering=0) as file:
            (length,) = struct.unpack("<Q", file.read(8))
            data = struct.pack("<Q", length) + file.read(length)
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    base = 8 + length
    return base, {
        name: (entry["dtype"], entry["shape"], *(base + end for end in entry["data_offsets"]))
        for name, entry in header.items()
    }


def place_of(directory, tensor):
    """(file name, begin, end) of a tensor's data in a directory of safetensors files."""
    for path in sorted(pathlib.Path(directory).glob("*.safetensors")):
        _, tensors = header_of(path)
        if tensor in tensors:
            return path.name, *tensors[tensor][2:]
    raise KeyError(tensor)


def write_safetensors(path, tensors):
    """tensors: {name: (dtype, shape, bytes)}"""
    shapes = {name: (dtype, shape, len(data)) for name, (dtype, shape, data) in tensors.items()}
    with open(path, "wb") as file:
        file.write(mounted_fs.safetensors_header(shapes))
        for _, _, data in tensors.values():
            file.write(data)


def pread_all(path, offset, size):
    """Exactly `size` bytes, asked for as one range; OSError as it comes."""
    parts = []
    descriptor = os.open(path, os.O_RDONLY)
    try:
        while size > 0:
            part = os.pread(descriptor, min(size, 1 << 20), offset)
            if not part:
                raise AssertionError(f"{path}: ends at {offset}")
            parts.append(part)
            offset += len(part)
            size -= len(part)
    finally:
        os.close(descriptor)
    return b"".join(parts)


def as_nobody(*command):
    """The command, as a user who may read what everybody may."""
    if os.geteuid() != 0:
        return list(command)
    return ["setpriv", f"--reuid={mounted_fs.NOBODY}", f"--regid={mounted_fs.NOBODY}",
            "--clear-groups", "--", *command]  # fmt: skip


class TestCase(mounted_fs.TestCase):
    """mounted_fs.TestCase with counting sources."""

    def setUp(self):
        super().setUp()
        self.directory.chmod(0o755)  # other users have a part in some tests
        self.log = self.directory / "log"

    def counting(self, directory, name="counting"):
        """A counting source over `directory` until the test ends."""
        source = Source(directory, self.directory / name)
        self.addCleanup(source.close)
        return source

    def logged_mount(self, source, options="", **more):
        words = ",".join(filter(None, [options, f"log_file={self.log}"]))
        return self.mount(words, source=source, **more)

    def log_lines(self, *words):
        """Lines of the mount's log that have all of `words` in them."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [line for line in lines if all(word in line for word in words)]

    def program_for_all(self):
        """The program where every user can run it."""
        program = self.directory / "ckfs"
        shutil.copy(CKFS, program)
        program.chmod(0o755)
        return program

    def target(self):
        target = self.directory / "mnt"
        target.mkdir(exist_ok=True)
        return target

    def assert_refused(self, done, *facts):
        """Exit 1 and one line on stderr that has every one of `facts` (regular expressions)."""
        self.assertEqual(done.returncode, 1, done)
        self.assertRegex(done.stderr, ONE_LINE)
        for fact in facts:
            self.assertRegex(done.stderr, fact)

    def assert_mount_refused(self, source, *facts, words=(), prefix=(), program=None, **options):
        """`ckfs mount` refuses `source` so, and leaves neither a mount nor a process."""
        target = self.target()
        command = [*prefix, program or CKFS, "mount", source, target, *words]
        done = run(*command, check=False, **options)
        self.assert_refused(done, *facts)
        self.assertFalse(is_mounted(target))
        self.assertEqual(mounted_fs.processes(target), [])
        self.assertEqual(os.listdir(target), [])
        return done


def views(mount):
    return [name for name in os.listdir(mount) if name != ".ckfs"]


def files_below(directory):
    """Paths below `directory`, sorted."""
    return sorted(
        os.path.relpath(os.path.join(at, name), directory)
        for at, _, names in os.walk(directory)
        for name in names
    )


def make_demo(path, hidden):
    run(sys.executable, TESTS / "tools/make_demo.py", path, "--hidden", hidden)
    return path


def make_scale(path, *words):
    run(sys.executable, TESTS / "tools/make_scale.py", words[0], path, *words[1:])
    return path


__all__ = [
    "CKFS", "GOLDEN", "ONE_LINE", "Source", "TestCase", "as_nobody", "ckfs", "files_below",
    "header_of", "is_mounted", "make_demo", "make_scale", "mounted_fs", "place_of", "pread_all",
    "run", "views", "write_safetensors",
]  # fmt: skip
