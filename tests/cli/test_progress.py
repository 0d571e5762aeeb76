"""--progress of `ckfs export`, `digest` and `verify`: on a terminal, in a log, for a program."""

import fcntl
import json
import os
import pathlib
import pty
import shutil
import signal
import sys
import termios
import unittest

import cli_support
import json_schema
from cli_support import LIMIT, ROOT, run, start
from test_export import make_large

VIEW = "fp32-safetensors"
F_SETPIPE_SZ = 1031
SCHEMA = json.loads((ROOT / "docs/schema/progress.json").read_text())


class Progress(cli_support.TestCase):
    def setUp(self):
        super().setUp()
        self.copy = self.directory / "copy"
        self.done("export", self.source, VIEW, self.copy)
        self.size = sum(path.stat().st_size for path in self.copy.rglob("*")
                        if path.is_file() and ".ckfs-export.d" not in path.parts)

    def verbs(self):
        """Each verb that takes long, with its arguments."""
        yield "export", [self.source, VIEW, self.directory / "out"]
        yield "digest", [self.source, VIEW]
        yield "verify", [self.source, VIEW, self.copy]

    def lines(self, verb, words, *options):
        """The lines on standard error of a run that succeeds, with no pause between two lines."""
        ended = run(verb, *words, "--progress-interval", "0", *options)
        self.assertEqual(ended.returncode, 0, ended.stderr)
        return ended.stderr.decode().splitlines()

    def test_json_is_an_object_a_line(self):
        for verb, words in self.verbs():
            with self.subTest(verb):
                told = [json.loads(line)
                        for line in self.lines(verb, words, "--progress", "json")]
                for line in told:
                    self.assertEqual(json_schema.problems(line, SCHEMA), [])
                    self.assertEqual((line["verb"], line["total"]), (verb, self.size))
                done = [line["done"] for line in told]
                self.assertEqual(done, sorted(done))
                self.assertEqual(done[-1], self.size)
                self.assertIsNone(told[-1]["seconds_left"])

    def test_plain_lines(self):
        for verb, words in self.verbs():
            for mode in ("plain", "auto"):
                with self.subTest(verb=verb, mode=mode):
                    for line in (lines := self.lines(verb, words, "--progress", mode)):
                        self.assertRegex(
                            line, rf"^ckfs: {verb}: +\d+%  [\d.]+ \w+ of [\d.]+ MB  [\d.]+ \w+/s"
                                  r"(  \d+:\d\d:\d\d left)?$")
                    self.assertRegex(lines[-1], "100%")
                    shutil.rmtree(self.directory / "out", ignore_errors=True)

    def test_short_work_ends_with_one_line_if_asked(self):
        for verb, words in self.verbs():
            ended = run(verb, *words, "--progress", "plain")
            self.assertRegex(ended.stderr, cli_support.ONE_LINE)
            self.assertIn(b"100%", ended.stderr)

    def test_none_is_silent_on_a_terminal_too(self):
        for verb, words in self.verbs():
            ours, theirs = pty.openpty()
            try:
                program = start(verb, *words, "--progress", "none", stderr=theirs)
                os.close(theirs)
                with self.assertRaises(OSError):  # the other end is closed
                    self.assertEqual(os.read(ours, 65536), b"")
                program.communicate(timeout=LIMIT)
                self.assertEqual(program.returncode, 0)
            finally:
                os.close(ours)

    def test_an_unknown_form(self):
        for verb, words in self.verbs():
            self.fails(2, "not one of auto, plain, json, none", verb, *words, "--progress", "often")


class Interrupted(cli_support.TestCase):
    """SIGINT in the middle of work: the program is held by a full pipe of progress lines."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.large = cls.source.parent / "large"
        cls.large.mkdir()
        make_large(cls.large)
        cls.copy = cls.source.parent / "copy"
        shutil.copytree(cls.large, cls.copy)

    def interrupt(self, code, *words):
        """The last line on standard error of a run that gets SIGINT when some of it is done."""
        ours, theirs = os.pipe()
        capacity = fcntl.fcntl(theirs, F_SETPIPE_SZ, 4096)
        program = start(*words, "--jobs", "1", "--progress", "json", "--progress-interval", "0",
                        stderr=theirs)
        os.close(theirs)
        try:
            waiting = bytearray(4)
            while int.from_bytes(waiting, sys.byteorder) < capacity - 300:  # until it is full
                self.assertIsNone(program.poll())
                fcntl.ioctl(ours, termios.FIONREAD, waiting)
            program.send_signal(signal.SIGINT)
            pending = "ShdPnd:\t%016x" % (1 << signal.SIGINT - 1)
            while pending in pathlib.Path(f"/proc/{program.pid}/status").read_text():
                pass  # until it has the signal
            with os.fdopen(ours, "rb") as pipe:
                lines = pipe.read().decode().splitlines()
            program.communicate(timeout=LIMIT)
        finally:
            program.kill()
            program.wait()
        self.assertEqual(program.returncode, code)
        # The last object says how far it came.
        told = json.loads(lines[-2])
        self.assertLess(told["done"], told["total"])
        return lines[-1]

    def test_says_how_much_is_done(self):
        amount = r"interrupted after [\d.]+ MB of [\d.]+ MB"
        out = self.directory / "out"
        sums = self.directory / "sums"
        state = self.directory / "state"
        self.assertRegex(self.interrupt(1, "export", self.large, VIEW, out),
                         rf"^ckfs: {out}: {amount} \(the same command continues from there\)$")
        self.assertRegex(self.interrupt(1, "digest", self.large, VIEW),
                         rf"^ckfs: {VIEW}: {amount} \(with --output FILE the next run continues")
        self.assertRegex(self.interrupt(1, "digest", self.large, VIEW, "-o", sums),
                         rf"^ckfs: {sums}: {amount} \(the same command continues from there\)$")
        self.assertFalse(sums.exists())
        self.assertRegex(self.interrupt(2, "verify", self.large, "source", self.copy),
                         rf"^ckfs: {self.copy}: {amount}; no difference so far \(--resume FILE")
        self.assertRegex(
            self.interrupt(2, "verify", self.large, "source", self.copy, "--resume", state),
            rf"^ckfs: {self.copy}: {amount}; no difference so far \(the same command continues")
        # And so they do.
        self.done("digest", self.large, VIEW, "-o", sums)
        self.done("verify", self.large, VIEW, sums)
        self.done("verify", self.large, "source", self.copy, "--resume", state)


if __name__ == "__main__":
    unittest.main(verbosity=2)
