"""What the tests of the command line share. Standard library only; CKFS_BIN names the program."""

import ctypes
import errno
import os
import pathlib
import platform
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/support"))
import mounted_fs  # noqa: E402
from mounted_fs import CKFS, LIMIT, Checkpoint  # noqa: E402, F401

DATA = ROOT / "tests/data/hf"
VERBS = ["mount", "umount", "run", "list", "inspect", "ls", "cat", "export", "serve", "digest",
         "verify", "doctor", "stats", "cache", "completion", "help", "version"]
ONE_LINE = re.compile(rb"\Ackfs: [^\n]+\n\Z")


def start(*words, **options):
    """The program, running."""
    options.setdefault("stdin", subprocess.DEVNULL)
    options.setdefault("stdout", subprocess.PIPE)
    options.setdefault("stderr", subprocess.PIPE)
    return subprocess.Popen([CKFS, *map(str, words)], **options)


def run(*words, **options):
    """The program, run to its end: an object with returncode, stdout and stderr (bytes)."""
    process = start(*words, **options)
    try:
        out, err = process.communicate(timeout=LIMIT)
    finally:
        process.kill()
        process.wait()
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


LANDLOCK = (444, 445, 446)
SECCOMP, PRCTL = (277, 167) if platform.machine() == "aarch64" else (317, 157)


def without(*calls):
    """For preexec_fn: a system whose kernel does not have these system calls, nor, where SECCOMP is one
    of them, the older way to a filter. Root's."""
    load, equal, give = 0x20, 0x15, 0x06  # BPF_LD|BPF_W|BPF_ABS, BPF_JMP|BPF_JEQ|BPF_K, BPF_RET
    code = [(load, 0, 0, 0)]  # of struct seccomp_data: nr
    for number in calls:
        code += [(equal, 0, 1, number), (give, 0, 0, 0x00050000 | errno.ENOSYS)]
    if SECCOMP in calls:
        code += [(equal, 0, 3, PRCTL), (load, 0, 0, 16),  # args[0], which is PR_SET_SECCOMP
                 (equal, 0, 1, 22), (give, 0, 0, 0x00050000 | errno.EINVAL)]
    code += [(give, 0, 0, 0x7FFF0000)]
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in code))
    filters = ctypes.create_string_buffer(
        struct.pack("HxxxxxxP", len(code), ctypes.addressof(program)))
    libc = ctypes.CDLL(None, use_errno=True)

    def install():
        _ = program  # which `filters` points to
        if libc.prctl(22, 2, filters, 0, 0) != 0:  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
            raise OSError(ctypes.get_errno(), "prctl")

    return install


class TestCase(unittest.TestCase):
    """Has a directory of its own, and one checkpoint (BF16, two shards) for all of the class."""

    @classmethod
    def setUpClass(cls):
        shared = pathlib.Path(tempfile.mkdtemp(prefix="ckfs-cli-"))
        cls.addClassCleanup(shutil.rmtree, shared)
        cls.checkpoint = Checkpoint(shared / "model", megabytes=1)
        cls.source = cls.checkpoint.path

    def setUp(self):
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="ckfs-cli-"))
        self.addCleanup(self._remove)

    def _remove(self):
        left = [where for where, *_ in mounted_fs.mounts() if where.startswith(str(self.directory))]
        for where in left:
            subprocess.run(["umount", "-l", where], check=False)
        shutil.rmtree(self.directory)
        self.assertEqual(left, [], "mounts left behind")

    def done(self, *words, **options):
        """Standard output of a run that succeeds and says nothing on standard error."""
        ended = run(*words, **options)
        self.assertEqual((ended.returncode, ended.stderr), (0, b""), words)
        return ended.stdout

    def fails(self, code, pattern, *words, **options):
        """The run ends with `code` and one line on standard error that `pattern` is found in."""
        ended = run(*words, **options)
        self.assertEqual(ended.returncode, code, (words, ended.stderr))
        self.assertRegex(ended.stderr, ONE_LINE)
        self.assertRegex(ended.stderr.decode(errors="replace"), pattern)
        return ended
