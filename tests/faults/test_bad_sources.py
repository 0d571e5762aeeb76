"""Sources that are none, or broken: `ckfs mount` exits 1 with one line that names the file and the
fact, and leaves nothing behind. The other verbs say the same."""

import json
import os
import unittest

import fault_support
from fault_support import CKFS, as_nobody, mounted_fs, run

INDEX = "model.safetensors.index.json"
FIRST, SECOND = mounted_fs.Checkpoint.SHARDS


class BadSources(fault_support.TestCase):
    def setUp(self):
        super().setUp()
        self.source = mounted_fs.Checkpoint(self.directory / "source", megabytes=1)
        self.path = self.source.path

    def refused(self, *facts, source=None, **more):
        source = source or self.path
        line = self.assert_mount_refused(source, *facts, **more).stderr
        for verb in (["inspect", source], ["ls", source], ["ls", source, "bf16-safetensors"],
                     ["cat", source, "bf16-safetensors/config.json"],
                     ["export", source, "bf16-safetensors", self.directory / "out"]):  # fmt: skip
            command = [*more.get("prefix", ()), more.get("program") or CKFS, *verb]
            done = run(*command, check=False)
            self.assertEqual((done.returncode, done.stderr), (1, line), verb)
            self.assertEqual(done.stdout, "")
        self.assertFalse((self.directory / "out").exists())

    def edit_index(self, edit):
        index = json.loads((self.path / INDEX).read_text())
        edit(index)
        (self.path / INDEX).write_text(json.dumps(index))

    def test_the_source_is_sound_at_first(self):
        mount = self.mount(source=self.path)
        self.assertIn("bf16-safetensors", os.listdir(mount.target))

    def test_absent(self):
        self.refused(r"absent: no such file or directory", source=self.directory / "absent")

    def test_an_empty_directory(self):
        (self.directory / "empty").mkdir()
        self.refused(r"empty: not a checkpoint: .*empty", source=self.directory / "empty")

    def test_a_directory_of_other_files(self):
        other = self.directory / "other"
        other.mkdir()
        (other / "notes.txt").write_text("notes\n")
        (other / "config.json").write_text("{}\n")
        self.refused(r"other: not a checkpoint: no \*\.safetensors file", source=other)

    def test_a_file_that_is_no_checkpoint(self):
        (self.directory / "text").write_text("a text of some length, and no checkpoint\n")
        self.refused(r"text: ", source=self.directory / "text")

    def test_a_device(self):
        self.refused(r"/dev/null: neither a file nor a directory", source="/dev/null")

    def test_a_pipe_among_the_shards(self):
        self.source.shard(1).unlink()
        os.mkfifo(self.source.shard(1))
        self.refused(SECOND)

    def test_a_missing_shard(self):
        self.source.shard(1).unlink()
        self.refused(rf"{INDEX}: .*{SECOND}.* absent")

    def test_a_missing_shard_without_an_index(self):
        (self.path / INDEX).unlink()
        self.source.shard(0).unlink()
        self.refused(r"number 1 of 2 is missing")

    def test_an_index_that_names_an_absent_file(self):
        self.edit_index(lambda index: index["weight_map"].update(more="other.safetensors"))
        self.refused(rf'{INDEX}: names "other.safetensors", which is absent')

    def test_an_index_that_maps_a_tensor_to_a_shard_without_it(self):
        self.edit_index(lambda index: index["weight_map"].update(more=FIRST))
        # The whole tensors are shown; a warning and `inspect` name the other.
        done = run(CKFS, "inspect", self.path)
        self.assertIn(f"more: missing: {INDEX} says that it is in {FIRST}", done.stdout)
        mount = self.mount(source=self.path)
        index = json.loads((mount.target / "bf16-safetensors" / INDEX).read_text())
        self.assertNotIn("more", index["weight_map"])

    def test_an_index_that_leaves_the_directory(self):
        (self.directory / "outside.safetensors").write_bytes(self.source.shard(0).read_bytes())
        self.edit_index(
            lambda index: index["weight_map"].update(more="../outside.safetensors")
        )
        self.refused(INDEX)

    def test_an_index_cut_short(self):
        text = (self.path / INDEX).read_text()
        (self.path / INDEX).write_text(text[: len(text) // 2])
        self.refused(INDEX)

    def test_a_truncated_shard(self):
        size = self.source.shard(1).stat().st_size
        for left in (size - 1, size // 2):
            os.truncate(self.source.shard(1), left)
            self.refused(rf"{SECOND}: .*\d")

    def test_a_shard_cut_within_its_header(self):
        for left in (100, 8, 7, 0):
            os.truncate(self.source.shard(0), left)
            self.refused(rf"{FIRST}: ")

    def test_a_shard_that_is_longer_than_its_tensors(self):
        with open(self.source.shard(0), "ab") as file:
            file.write(b"more")
        self.refused(rf"{FIRST}: ")

    def test_a_shard_of_zeros(self):
        size = self.source.shard(0).stat().st_size
        self.source.shard(0).write_bytes(bytes(size))
        self.refused(rf"{FIRST}: ")

    def test_an_unreadable_shard(self):
        self.source.shard(1).chmod(0)
        self.refused(
            rf"{SECOND}: .*Permission denied",
            prefix=as_nobody(), program=self.program_for_all(),
        )  # fmt: skip

    def test_an_unreadable_config(self):
        (self.path / "config.json").chmod(0)
        self.refused(
            r"config.json: .*Permission denied",
            prefix=as_nobody(), program=self.program_for_all(),
        )  # fmt: skip

    def test_an_unreadable_directory(self):
        self.path.chmod(0)
        self.addCleanup(self.path.chmod, 0o755)
        self.refused(
            r"source: .*Permission denied", prefix=as_nobody(), program=self.program_for_all()
        )

    def test_a_git_lfs_pointer(self):
        pointer = (
            "version https://git-lfs.github.com/spec/v1\n"
            f"oid sha256:{'0123456789abcdef' * 4}\nsize 4976698672\n"
        )
        self.source.shard(1).write_text(pointer)
        self.refused(rf"{SECOND}: a Git-LFS pointer, .*git lfs pull")

    def test_an_unfinished_download(self):
        self.source.shard(1).rename(self.path / (SECOND + ".incomplete"))
        self.refused(rf"{SECOND}")

    def test_an_unfinished_download_without_an_index(self):
        (self.path / INDEX).unlink()
        self.source.shard(1).rename(self.path / (SECOND + ".incomplete"))
        self.refused(r"incomplete|not finished|missing")

    def test_an_unfinished_download_as_the_source(self):
        unfinished = self.directory / "model.safetensors.incomplete"
        self.source.shard(1).rename(unfinished)
        self.refused(r"incomplete: a download that was not finished", source=unfinished)

    def test_a_broken_config(self):
        (self.path / "config.json").write_text('{"torch_dtype": ')
        self.refused(r"config.json: ")

    def test_names_that_would_break_the_line(self):
        ugly = self.directory / "two\nlines\x1b[31m"
        ugly.mkdir()
        done = self.assert_mount_refused(ugly, r"not a checkpoint")
        self.assertNotIn("\x1b", done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
