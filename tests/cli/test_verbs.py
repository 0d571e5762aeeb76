"""Every verb: what it prints, and how it ends."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import unittest

import cli_support
from cli_support import DATA, LIMIT, VERBS, start

SHARD = "model-00001-of-00002.safetensors"


class Usage(cli_support.TestCase):
    def test_help_names_every_verb(self):
        text = self.done("--help").decode()
        for verb in VERBS:
            self.assertRegex(text, rf"(?m)^  {verb} ")
        self.assertNotIn("tile", text)

    def test_every_verb_has_help(self):
        for verb in VERBS:
            text = self.done(verb, "--help").decode()
            self.assertIn("--help", text)
            self.assertNotIn("tile", text)
            self.assertEqual(self.done(verb, "-h").decode(), text)

    def test_version(self):
        self.assertRegex(self.done("--version"), rb"\Ackfs \d+\.\d+\.\d+\n\Z")

    def test_wrong_command_lines_are_2(self):
        source = self.source
        for pattern, words in [
            (r"mout: neither a verb nor a path \(did you mean mount\? there are: mount, umount, run, list, ",
             ["mout", "a", "b"]),
            (r"xyzzy: neither a verb nor a path \(there are: mount, ", ["xyzzy"]),
            (r"ls: --jsno: no such option \(did you mean --json\?\) \(see ckfs ls --help\)",
             ["ls", source, "--jsno"]),
            (r"cat: --lenght: no such option \(did you mean --length\?\)",
             ["cat", source, "source/config.json", "--lenght=8"]),
            (r"-o allow_othr: no such option \(did you mean allow_other\? there are: allow_other, ",
             ["mount", source, source, "-o", "allow_othr"]),
            ("--no-such", ["--no-such"]),
            ("SRC", ["mount"]),
            ("MNT", ["mount", source]),
            ("MNT", [source]),
            ("--no-such", ["ls", source, "--no-such"]),
            ("surplus", ["ls", source, "source", "surplus"]),
            ("FILE", ["cat", source]),
            ("VIEW", ["export", source]),
            ("OUT", ["export", source, "source"]),
            (r"umount: MNT is required \(or --all\)", ["umount"]),
            ("MNT", ["umount", "--all", source]),
            (r"help: mout: no such verb \(did you mean mount\?", ["help", "mout"]),
            ("MNT", ["stats"]),
            ("SHELL", ["completion"]),
            ("not one of bash, zsh, fish", ["completion", "tcsh"]),
        ]:
            with self.subTest(words):
                self.fails(2, pattern, *words)

    def test_a_misspelt_view_or_parameter_is_answered_with_those_there_are(self):
        there_are = r"there are: bf16-safetensors, fp16-safetensors, .*, source\)$"
        for words in (["ls", self.source], ["cat", self.source], ["export", self.source],
                      ["digest", self.source], ["verify", self.source],
                      ["inspect", self.source, "--view"]):
            rest = {"export": [self.directory / "out"], "verify": [self.source]}.get(words[0], [])
            below = "/model.safetensors" if words[0] == "cat" else ""
            code = 2 if words[0] == "verify" else 1
            with self.subTest(words[0]):
                self.fails(code, rf"bf16: no such view \(did you mean bf16-safetensors\? {there_are}",
                           *words, "bf16" + below, *rest)
                self.fails(code, rf"gguf: no such view \({there_are}", *words, "gguf" + below, *rest)
                self.fails(code, r'has no parameter "max_shards" \(did you mean max_shard\?',
                           *words, "bf16-safetensors@max_shards=5GB" + below, *rest)

    def test_a_size_of_shards_without_a_unit_is_refused(self):
        for view, text in (("bf16-safetensors@max_shard=2", "max_shard 2 is 2 bytes"),
                           ("safetensors@max_shard=0.01KB", "max_shard 10 is 10 bytes")):
            self.fails(1, text + r" \(at least 1MB; write the unit, such as 5GB\)",
                       "ls", self.source, view)
        self.done("ls", self.source, "bf16-safetensors@max_shard=1000000")

    def test_a_recipe_may_come_through_a_pipe(self):
        pipe = self.directory / "recipe"
        os.mkfifo(pipe)
        reader = start("ls", self.source, "--recipe", pipe)
        with open(pipe, "w") as text:  # waits for the reader
            with self.assertRaises(subprocess.TimeoutExpired):
                reader.wait(0.3)
            text.write('{"view": "one", "from": "bf16-safetensors", "rules": [{"select": "{x:**}"}]}')
        out, err = reader.communicate(timeout=LIMIT)
        self.assertEqual((reader.returncode, err), (0, b""))
        self.assertIn(b"one", out)

    def test_wrong_values_are_2(self):
        target = "source/config.json"
        for pattern, words in [
            ("memory: 1MiB is too little .at least 64MiB", ["--memory", "1MiB"]),
            ('memory: "lots" is not a size', ["--memory", "lots"]),
            ('memory: "-1" is not a size', ["--memory=-1"]),
            ('io: "mmap" is not one of auto, uring, pread', ["--io", "mmap"]),
            ('threads: "two" is not a whole number', ["--threads", "two"]),
            ("threads: 100000 are too many .at most 1024", ["--threads", "100000"]),
            ('log_level: "loud" is not one of', ["--log-level", "loud"]),
            ('--offset: "x" is not a whole number', ["--offset", "x"]),
            ('--length: "1.5" is not a whole number', ["--length", "1.5"]),
            ("--offset", ["--offset"]),
            ("is not a whole number", ["--offset", "18446744073709551616"]),
            ("tile_bytes: 1 is too little", ["--tile-bytes", "1"]),
        ]:
            with self.subTest(words):
                self.fails(2, pattern, "cat", self.source, target, *words)
        self.fails(2, "--jobs: 5000 are too many", "export", self.source, "source",
                   self.directory / "out", "--jobs", "5000")

    def test_wrong_mount_options_are_2(self):
        for pattern, words in [
            ("-o allow_othr: no such option", "allow_othr"),
            ("-o mtime: needs a value", "mtime"),
            ("-o mtime: 0 is out of range", "mtime=0"),
            ('-o mtime: "soon" is not a whole number', "mtime=soon"),
            ("-o direct: takes no value", "direct=1"),
            ("-o: memory: 5 is too little", "ro,memory=5"),
            ("-o nosuid=1: no such option", "nosuid=1"),
        ]:
            with self.subTest(words):
                self.fails(2, pattern, "mount", self.source, self.directory, "-o", words)

    def test_names_cannot_forge_lines(self):
        ended = self.fails(1, "no", "ls", self.directory / "a\nckfs: b\x1b[31m")
        self.assertNotIn(b"\x1b", ended.stderr)


    def test_names_in_a_checkpoint_cannot_either(self):
        source = self.directory / "model"
        shutil.copytree(self.source, source)
        (source / "a\nckfs: b\x1b[31m.json").write_text("{}")
        os.mkfifo(source / "c\nckfs: d\x1b[31m")  # passed over, with a note
        for words in (("ls", source, "source"), ("ls", "-l", source, "source"), ("inspect", source)):
            told = self.done(*words)
            self.assertNotIn(b"\x1b", told)
            self.assertNotRegex(told, rb"(?m)^ckfs: ")


    def test_digests_on_a_terminal_quote_them_as_a_shell_does(self):
        source = self.directory / "model"
        shutil.copytree(self.source, source)
        name = "a'\\\n\x1b[31m\u202eb.json"
        (source / name).write_text("{}")
        ours, theirs = os.openpty()
        with os.fdopen(ours, "rb", buffering=0) as terminal:
            with os.fdopen(theirs, "wb") as out:
                cli_support.run("digest", source, "source", stdout=out)
            told = b""
            # Linux says so when the last writer is gone and all is read.
            with contextlib.suppress(OSError):
                while piece := terminal.read(4096):
                    told += piece
        self.assertNotRegex(told, rb"[^ -~\r\n]")
        (quoted,) = re.findall(rb"(?m)^[0-9a-f]{64}  (\$'.*')\r$", told)
        done = subprocess.run(["bash", "-c", b"printf %s " + quoted], stdout=subprocess.PIPE, check=True)
        self.assertEqual(done.stdout.decode(), name)
        self.assertIn(b"  config.json\r\n", told)
        self.assertIn(b"\x1b", self.done("digest", source, "source"))  # for sha256sum -c


class Sources(cli_support.TestCase):
    def test_what_is_no_checkpoint_is_1_and_named(self):
        empty = self.directory / "empty"
        empty.mkdir()
        broken = self.directory / "broken"
        shutil.copytree(self.source, broken)
        os.truncate(broken / SHARD, 5)
        for source, pattern in [
            (self.directory / "absent", "absent"),
            (empty, "empty"),
            (broken, SHARD),
        ]:
            with self.subTest(source):
                self.fails(1, pattern, "inspect", source)
                self.fails(1, pattern, "ls", source)
                self.fails(1, pattern, "cat", source, "source/config.json")
                self.fails(1, pattern, "export", source, "source", self.directory / "out")
                self.fails(1, pattern, "mount", source, empty)
        self.assertFalse((self.directory / "out").exists())

    def test_an_unknown_view_or_parameter_is_1(self):
        for name in ["no-such-view", "bf16-safetensors@no=1", "bf16-safetensors@max_shard=x"]:
            with self.subTest(name):
                self.fails(1, name.split("@")[-1].split("=")[0], "ls", self.source, name)
                self.fails(1, ".", "cat", self.source, f"{name}/config.json")
                self.fails(1, ".", "export", self.source, name, self.directory / "out")


class Inspect(cli_support.TestCase):
    def test_says_what_it_is(self):
        text = self.done("inspect", self.source).decode()
        self.assertIn("8 tensors", text)
        self.assertIn("bf16-safetensors", text)
        told = json.loads(self.done("inspect", self.source, "--json"))
        self.assertEqual(told["tensors"], len(self.checkpoint.tensors))
        self.assertEqual(told["tensor_bytes"], sum(map(len, self.checkpoint.tensors.values())))
        self.assertEqual(told["mtime"], 1_700_000_000)

    def test_sizes_beyond_any_memory_are_exact(self):
        source = self.directory / "sparse"
        numel = 1 << 40
        cli_support.mounted_fs.sparse_checkpoint(source, numel, {})
        self.assertEqual(json.loads(self.done("inspect", source, "--json"))["tensor_bytes"],
                         2 * numel)
        entries = json.loads(self.done("ls", source, "fp32-safetensors", "--json"))["entries"]
        (size,) = [entry["size"] for entry in entries if entry["path"] == "model.safetensors"]
        header = self.done("cat", source, "fp32-safetensors/model.safetensors", "--length", 8)
        self.assertEqual(size, 8 + int.from_bytes(header, "little") + 4 * numel)


class Ls(cli_support.TestCase):
    def test_lists_views_files_and_directories(self):
        views = self.done("ls", self.source).decode().split()
        self.assertIn("bf16-safetensors/", views)
        self.assertIn("source/", views)
        names = self.done("ls", self.source, "source").decode().split()
        self.assertEqual(names, sorted(names))
        self.assertIn("assets/", names)
        self.assertIn("config.json", names)
        for where in ("source/assets/notes", "source/assets/notes/"):
            self.assertEqual(self.done("ls", self.source, where), b"read.txt\n")
        self.assertIn(b"config.json", self.done("ls", self.source, "source/config.json"))
        self.fails(1, "no such file", "ls", self.source, "source/absent")

    def test_long_and_json_tell_sizes(self):
        size = (self.source / SHARD).stat().st_size
        self.assertRegex(self.done("ls", "-l", self.source, "source").decode(),
                         rf"(?m)^ +{size} bit-exact {SHARD}$")
        entries = json.loads(self.done("ls", self.source, "source", "--json"))["entries"]
        found = {entry["path"]: entry for entry in entries}
        self.assertEqual(found[SHARD]["size"], size)
        self.assertEqual(found["assets"]["type"], "directory")

    def test_other_spellings_are_the_same_files(self):
        spellings = ["bf16-safetensors@max_shard=1000000", "bf16-safetensors@max_shard=1MB",
                     "bf16-safetensors@max_shard=1000KB"]
        texts = {self.done("ls", "--json", self.source, spelling) for spelling in spellings}
        self.assertEqual(len(texts), 1)

    def test_an_early_end_of_the_reader_is_no_error(self):
        program = start("ls", self.source)
        program.stdout.close()
        self.assertEqual(program.wait(LIMIT), 0)
        self.assertEqual(program.stderr.read(), b"")
        program.stderr.close()


class Cat(cli_support.TestCase):
    def test_gives_the_bytes_of_the_file(self):
        data = (self.source / SHARD).read_bytes()
        self.assertEqual(self.done("cat", self.source, f"source/{SHARD}"), data)
        for offset, length in [(0, 0), (0, 1), (7, 9), (1 << 20, 12345), (len(data) - 3, 100),
                               (len(data), 1), (len(data) + 5, 1), ((1 << 64) - 1, 7)]:
            with self.subTest((offset, length)):
                got = self.done("cat", self.source, f"source/{SHARD}", "--offset", offset,
                                "--length", length)
                self.assertEqual(got, data[offset : offset + length])
        self.assertEqual(self.done("cat", self.source, f"source/{SHARD}", "--offset", 100),
                         data[100:])

    def test_engines_give_the_same_bytes(self):
        source = DATA / "deepseek-v3-fp8/source"
        (name,) = [word for word in self.done("ls", source, "bf16-safetensors").decode().split()
                   if word.endswith("00002-of-00003.safetensors")]
        seen = {
            self.done("cat", source, f"bf16-safetensors/{name}", *words)
            for words in ([], ["--io", "pread"], ["--io=auto", "--threads", "1"],
                          ["--memory", "64MiB"], ["--tile-bytes", "4096"])
        }
        self.assertEqual(len(seen), 1)

    def test_wants_a_file(self):
        self.fails(2, "not of the form VIEW/PATH", "cat", self.source, "source")
        self.fails(1, "absent", "cat", self.source, "source/absent")
        self.fails(1, "assets", "cat", self.source, "source/assets")

    def test_an_early_end_of_the_reader_is_no_error(self):
        program = start("cat", self.source, f"fp32-safetensors/{SHARD}")
        self.assertEqual(len(program.stdout.read(10)), 10)
        program.stdout.close()
        self.assertEqual(program.wait(LIMIT), 0)
        self.assertEqual(program.stderr.read(), b"")
        program.stderr.close()

    def test_a_full_disk_is_an_error(self):
        with open("/dev/full", "wb") as full:
            self.fails(1, "stdout", "cat", self.source, "source/config.json", stdout=full)

    def test_a_log_file_takes_the_log(self):
        log = self.directory / "log"
        self.done("cat", self.source, "source/config.json", "--log-file", log, "--log-level",
                  "debug")
        self.assertTrue(log.exists())
        self.fails(1, "cannot write the log", "cat", self.source, "source/config.json",
                   "--log-file", self.directory / "absent/log")


class Stats(cli_support.TestCase):
    def test_of_no_mount_is_1(self):
        self.fails(1, "not a ckfs mount", "stats", self.directory)
        self.fails(1, "not a ckfs mount", "stats", self.directory / "absent")

    def test_umount_of_no_mount_is_1(self):
        self.fails(1, str(self.directory), "umount", self.directory)


if __name__ == "__main__":
    unittest.main(verbosity=2)
