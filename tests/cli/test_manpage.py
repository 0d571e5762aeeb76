"""The manual and --help tell of the same verbs and options, both ways."""

import getpass
import re
import unittest

import cli_support
from cli_support import ROOT, VERBS

PAGE = (ROOT / "docs/man/ckfs.1.md").read_text()
OPTION = re.compile(r"(?<![\w-])(--[a-z][a-z-]*|-[a-zA-Z])(?![\w-])")


def section(title):
    """The text under a heading of any level, up to the next of that level or a higher one."""
    match = re.search(rf"^(#+) {re.escape(title)}$", PAGE, re.M)
    assert match, f"{title}: no such heading"
    rest = PAGE[match.end() :]
    following = re.search(rf"^#{{1,{len(match[1])}}} ", rest, re.M)
    return rest[: following.start()] if following else rest


def options_of_page(text):
    """The options that a section of the page defines: those of lines before a ':'."""
    found = set()
    for line in re.findall(r"^(\*\*-.*)\n:   ", text, re.M):
        found |= set(re.findall(r"\*\*(--?[a-zA-Z][a-z-]*)\*\*", line))
    return found


class ManPage(cli_support.TestCase):
    def options_of_help(self, *words):
        """The options of a help text: first column only."""
        found = set()
        for line in self.done(*words, "--help-all").decode().split("\n\nckfs ")[0].splitlines():
            match = re.match(r"  (-\S+)", line)
            if match:
                found |= set(OPTION.findall(match[1]))
        return found

    def test_verbs(self):
        heads = re.findall(r"^## ckfs (\w+)$", PAGE, re.M)
        text = self.done("--help").decode().split("Verbs:")[1].split("\n\n")[0]
        self.assertEqual(re.findall(r"(?m)^  (\w+) ", text), heads)
        self.assertEqual(heads, VERBS)
        synopsis = re.findall(r"^\*\*ckfs (\w+)\*\*", section("SYNOPSIS"), re.M)
        self.assertEqual(synopsis, VERBS)

    def test_options_of_each_verb(self):
        common = options_of_page(section("COMMON OPTIONS")) - {"-V", "--version", "-h", "--help", "--help-all"}
        self.assertIn("--memory", common)
        few = {"--tag", "--key", "--item", "--step", "--config", "--recipe", "--family", "--log-level", "--log-file",
               "--endpoint-url", "--anonymous", "--requester-pays", "--header-file", "--connections",
               "--timeout", "--offline", "--cache-dir", "--cache-size"}
        takes = {
            "mount": common,
            "run": common,
            "cat": common,
            "export": common,
            "serve": common,
            "digest": common,
            "verify": common,
            "doctor": common,
            "inspect": common,
            "cache": common,
            "ls": few,
        }
        for verb in VERBS:
            with self.subTest(verb):
                page = options_of_page(section(f"ckfs {verb}")) | {"-h", "--help", "--help-all"}
                self.assertEqual(self.options_of_help(verb), page | takes.get(verb, set()))

    def test_options_without_a_verb(self):
        self.assertEqual(self.options_of_help(), {"-h", "--help", "--help-all", "-V", "--version"})

    def test_exit_status(self):
        for verb, code in (("verify", 1), ("verify", 2), ("doctor", 1)):
            text = re.search(rf"^\*\*{code}\*\*\n:   (.*?)\n\n", section("EXIT STATUS"), re.M | re.S)[1]
            self.assertIn(f"**{verb}**", text)
            self.assertIn(f" {code} where", section(f"ckfs {verb}").replace("\n", " "))

    def test_mount_options(self):
        help_text = self.done("mount", "--help-all").decode()
        words = help_text.split("Mount options (-o):\n")[1].split("\n\n")[0]
        from_help = set(re.findall(r"(?m)^  ([a-z_]+)", words))
        heads = re.findall(r"^(\*\*[a-z].*)\n:   ", section("MOUNT OPTIONS"), re.M)
        from_page = set(re.findall(r"\*\*([a-z_]+)=?\*", " ".join(heads)))
        self.assertEqual(from_page, from_help)
        target = self.directory / "mnt"
        target.mkdir()
        recipe = self.directory / "recipe.json"
        recipe.write_text('{"view": "own", "rules": [{"drop": "a"}]}')
        for word in sorted(from_page):
            # A known word is not refused as unknown: what is refused is the source.
            value = {"memory": "=64MiB", "io": "=auto", "threads": "=2", "log_level": "=warn",
                     "log_file": f"={self.directory}/log", "mtime": "=5", "tag": "=t", "key": "=k",
                     "stop": "=now", "umask": "=027", "config": f"={self.directory}",
                     "item": "=i", "step": "=3", "setuid": f"={getpass.getuser()}",
                     "spill": f"={self.directory}", "spill_size": "=1GiB",
                     "recipe": f"={recipe}", "family": "=gemma2", "connections": "=8", "timeout": "=60",
                     "endpoint_url": "=http://127.0.0.1:9", "header_file": f"={recipe}",
                     "cache_dir": f"={self.directory}/cache", "cache_size": "=1GiB"}.get(word, "")
            self.fails(1, "absent", "mount", "absent/source", target, "-o", word + value)


if __name__ == "__main__":
    unittest.main(verbosity=2)
