"""Real mounts for tests: checkpoints whose bytes are known, mounts that always end, and the run of
a test file as root and as an ordinary user.

A test file ends with `mounted_fs.main()`. Environment: CKFS_BIN, the program under test.
"""

import contextlib
import ctypes
import json
import os
import pathlib
import random
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
CKFS = os.environ.get("CKFS_BIN", str(ROOT / "build/release/ckfs"))
NOBODY = 65534
LIMIT = 60  # seconds that anything may take before a test fails

libc = ctypes.CDLL(None, use_errno=True)

# The logs of daemons, where this host has no system log.
state = tempfile.TemporaryDirectory(prefix="ckfs-state-")
os.environ["XDG_STATE_HOME"] = state.name


# Checkpoints.


def safetensors_header(tensors):
    """The 8 bytes and the header of a file that holds {name: (dtype, shape, nbytes)} in order."""
    entries, offset = {}, 0
    for name, (dtype, shape, nbytes) in tensors.items():
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + nbytes]}
        offset += nbytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def widen(bf16):
    """The F32 bytes of BF16 bytes: the same bits with sixteen zeros below them."""
    wide = bytearray(2 * len(bf16))
    wide[2::4] = bf16[0::2]
    wide[3::4] = bf16[1::2]
    return bytes(wide)


def read_tensors(data):
    """{name: bytes} of a safetensors file."""
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    base = 8 + length
    return {
        name: data[base + entry["data_offsets"][0] : base + entry["data_offsets"][1]]
        for name, entry in header.items()
    }


class Checkpoint:
    """A BF16 model of two shards, an index, a config, and side files, one of them in a folder."""

    SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")

    def __init__(self, path, megabytes=6):
        self.path = pathlib.Path(path)
        self.path.mkdir()
        self.tensors = {}  # name: BF16 bytes
        numbers = random.Random(20)
        index = {}
        for shard, rows in zip(self.SHARDS, (3, 5)):
            held = {}
            for row in range(rows):
                name = f"model.layers.{row}.{shard[6:11]}.weight"
                data = numbers.randbytes(2 * (megabytes * 65536 + 13 * row))
                held[name] = data
                index[name] = shard
            shapes = {name: ("BF16", [len(data) // 2], len(data)) for name, data in held.items()}
            self.write(shard, safetensors_header(shapes) + b"".join(held.values()))
            self.tensors.update(held)
        self.write(
            "model.safetensors.index.json",
            json.dumps({"metadata": {"total_size": 0}, "weight_map": index}, indent=2).encode(),
        )
        self.write("config.json", b'{\n  "model_type": "llama",\n  "torch_dtype": "bfloat16"\n}\n')
        self.write("tokenizer.json", b'{"version": "1.0"}\n')
        self.write("assets/notes/read.txt", b"notes\n")

    def write(self, name, data):
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        os.utime(path, ns=(0, 1_700_000_000_123_456_789))

    def shard(self, number):
        return self.path / self.SHARDS[number]


def sparse_checkpoint(path, numel, marks):
    """One BF16 tensor of `numel` elements in a sparse file: zero but for {element: two bytes}."""
    path.mkdir()
    header = safetensors_header({"big": ("BF16", [numel], 2 * numel)})
    with open(path / "model.safetensors", "wb") as file:
        file.write(header)
        file.truncate(len(header) + 2 * numel)
        for element, data in marks.items():
            file.seek(len(header) + 2 * element)
            file.write(data)
    (path / "config.json").write_text('{"torch_dtype": "bfloat16"}\n')


# Programs.


def run(*command, check=True, **options):
    """Runs a program to its end; its output is text."""
    options.setdefault("stdout", subprocess.PIPE)
    options.setdefault("stderr", subprocess.PIPE)
    done = subprocess.run(
        [str(word) for word in command], text=True, timeout=LIMIT, check=False, **options
    )
    if check and done.returncode != 0:
        raise AssertionError(f"{command}: exit {done.returncode}: {done.stderr}")
    return done


def ckfs(*words, **options):
    return run(CKFS, *words, **options)


def unescape(text):
    return text.encode().decode("unicode_escape")


def mounts():
    """[(target, type, source, options)] of all mounts, the latest last."""
    found = []
    for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split(" ")
        dash = fields.index("-")
        found.append(
            (unescape(fields[4]), fields[dash + 1], unescape(fields[dash + 2]),
             fields[5] + "," + fields[dash + 3])
        )  # fmt: skip
    return found


def is_mounted(path):
    return any(str(path) == target for target, *_ in mounts())


def wait_until_unmounted(path):
    """Waits until nothing is mounted at `path`; the kernel reports each change of its mounts."""
    deadline = time.monotonic() + LIMIT
    with open("/proc/self/mountinfo") as changes:
        poll = select.poll()
        poll.register(changes, select.POLLERR | select.POLLPRI)
        while is_mounted(path):
            left = deadline - time.monotonic()
            if left <= 0:
                raise AssertionError(f"{path}: still mounted after {LIMIT} s")
            poll.poll(min(left, 1) * 1000)


def processes(*words):
    """Numbers of the ckfs processes whose command line has all of `words`."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            line = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if pathlib.Path(line[0]).name == pathlib.Path(CKFS).name:
                if all(str(word) in line for word in words):
                    found.append(int(entry.name))
    return found


def wait_for_end(pid):
    """Waits until process `pid` is gone; true if it went."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], LIMIT)[0])
    finally:
        os.close(descriptor)


class Mount:
    """A mount for the length of a `with`; it is gone afterwards, whatever happened to it."""

    def __init__(self, source, target, options="", words=()):
        self.source = pathlib.Path(source)
        self.target = pathlib.Path(target)
        self.words = ["mount", self.source, self.target]
        self.words += ["-o", options] if options else []
        self.words += words
        self.pid = None

    def __enter__(self):
        self.target.mkdir(exist_ok=True)
        ckfs(*self.words)
        (self.pid,) = processes(self.target)
        return self

    def __exit__(self, *_):
        if is_mounted(self.target):
            self.clear()
        if not wait_for_end(self.pid):
            os.kill(self.pid, signal.SIGKILL)
            self.clear()
            raise AssertionError(f"{self.target}: the daemon did not end with its mount")

    def clear(self):
        tool = ["umount", "-l"] if os.geteuid() == 0 else ["fusermount3", "-u", "-z"]
        run(*tool, self.target, check=False)

    def __truediv__(self, name):
        return self.target / name

    def unmount(self):
        ckfs("umount", self.target)

    def status(self):
        return json.loads((self / ".ckfs/status.json").read_text())


def answered(status):
    """Bytes of the daemon's answers to reads: pages that it puts into the page cache are none."""
    return status["bytes_to_readers"] - status["bytes_delivered"]


def error_of(function, *arguments):
    """The errno's name that the call fails with, or None."""
    import errno

    try:
        function(*arguments)
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error.errno))
    return None


def read_direct(path, offset, size):
    """`size` bytes through O_DIRECT: past the page cache, straight from the daemon."""
    import mmap

    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        with mmap.mmap(-1, max(size, mmap.PAGESIZE)) as buffer:
            got = os.preadv(descriptor, [memoryview(buffer)[:size]], offset)
            return buffer[:got]
    finally:
        os.close(descriptor)


# Tests.


class TestCase(unittest.TestCase):
    """Has a temporary directory of its own, and one checkpoint for all of the class."""

    @classmethod
    def setUpClass(cls):
        cls.shared = pathlib.Path(tempfile.mkdtemp(prefix="ckfs-mounted-"))
        cls.addClassCleanup(shutil.rmtree, cls.shared)
        cls.checkpoint = Checkpoint(cls.shared / "model")

    def setUp(self):
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="ckfs-mounted-"))
        self.addCleanup(self._remove)

    def _remove(self):
        left = [target for target, *_ in mounts() if target.startswith(str(self.directory))]
        for target in left:
            run("umount", "-l", target, check=False)
        shutil.rmtree(self.directory)
        self.assertEqual(left, [], "mounts left behind")

    def mount(self, options="", source=None, name="mnt", words=()):
        """A mount until the test ends."""
        mount = Mount(source or self.checkpoint.path, self.directory / name, options, words)
        return self.enterContext(mount)

    if sys.version_info < (3, 11):

        def enterContext(self, context):  # noqa: N802 (unittest's own name in 3.11)
            value = context.__enter__()
            self.addCleanup(context.__exit__, None, None, None)
            return value

    def fails(self, name, function, *arguments):
        """The call fails with that errno."""
        self.assertEqual(error_of(function, *arguments), name)


def run_as_user(script):
    """Runs the test file `script` as nobody; that user cannot see this checkout, so from a copy."""
    with tempfile.TemporaryDirectory(prefix="ckfs-mounted-") as stage:
        stage = pathlib.Path(stage)
        stage.chmod(0o755)
        here = pathlib.Path(script).resolve()
        tools = [ROOT / "tests/tools" / name
                 for name in ("make_dcp.py", "make_orbax_scale.py", "torch_writer.py")]  # fmt: skip
        helpers = [ROOT / "mount-helpers" / name for name in ("mount.ckfs", "prometheus/collect")]
        for path in (here, pathlib.Path(__file__).resolve(), *helpers, *tools):
            copy = stage / path.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)
            copy.chmod(0o755)
        data = ROOT / "tests/data/orbax/plain_v2"
        shutil.copytree(data, stage / data.relative_to(ROOT))
        program = stage / "ckfs"
        shutil.copy(CKFS, program)
        program.chmod(0o755)
        environment = {**os.environ, "CKFS_BIN": str(program), "HOME": "/nonexistent"}
        environment.pop("TMPDIR", None)
        command = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--"]
        command += [sys.executable, str(stage / here.relative_to(ROOT)), *sys.argv[1:]]
        if os.stat("/dev/fuse").st_mode & 0o006 != 0o006:
            command = with_open_device(stage, command)
        return subprocess.run(command, env=environment, cwd="/", check=False).returncode


def with_open_device(stage, command):
    """The command, run where everybody may open /dev/fuse, as is usual: where udev has not seen to
    it (containers, small machines), in a mount namespace with such a device."""
    script = """
        mount -t tmpfs none "$1" && mknod -m 666 "$1/fuse" c 10 229 &&
        mount --bind "$1/fuse" /dev/fuse && shift && exec "$@"
    """
    device = stage / "dev"
    device.mkdir()
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh", device,
            *command]  # fmt: skip


def main():
    """Runs the tests of the calling file; where that is root, again as an ordinary user."""
    user = "root" if os.geteuid() == 0 else "an ordinary user"
    print(f"# as {user}", file=sys.stderr, flush=True)
    result = unittest.main(exit=False, verbosity=2).result
    status = 0 if result.wasSuccessful() else 1
    if os.geteuid() == 0:
        status |= run_as_user(sys.argv[0])
    sys.exit(status)
