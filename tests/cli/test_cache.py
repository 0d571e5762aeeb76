"""`ckfs cache ls | clear`: of a cache directory that the test makes by hand."""

import json
import os
import struct
import unittest

import cli_support
import json_schema
from cli_support import ROOT

SCHEMA = json.loads((ROOT / "docs/schema/cache.json").read_text())


def crc32c(data):
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    return value ^ 0xFFFFFFFF


def fnv1a(data):
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


class Cache(cli_support.TestCase):
    def setUp(self):
        super().setUp()
        self.cache = self.directory / "ckfs"
        self.words = ("--cache-dir", self.cache)

    def keep(self, name, size, time=1_700_000_000):
        """A block of `size` bytes of the source `name`."""
        for made in (self.cache, self.cache / "v1", self.place(name)):
            made.mkdir(mode=0o700, exist_ok=True)
        text = name.encode()
        (self.place(name) / "record").write_bytes(
            b"CKFSSRC1" + struct.pack("<II", crc32c(text), len(text)) + text)
        block = self.place(name) / "0123456789abcdef-0"
        block.write_bytes(b"x" * size)
        os.utime(block, (time, time))

    def place(self, name):
        return self.cache / "v1" / f"{fnv1a(name.encode()):016x}"

    def listed(self, *words):
        value = json.loads(self.done("cache", "ls", "--json", *words, *self.words))
        self.assertEqual(json_schema.problems(value, SCHEMA), [])
        self.assertEqual(value["directory"], str(self.cache))
        return {each["source"]: (each["bytes"], each["used"]) for each in value["sources"]}

    def test_a_cache_that_was_never_used_is_empty(self):
        self.assertEqual(self.done("cache", "ls", *self.words), b"")
        self.assertEqual(self.listed(), {})
        self.assertEqual(self.done("cache", "clear", *self.words), b"removed 0 B\n")
        self.fails(1, "hf://o/r: the cache has nothing of it", "cache", "clear", "hf://o/r", *self.words)
        self.assertFalse(self.cache.exists())

    def test_ls_shows_what_each_source_has(self):
        self.keep("hf://o/first", 4096, 1_700_000_001)
        self.keep("s3://b/p at http://h:1/", 3 << 20, 1_700_000_002)
        self.assertEqual(self.listed(), {"hf://o/first": (4096, 1_700_000_001),
                                         "s3://b/p at http://h:1/": (3 << 20, 1_700_000_002)})
        self.assertEqual(list(self.listed("hf://o/first")), ["hf://o/first"])
        lines = self.done("cache", "ls", *self.words).decode().splitlines()
        self.assertRegex(lines[0], r"^ *4\.\d+ KB  hf://o/first$")
        self.assertEqual(len(lines), 2)

    def test_clear_removes_one_source_or_all(self):
        names = ["hf://o/first", "hf://o/first/sub", "s3://b/p", "s3://b/p at http://h:1/", "s3://b/p2"]
        for name in names:
            self.keep(name, 4096)
        self.assertRegex(self.done("cache", "clear", "hf://o/first", *self.words), rb"^removed 4\.\d+ KB\n$")
        self.assertEqual(list(self.listed()), names[1:])
        self.assertFalse(self.place(names[0]).exists())
        # The name that ls prints is that source alone; a location is it at every address.
        self.keep("s3://b/q at http://h:1/", 4096)
        self.done("cache", "clear", "s3://b/q", *self.words)
        self.assertEqual(list(self.listed()), names[1:])
        self.done("cache", "clear", "s3://b/p at http://h:1/", *self.words)
        self.assertEqual(list(self.listed()), ["hf://o/first/sub", "s3://b/p", "s3://b/p2"])
        self.done("cache", "clear", *self.words)
        self.assertEqual(self.listed(), {})

    def test_files_of_others_stay(self):
        self.keep("hf://o/r", 4096)
        stranger = self.place("hf://o/r") / "notes.txt"
        stranger.write_text("mine")
        self.done("cache", "clear", *self.words)
        self.assertEqual(stranger.read_text(), "mine")

    def test_what_is_wrong_is_said(self):
        self.keep("hf://o/r", 4096)
        for code, pattern, words in [
            (2, "WHAT", []),
            (2, r'WHAT: "frob" is not one of ls, clear, warm', ["frob"]),
            (2, "warm: SOURCE is missing", ["warm"]),
            (2, "VIEW is for warm", ["clear", "hf://o/r", "source"]),
            (1, "not a location", ["warm", "DeepSeek-V3"]),
            (1, "a location with secrets", ["warm", "https://h/a?token=hunter2"]),
            (2, "--json is for ls", ["clear", "--json"]),
            (1, r"all revisions of a model are kept together \(name it hf://o/r\)", ["clear", "hf://o/r@main"]),
            (1, "a location with secrets", ["clear", "https://h/a?token=hunter2"]),
            (1, "not a location", ["clear", "ftp://h/a"]),
            (1, "nothing of it", ["clear", "hf://o/other"]),
        ]:
            ended = self.fails(code, pattern, "cache", *words, *self.words)
            self.assertNotIn(b"hunter2", ended.stderr)
        self.assertEqual(list(self.listed()), ["hf://o/r"])

    def test_a_directory_where_others_have_rights_is_refused(self):
        self.keep("hf://o/r", 4096)
        self.cache.chmod(0o755)
        self.fails(1, r"other users have rights .* chmod 700", "cache", "ls", *self.words)
        self.fails(1, r"other users have rights .* chmod 700", "cache", "clear", *self.words)
        self.assertTrue((self.place("hf://o/r") / "0123456789abcdef-0").exists())

    def test_the_default_directory(self):
        self.keep("hf://o/r", 4096)
        clean = {name: value for name, value in os.environ.items() if name not in ("CKFS_CACHE_DIR", "HOME")}
        home = self.directory / "home"
        (home / ".cache").mkdir(parents=True)
        for environment in [{"XDG_CACHE_HOME": str(self.directory)}, {"CKFS_CACHE_DIR": str(self.cache)}]:
            self.assertIn(b"hf://o/r", self.done("cache", "ls", env={**clean, **environment}))
        clean.pop("XDG_CACHE_HOME", None)
        self.assertEqual(self.done("cache", "ls", env={**clean, "HOME": str(home)}), b"")
        self.cache.rename(home / ".cache/ckfs")
        self.assertIn(b"hf://o/r", self.done("cache", "ls", env={**clean, "HOME": str(home)}))
        self.fails(1, "neither XDG_CACHE_HOME nor HOME", "cache", "ls", env=clean)


if __name__ == "__main__":
    unittest.main()
