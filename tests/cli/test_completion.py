"""`ckfs completion SHELL`: what the shells make of it."""

import os
import subprocess
import unittest

import cli_support
from cli_support import CKFS, VERBS

SHELLS = ["bash", "zsh", "fish"]

# Completes the words of the arguments after the script, the last one being completed.
BASH = r"""
set -u
source "$1"
shift
COMP_WORDS=(ckfs "$@")
COMP_CWORD=$#
ckfs() { "$CKFS_BIN" "$@"; }
_ckfs
printf '%s\n' "${COMPREPLY[@]}"
"""


class Completion(cli_support.TestCase):
    def complete(self, *words):
        script = self.directory / "ckfs.bash"
        script.write_bytes(self.done("completion", "bash"))
        ended = subprocess.run(["bash", "-c", BASH, "bash", script, *words], check=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               cwd=self.directory, env={**os.environ, "CKFS_BIN": os.path.abspath(CKFS)})
        return ended.stdout.split()

    def test_every_shell_knows_every_verb_and_option(self):
        for shell in SHELLS:
            text = self.done("completion", shell).decode()
            for word in [*VERBS, "json", "offset", "foreground", "jobs", "auto", "pread"]:
                self.assertIn(word, text, shell)
            self.assertNotIn("tile", text)

    def test_bash_can_parse_its_own(self):
        text = self.done("completion", "bash")
        subprocess.run(["bash", "-n"], input=text, check=True)

    def test_bash_completes_verbs(self):
        self.assertEqual(self.complete("mou"), ["mount"])
        self.assertEqual(set(VERBS) - set(self.complete("")), set())

    def test_bash_completes_options_of_the_verb(self):
        self.assertEqual(self.complete("cat", "--le"), ["--length"])
        self.assertEqual(self.complete("ls", "--le"), [])
        self.assertIn("--help", self.complete("umount", "-"))

    def test_bash_completes_values(self):
        self.assertEqual(self.complete("cat", "--io", ""), ["auto", "uring", "pread"])
        self.assertEqual(self.complete("completion", "z"), ["zsh"])
        self.assertEqual(self.complete("cat", "--memory", ""), ["auto"])

    def test_bash_completes_views_where_a_view_is_asked_for(self):
        self.assertEqual(self.complete("export", "x", "bf"), ["bf16-safetensors"])
        self.assertEqual(self.complete("ls", "-l", "x", "maxtext-s"), ["maxtext-scanned"])
        self.assertEqual(self.complete("digest", "--memory", "1GiB", "x", "orb"), ["orbax"])
        self.assertEqual(self.complete("inspect", "x", "--view", "fp32-c"), ["fp32-consolidated"])
        self.assertEqual(self.complete("export", "bf"), [])

    def test_bash_completes_tags_of_the_source(self):
        (self.directory / "run/global_step2").mkdir(parents=True)
        (self.directory / "run/latest").write_text("global_step2")
        self.assertEqual(self.complete("ls", "run", "--tag", ""), ["global_step2"])

    def test_bash_completes_mounts(self):
        target = self.directory / "mnt"
        target.mkdir()
        self.done("mount", self.source, target)
        try:
            for verb in ("umount", "stats"):
                self.assertIn(str(target), self.complete(verb, str(self.directory) + "/m"))
        finally:
            self.done("umount", target)

    def test_bash_completes_verbs_for_help(self):
        self.assertEqual(self.complete("help", "vi"), ["views"])
        self.assertEqual(self.complete("help", "exp"), ["export"])

    def test_bash_completes_files(self):
        (self.directory / "checkpoint").mkdir()
        self.assertEqual(self.complete("inspect", "check"), ["checkpoint"])
        self.assertEqual(self.complete("inspect", "check", "--config", "ch"), ["checkpoint"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
