"""--help, `ckfs help`, `ckfs version`, and the variables that set defaults."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
import unittest

import cli_support
from cli_support import CKFS, VERBS, run


class Help(cli_support.TestCase):
    def test_no_line_is_longer_than_a_terminal(self):
        for words in [["--help"], ["help", "views"], *([verb, "--help-all"] for verb in VERBS)]:
            for line in self.done(*words).decode().splitlines():
                if not line.startswith("  ckfs "):  # an example is for pasting
                    self.assertLessEqual(len(line), 80, (words, line))

    def test_it_is_as_wide_as_the_terminal(self):
        lengths = {}
        for columns in (60, 110):
            ours, its = pty.openpty()
            fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
            program = subprocess.Popen([CKFS, "mount", "--help-all"], stdout=its, close_fds=True)
            os.close(its)
            text = b""
            try:
                while piece := os.read(ours, 4096):
                    text += piece
            except OSError:  # the end of a terminal
                pass
            os.close(ours)
            self.assertEqual(program.wait(cli_support.LIMIT), 0)
            lines = [line for line in text.decode().splitlines() if not line.startswith("  ckfs ")]
            lengths[columns] = max(map(len, lines))
        self.assertLessEqual(lengths[60], 60)
        self.assertTrue(80 < lengths[110] <= 110, lengths)

    def test_every_verb_has_two_examples(self):
        for verb in VERBS:
            examples = self.done(verb, "--help").decode().split("Examples:\n")[1].split("\n\n")[0]
            lines = examples.splitlines()
            self.assertGreaterEqual(len(lines), 2, verb)
            for line in lines:
                self.assertRegex(line, rf"^  (srun )?ckfs (--)?{verb}\b")

    def test_help_of_a_verb_is_its_help_option(self):
        for verb in VERBS:
            self.assertEqual(self.done("help", verb), self.done(verb, "--help"))
        self.assertEqual(self.done("help"), self.done("--help"))

    def test_shared_options_are_listed_when_asked_for(self):
        text = self.done("export", "--help").decode()
        self.assertNotIn("--spill", text)
        self.assertIn("ckfs export --help-all", text)
        text = self.done("export", "--help-all").decode()
        self.assertIn("Source options:", text)
        self.assertIn("--spill DIR", text)
        self.assertRegex(text.replace("\n", " "), r"\[CKFS_SPILL\]")

    def test_help_on_views_names_all_and_their_parameters(self):
        text = self.done("help", "views").decode()
        for word in ("bf16-safetensors ", "maxtext-scanned ", "orbax ", "source ", "max_shard=SIZE",
                     "cast=quantized|all", "experts=source|linear|fused|packed", "@fsdp"):
            self.assertIn(word, text)
        self.assertIn("ckfs help views", self.done("ls", "--help").decode())

    def test_without_a_word_it_is_a_usage_error_with_the_help(self):
        ended = run()
        self.assertEqual((ended.returncode, ended.stdout), (2, b""))
        self.assertEqual(ended.stderr, self.done("--help"))

    def test_version_has_three_spellings(self):
        text = self.done("--version")
        self.assertEqual(self.done("-V"), text)
        self.assertEqual(self.done("version"), text)


class Variables(cli_support.TestCase):
    """CKFS_* sets the default of a shared option."""

    def with_variables(self, **variables):
        return {"env": {**os.environ, **{f"CKFS_{name}": value for name, value in variables.items()}}}

    def test_sets_the_default(self):
        self.fails(1, 'no key "nowhere"|--key', "ls", self.source, **self.with_variables(KEY="nowhere"))
        log = self.directory / "log"
        self.done("ls", self.source, **self.with_variables(LOG_FILE=str(log), LOG_LEVEL="debug"))
        self.assertTrue(log.exists())

    def test_an_option_of_the_command_wins(self):
        wrong = self.with_variables(MEMORY="1")
        self.fails(2, r"CKFS_MEMORY: .*too little", "inspect", self.source, **wrong)
        log, other = self.directory / "log", self.directory / "other"
        self.done("ls", self.source, "--log-file", other, **self.with_variables(LOG_FILE=str(log)))
        self.assertTrue(other.exists())
        self.assertFalse(log.exists())

    def test_an_option_of_o_wins_too(self):
        target = self.directory / "mnt"
        target.mkdir()
        log, other = self.directory / "log", self.directory / "other"
        self.done("mount", self.source, target, "-o", f"log_file={other}",
                  **self.with_variables(LOG_FILE=str(log)))
        self.done("umount", target)
        self.assertIn("mounted", other.read_text())
        self.assertFalse(log.exists())

    def test_an_empty_one_says_nothing_and_other_verbs_do_not_look(self):
        self.done("ls", self.source, **self.with_variables(KEY="", LOG_LEVEL=""))
        self.done("list", "-q", **self.with_variables(MEMORY="nonsense"))

    def test_every_shared_option_has_one(self):
        text = self.done("mount", "--help-all").decode()
        shared = text.split("Source options:")[1].split("Mount options")[0]
        options = re.findall(r"^  (--[a-z-]+)", shared, re.M)
        self.assertGreater(len(options), 10)
        for option in options:
            variable = "CKFS_" + option.removeprefix("--").replace("-", "_").upper()
            self.assertIn(f"[{variable}]", shared)


class Hub(cli_support.TestCase):
    def test_a_model_is_named_as_on_the_hub(self):
        hub = self.directory / "hub"
        repository = hub / "models--org--name"
        (repository / "snapshots").mkdir(parents=True)
        (repository / "refs").mkdir()
        (repository / "refs/main").write_text("1234")
        (repository / "blobs").mkdir()
        os.rename(self.source, repository / "snapshots/1234")
        self.addCleanup(os.rename, repository / "snapshots/1234", self.source)
        options = {"env": {**os.environ, "HF_HUB_CACHE": str(hub)}}
        self.assertIn(b"source/", self.done("ls", "org/name", **options))
        target = self.directory / "mnt"
        self.done("mount", "org/name@1234", target, **options)
        self.assertIn("source", os.listdir(target))
        self.done("umount", target)
        self.fails(1, "hf download org/other$", "inspect", "org/other", **options)
        self.fails(1, "hf download org/other$", "mount", "org/other", target, **options)


if __name__ == "__main__":
    unittest.main(verbosity=2)
