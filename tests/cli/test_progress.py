"""--progress of `ckfs export`, `digest` and `verify`: on a terminal, in a log, for a program."""

import json
import os
import pty
import shutil
import unittest

import cli_support
import json_schema
from cli_support import LIMIT, ROOT, run, start

VIEW = "fp32-safetensors"
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
                            line, rf"^ckfs: {verb}:  ?\d+%  [\d.]+ \w+ of [\d.]+ MB  [\d.]+ \w+/s"
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
            self.fails(2, "none of auto, plain, json, none", verb, *words, "--progress", "often")


if __name__ == "__main__":
    unittest.main(verbosity=2)
