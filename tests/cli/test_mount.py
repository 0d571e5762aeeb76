"""`ckfs mount` as a program: the daemon, the log, and what a failure leaves."""

import os
import pathlib
import signal
import unittest

import cli_support
from cli_support import CKFS, LIMIT, mounted_fs, run, start


class Mount(cli_support.TestCase):
    def setUp(self):
        super().setUp()
        self.target = self.directory / "mnt"
        self.target.mkdir()

    def test_the_daemon_leaves_the_terminal_and_keeps_its_command_line(self):
        self.assertEqual(self.done("mount", self.source, self.target), b"")
        try:
            (pid,) = mounted_fs.processes(self.target)
            process = pathlib.Path(f"/proc/{pid}")
            words = (process / "cmdline").read_bytes().decode().split("\0")[:-1]
            self.assertEqual(words, [CKFS, "mount", str(self.source), str(self.target)])
            self.assertEqual(os.readlink(process / "cwd"), "/")
            for number in (0, 1, 2):
                self.assertEqual(os.readlink(process / f"fd/{number}"), "/dev/null")
            self.assertEqual(os.getsid(pid), pid)
        finally:
            self.done("umount", self.target)
        self.assertTrue(mounted_fs.wait_for_end(pid))

    def test_relative_paths(self):
        here = self.directory
        (here / "model").symlink_to(self.source)
        self.done("mount", "model", "./mnt/", "--log-file", "log", cwd=here)
        try:
            self.assertIn("source", os.listdir(self.target))
            self.assertGreater((here / "log").stat().st_size, 0)
            self.assertIn(b"bytes to readers", self.done("stats", "mnt", cwd=here))
        finally:
            self.done("umount", "mnt", cwd=here)

    def test_without_the_verb(self):
        self.done(self.source, self.target, "-o", "rw,nosuid,nodev,user=root,memory=64MiB,io=pread",
                  "-o", "mtime=1234567890,x-systemd.automount")
        try:
            status = os.stat(self.target / "source/config.json")
            self.assertEqual(status.st_mtime_ns, 1_234_567_890 * 10**9)
            self.assertIn(b'"memory_budget": 67108864', self.done("stats", "--json", self.target))
            self.assertIn(b'"io": "pread"', self.done("stats", "--json", self.target))
        finally:
            self.done("umount", self.target)

    def test_a_bad_source_leaves_no_mount(self):
        (self.source / "..").resolve()
        empty = self.directory / "empty"
        empty.mkdir()
        for words in ([], ["-f"]):
            self.fails(1, "empty", "mount", empty, self.target, *words)
            self.assertFalse(mounted_fs.is_mounted(self.target))

    def test_a_bad_mountpoint_is_1(self):
        for words in ([], ["-f"]):
            self.fails(1, "absent", "mount", self.source, self.directory / "absent", *words)

    def test_a_killed_daemon_is_told_and_cleared(self):
        self.done("mount", self.source, self.target)
        (pid,) = mounted_fs.processes(self.target)
        os.kill(pid, signal.SIGKILL)
        self.assertTrue(mounted_fs.wait_for_end(pid))
        self.fails(1, "daemon is dead", "stats", self.target)
        self.done("umount", self.target)
        self.assertFalse(mounted_fs.is_mounted(self.target))

    def test_foreground_ends_with_0_on_a_signal(self):
        program = start("mount", "-f", self.source, self.target, "--log-level", "warn")
        try:
            while not mounted_fs.is_mounted(self.target):
                self.assertIsNone(program.poll())
            self.assertIn("source", os.listdir(self.target))
            program.send_signal(signal.SIGINT)
            out, err = program.communicate(timeout=LIMIT)
            self.assertEqual((program.returncode, out), (0, b""), err)
        finally:
            program.kill()
            program.wait()


if __name__ == "__main__":
    unittest.main(verbosity=2)
