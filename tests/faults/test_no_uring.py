"""io_uring forbidden, as the default seccomp profiles of containers do: everything works by pread,
which is said once; who insists on io_uring gets one clear error."""

import ctypes
import errno
import json
import os
import struct
import sys
import unittest

import fault_support
from fault_support import ckfs, mounted_fs

PR_SET_NO_NEW_PRIVS = 38
PR_SET_SECCOMP = 22
SECCOMP_MODE_FILTER = 2
SECCOMP_RET_ERRNO = 0x00050000
SECCOMP_RET_ALLOW = 0x7FFF0000
IO_URING_SETUP = 425  # on every architecture
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06  # of classic BPF

FORBIDDEN = r"io_uring: not available: Operation not permitted \(.*seccomp.*\)"


class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


def instruction(code, if_true, if_false, value):
    return struct.pack("=HBBI", code, if_true, if_false, value)


FILTER = b"".join([
    instruction(LOAD, 0, 0, 0),  # the system call's number
    instruction(JUMP_IF_EQUAL, 0, 1, IO_URING_SETUP),
    instruction(RETURN, 0, 0, SECCOMP_RET_ERRNO | errno.EPERM),
    instruction(RETURN, 0, 0, SECCOMP_RET_ALLOW),
])  # fmt: skip


def forbid_io_uring():
    """In the child, before it becomes the program."""
    libc = mounted_fs.libc
    program = Program(len(FILTER) // 8, FILTER)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 or libc.prctl(
        PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0
    ):
        raise OSError(ctypes.get_errno(), "seccomp")


class NoUring(fault_support.TestCase):
    VIEW = "fp32-safetensors"

    def setUp(self):
        super().setUp()
        self.file = f"{self.VIEW}/{mounted_fs.Checkpoint.SHARDS[0]}"

    def forbidden(self, *words, **options):
        return ckfs(*words, preexec_fn=forbid_io_uring, **options)

    def cat(self, run, *words):
        """The bytes of the file and what was said on stderr."""
        path = self.directory / "got"
        with open(path, "wb") as sink:
            done = run("cat", *words, self.checkpoint.path, self.file, stdout=sink)
        return path.read_bytes(), done.stderr

    def assert_right(self, data):
        for name, tensor in mounted_fs.read_tensors(data).items():
            self.assertEqual(tensor, mounted_fs.widen(self.checkpoint.tensors[name]), name)

    def test_the_filter_forbids_and_only_io_uring(self):
        allowed, said = self.cat(ckfs, "--io", "uring")
        self.assertEqual(said, "")
        self.assert_right(allowed)
        done = self.forbidden("cat", "--io", "uring", self.checkpoint.path, self.file, check=False)
        self.assert_refused(done, FORBIDDEN)
        self.assertEqual(done.stdout, "")

    def test_cat_falls_back_and_says_so_once(self):
        for words in ([], ["--io", "auto"]):
            data, said = self.cat(self.forbidden, *words, "--log-level", "info")
            self.assert_right(data)
            self.assertRegex(said, rf"\Ackfs: \w+: {FORBIDDEN}; using pread\n\Z")

    def test_cat_is_quiet_by_default(self):
        data, said = self.cat(self.forbidden)
        self.assert_right(data)
        self.assertEqual(said, "")

    def test_pread_says_nothing(self):
        data, said = self.cat(self.forbidden, "--io", "pread", "--log-level", "info")
        self.assert_right(data)
        self.assertEqual(said, "")

    def test_export_falls_back(self):
        out = self.directory / "out"
        self.forbidden("export", "--jobs", "4", self.checkpoint.path, self.VIEW, out)
        for shard in mounted_fs.Checkpoint.SHARDS:
            self.assert_right((out / shard).read_bytes())

    def test_a_mount_falls_back_and_says_so_once(self):
        target = self.target()
        self.forbidden("mount", self.checkpoint.path, target, "-o", f"log_file={self.log}")
        self.addCleanup(self.end, target)
        for shard in mounted_fs.Checkpoint.SHARDS:
            self.assert_right((target / self.VIEW / shard).read_bytes())
        status = json.loads((target / ".ckfs/status.json").read_text())
        self.assertEqual(status["io"], "pread")
        (line,) = self.log_lines("io_uring")
        self.assertRegex(line, rf"{FORBIDDEN}; using pread\Z")

    def end(self, target):
        (daemon,) = mounted_fs.processes(target)
        ckfs("umount", target)
        self.assertTrue(mounted_fs.wait_for_end(daemon))

    def test_a_mount_that_insists_is_refused(self):
        self.assert_mount_refused(
            self.checkpoint.path, FORBIDDEN, words=("--io", "uring"), preexec_fn=forbid_io_uring
        )
        self.assert_mount_refused(
            self.checkpoint.path, FORBIDDEN, words=("-o", "io=uring"), preexec_fn=forbid_io_uring
        )


if __name__ == "__main__":
    if os.geteuid() != 0:
        # A filter takes fusermount3 its set-user-ID bit; root of a namespace mounts without it.
        os.execvp("unshare", ["unshare", "--user", "--map-root-user", "--mount", "--",
                              sys.executable, *sys.argv])  # fmt: skip
    unittest.main(verbosity=2)
