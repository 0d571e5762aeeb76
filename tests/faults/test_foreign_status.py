"""SECURITY: `ckfs stats` of what is not, or not only, a mount of ckfs."""

import json
import os
import pathlib
import resource
import signal
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import fault_support
import mounted_fs
from counting_source import CountingSource
from mounted_fs import ckfs


def little_memory():
    """A program that reads without end fails before the machine does."""
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))


class ForeignStatus(fault_support.TestCase):
    def setUp(self):
        super().setUp()
        self.forged = self.directory / "forged"
        (self.forged / ".ckfs").mkdir(parents=True)
        self.status = self.forged / ".ckfs/status.json"

    def refused(self, target, *words):
        done = ckfs("stats", target, *words, check=False, preexec_fn=little_memory)
        self.assertEqual((done.returncode, done.stdout), (1, ""), done)
        return done.stderr

    def write_terabyte(self):
        self.status.write_text("")
        os.truncate(self.status, 1 << 40)

    def honest(self):
        with mounted_fs.Mount(self.checkpoint.path, self.directory / "honest") as mount:
            return mount.status()

    def test_a_directory_is_never_a_mount(self):
        for make in (lambda: self.status.symlink_to("/dev/zero"), lambda: os.mkfifo(self.status),
                     lambda: self.status.write_text(json.dumps(self.honest()))):
            make()
            for words in ([], ["--json"], ["--watch"]):
                self.assertRegex(self.refused(self.forged, *words), "forged: not a ckfs mount")
            self.status.unlink()

    def test_another_program_that_says_it_is_one_gives_a_file_or_nothing(self):
        with CountingSource(self.forged, self.directory / "mnt", subtype="ckfs") as source:
            for make, said in (
                    (lambda: self.status.symlink_to("/dev/zero"), "not a regular file"),
                    (lambda: os.mkfifo(self.status), "not a regular file"),
                    (lambda: self.status.write_text("[" * 1_000_000), "not a status"),
                    (lambda: self.status.write_text("[" * 99 + "]" * 99), "not a status"),
                    (self.write_terabyte, "longer than")):
                make()
                for words in ([], ["--json"]):
                    self.assertRegex(self.refused(source.path, *words), said)
                self.status.unlink()

    def test_what_is_printed_of_it_is_its_numbers_and_json(self):
        status = self.honest()
        status["files"] = [{"path": "a\x1b[2Jb", "bytes": 1, "requests": 1}]
        with CountingSource(self.forged, self.directory / "mnt", subtype="ckfs") as source:
            self.status.write_text(json.dumps(status).replace("\\u001b", "\\u001B"))
            told = ckfs("stats", source.path, "--json").stdout
            self.assertEqual(json.loads(told), status)
            self.assertNotIn("\x1b", told)
            self.assertNotIn("\x1b", ckfs("stats", source.path).stdout)
            # Raw, as no JSON may have it.
            self.status.write_text(json.dumps(status).replace("\\u001b", "\x1b"))
            self.assertRegex(self.refused(source.path, "--json"), "not a status")

    def test_a_daemon_that_does_not_answer_is_not_waited_for(self):
        with mounted_fs.Mount(self.checkpoint.path, self.directory / "mnt") as mount:
            os.kill(mount.pid, signal.SIGSTOP)
            try:
                self.assertRegex(self.refused(mount.target),
                                 r"mnt: the mount's daemon does not answer \(within 5 s; .*umount")
            finally:
                os.kill(mount.pid, signal.SIGCONT)


if __name__ == "__main__":
    unittest.main(verbosity=2)
