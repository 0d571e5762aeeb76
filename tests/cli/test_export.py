"""`ckfs export` as a program: killed, stopped, on a full disk, beside other files."""

import fcntl
import hashlib
import json
import os
import pty
import shutil
import signal
import subprocess
import unittest

import cli_support
import json_schema
from cli_support import LIMIT, run, start

OWN = ".ckfs-export.d"
RECORD = OWN + "/record.json"
VIEW = "fp32-safetensors"


def digests(directory):
    """{path: SHA-256} of the files below `directory`, without the record."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and OWN not in path.parts
    }


def make_large(source):
    """A checkpoint whose F32 view is one file of 160 MiB and a config."""
    numel = 40 << 20
    header = cli_support.mounted_fs.safetensors_header({"big": ("BF16", [numel], 2 * numel)})
    with open(source / "model.safetensors", "wb") as file:
        file.write(header)
        file.truncate(len(header) + 2 * numel)
        for element in range(0, numel, 999_983):
            file.seek(len(header) + 2 * element)
            file.write(element.to_bytes(4, "little")[:2])
    (source / "config.json").write_text('{"torch_dtype": "bfloat16"}\n')


class Export(cli_support.TestCase):
    def setUp(self):
        super().setUp()
        self.out = self.directory / "out"

    def export(self, *words, view=VIEW, source=None):
        return self.done("export", source or self.source, view, self.out, *words)

    def test_is_the_view(self):
        text = self.export().decode()
        self.assertEqual(text.count("\n"), 1)
        self.assertIn(VIEW, text)
        found = {}
        for entry in self.listing(VIEW):
            data = self.done("cat", self.source, f"{VIEW}/{entry}")
            found[entry] = hashlib.sha256(data).hexdigest()
        self.assertEqual(digests(self.out), found)
        for path in self.out.rglob("*"):
            if OWN not in path.parts:
                self.assertEqual(path.stat().st_mtime_ns, 1_700_000_000 * 10**9, path)

    def listing(self, where):
        found = []
        for entry in json.loads(self.done("ls", "--json", self.source, where))["entries"]:
            if entry["type"] == "directory":
                found += [f"{entry['path']}/{below}"
                          for below in self.listing(f"{where}/{entry['path']}")]
            else:
                found.append(entry["path"])
        return found

    def test_jobs_write_the_same(self):
        self.export("--jobs", "1")
        one = digests(self.out)
        shutil.rmtree(self.out)
        self.export("--jobs", "7", "--io", "pread")
        self.assertEqual(digests(self.out), one)

    def test_again_writes_nothing(self):
        self.export()
        before = {path: path.stat().st_ino for path in self.out.rglob("*") if OWN not in path.parts}
        self.assertRegex(self.export(), rb"0 files")
        after = {path: path.stat().st_ino for path in self.out.rglob("*") if OWN not in path.parts}
        self.assertEqual(after, before)

    def test_holds_the_files_of_the_view_alone(self):
        # What is uploaded, and what `diff -r` compares.
        self.export()
        self.assertEqual(sorted(os.listdir(self.out)),
                         sorted({name.split("/")[0] for name in self.listing(VIEW)}))
        # Also copied with its attributes it is known.
        subprocess.run(["cp", "-a", self.out, self.directory / "copy"], check=True)
        self.assertRegex(self.done("export", self.source, VIEW, self.directory / "copy"),
                         rb"0 files")

    def test_another_view_is_replaced_only_if_forced(self):
        self.export()
        before = digests(self.out)
        other = "bf16-safetensors@max_shard=1MB"
        self.fails(1, rf"out: holds a finished export of {VIEW} \(--force replaces it", "export",
                   self.source, other, self.out)
        self.assertEqual(digests(self.out), before)
        self.assertIn(f"; replaced a finished export of {VIEW}",
                      self.export("--force", view=other).decode())
        self.assertEqual(sorted(digests(self.out)), sorted(self.listing(other)))

    def test_the_result_as_json(self):
        schema = json.loads((cli_support.ROOT / "docs/schema/export_result.json").read_text())
        for words, written, replaced in (([], True, None), ([], False, None),
                                         (["--force"], True, f"a finished export of {VIEW}")):
            view = "fp16-safetensors" if words else VIEW
            told = json.loads(self.export("--json", *words, view=view))
            self.assertEqual(json_schema.problems(told, schema), [])
            sizes = {path: (self.out / path).stat().st_size for path in digests(self.out)}
            self.assertEqual((told["view"], told["out"], told["finished"], told["replaced"]),
                             (view, str(self.out), True, replaced))
            self.assertEqual((told["bytes"], told["bytes_kept"]),
                             (sum(sizes.values()), 0) if written else (0, sum(sizes.values())))
            self.assertEqual((told["files"], told["files_kept"]),
                             (len(sizes), 0) if written else (0, len(sizes)))

    def test_foreign_files(self):
        self.out.mkdir()
        (self.out / "thesis.tex").write_text("mine")
        self.fails(1, r"thesis\.tex.*--force", "export", self.source, VIEW, self.out)
        self.assertEqual(os.listdir(self.out), ["thesis.tex"])
        self.export("--force")
        self.assertEqual((self.out / "thesis.tex").read_text(), "mine")

    def test_out_inside_the_source(self):
        for out in (self.source, self.source / "out", f"{self.source}/../model/x"):
            self.fails(1, "lies inside the source", "export", self.source, VIEW, out)
        # Of a relative path nothing exists yet.
        self.fails(1, "lies inside the source", "export", ".", VIEW, "out", cwd=self.source)
        self.assertFalse((self.source / "out").exists())

    def test_the_source_is_neither_replaced_nor_removed(self):
        self.export()
        before = digests(self.out)
        shard = next(name for name in before if name.endswith(".safetensors"))
        # What another export left, and this one would remove.
        self.fails(1, "is a file of the source", "export", self.out / shard, "fp16-safetensors",
                   self.out, "--force")
        # What has the name of a file of the view.
        one = self.directory / "one"
        one.mkdir()
        shutil.copy(self.out / shard, one / "model.safetensors")
        self.fails(1, r'"model\.safetensors" is a file of the source', "export",
                   one / "model.safetensors", "fp16-safetensors", one, "--force")
        self.assertEqual(digests(self.out), before)
        self.assertEqual([path.name for path in one.iterdir() if path.name != OWN],
                         ["model.safetensors"])
        # Its source may lie in OUT where it is in nobody's way.
        (one / "below").mkdir()
        (one / "model.safetensors").rename(one / "below/model.safetensors")
        self.done("export", one / "below/model.safetensors", "fp16-safetensors", one, "--force")

    def test_in_a_directory_that_gives_its_group(self):
        if os.geteuid() != 0:
            self.skipTest("needs root, which may give any group")
        shared = self.directory / "shared"
        shared.mkdir()
        os.chown(shared, -1, 4711)
        shared.chmod(0o2775)
        before = os.umask(0o002)
        try:
            self.out = shared / "out"
            self.export()
            self.assertRegex(self.export(), rb"0 files")
            self.done("export", self.source, VIEW, f"{shared}/dot/.")
            self.done("export", self.source, VIEW, f"{shared}/dot/.")
            ranks = shared / "ranks"
            for rank in (0, 1, 0):
                self.done("export", self.source, VIEW, ranks, "--rank", str(rank), "--world", "2")
        finally:
            os.umask(before)
        self.assertEqual(self.out.stat().st_gid, 4711)
        self.assertEqual(self.out.stat().st_mode & 0o777, 0o755)
        for path in [*self.out.rglob("*"), *ranks.rglob("*")]:
            mode = path.stat().st_mode
            self.assertEqual(mode >> 3 & 7, mode & 7, path)
        # A group that may read may do so still, where others may not.
        before = os.umask(0o007)
        try:
            self.done("export", self.source, VIEW, shared / "closed")
        finally:
            os.umask(before)
        for path in (shared / "closed").glob("*.safetensors"):
            self.assertEqual((path.stat().st_mode & 0o777, path.stat().st_gid), (0o640, 4711), path)

    def test_the_umask_is_kept(self):
        for mask in (0o002, 0o022, 0o077):
            out = self.directory / f"{mask:o}" / "out/"
            before = os.umask(mask)
            try:
                self.done("export", self.source, VIEW, f"{out}/")
            finally:
                os.umask(before)
            self.assertEqual(out.parent.stat().st_mode & 0o777, 0o777 & ~mask)
            self.assertEqual(out.stat().st_mode & 0o777, 0o777 & ~mask)

    def test_finish_makes_no_directory(self):
        for out in (self.out, self.source / "out"):
            self.fails(1, "no rank has begun|lies inside the source", "export", self.source, VIEW,
                       out, "--finish")
            self.assertFalse(out.exists())

    def test_names_of_any_bytes_and_length(self):
        source = self.directory / "model"
        shutil.copytree(self.source, source)
        names = [b"bad\xffname.json", b"100%.json", b"n" * 255]
        for name in names:
            with open(os.path.join(os.fsencode(source), name), "wb") as file:
                file.write(name)
        for _ in range(2):
            self.done("export", source, VIEW, self.out)
        self.assertLessEqual(set(names), set(os.listdir(os.fsencode(self.out))))

    def test_its_record_is_no_part_of_a_checkpoint(self):
        self.export()
        for view in ("source", VIEW):
            self.assertNotIn(OWN, self.done("ls", self.out, view).decode())

    def test_a_limit_on_file_sizes_is_an_error(self):
        limited = 'ulimit -f 100; exec "$@"'
        ended = subprocess.run(["sh", "-c", limited, "sh", cli_support.CKFS, "export", self.source,
                                VIEW, self.out], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               check=False)  # fmt: skip
        self.assertEqual(ended.returncode, 1)
        self.assertRegex(ended.stderr, cli_support.ONE_LINE)

    def test_two_at_once(self):
        self.out.mkdir()
        descriptor = os.open(self.out, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            self.fails(1, "another export", "export", self.source, VIEW, self.out)
        finally:
            os.close(descriptor)
        self.export()

    def test_a_source_that_changes_replaces_only_if_forced(self):
        source = self.directory / "model"
        shutil.copytree(self.source, source)
        self.export(source=source)
        (source / "tokenizer.json").write_text('{"version": "2.0"}\n')
        self.fails(1, "from another source or recipe, or from this one before its files changed "
                      "\\(ckfs verify shows whether the copy is still right; --force replaces it",
                   "export", source, VIEW, self.out)
        self.assertNotRegex(self.export("--force", source=source), rb"there already")
        self.assertEqual((self.out / "tokenizer.json").read_text(), '{"version": "2.0"}\n')

    def test_a_progress_bar_on_a_terminal_only(self):
        ours, theirs = pty.openpty()
        try:
            program = start("export", self.source, VIEW, self.out, stderr=theirs)
            os.close(theirs)
            drawn = b""
            while True:
                try:
                    piece = os.read(ours, 65536)
                except OSError:  # the other end is closed
                    break
                if not piece:
                    break
                drawn += piece
            program.communicate(timeout=LIMIT)
            self.assertEqual(program.returncode, 0)
        finally:
            os.close(ours)
        self.assertRegex(drawn, rb"100%")
        self.assertTrue(drawn.endswith(b"\x1b[K"), drawn[-40:])


class Interrupted(cli_support.TestCase):
    """A view with a file of 160 MiB, on which an export can be interrupted half-way."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.large = cls.source.parent / "large"
        cls.large.mkdir()
        make_large(cls.large)
        reference = cls.source.parent / "reference"
        ended = run("export", cls.large, VIEW, reference)
        assert ended.returncode == 0, ended.stderr
        cls.expected = digests(reference)
        shutil.rmtree(reference)

    def setUp(self):
        super().setUp()
        self.out = self.directory / "out"

    def interrupt(self, number):
        """Starts an export and sends the signal once 64 MiB are recorded; its exit code."""
        for _ in range(5):
            code, err = self.interrupt_once(number)
            if code != 0:
                break
            shutil.rmtree(self.out)  # it had ended before this process was woken
        return code, err

    def interrupt_once(self, number):
        program = start("export", self.large, VIEW, self.out, "--jobs", "1")
        try:
            while program.poll() is None:
                if self.synced() >= 64 << 20:
                    program.send_signal(number)
                    break
            _, err = program.communicate(timeout=LIMIT)
        finally:
            program.kill()
            program.wait()
        return program.returncode, err

    def record(self):
        try:
            return json.loads((self.out / RECORD).read_text())
        except FileNotFoundError:
            return {"files": {}}

    def synced(self):
        return max((file["synced"] for file in self.record()["files"].values()), default=0)

    def goes_on(self):
        self.assertFalse((self.out / "model.safetensors").exists())
        part = self.out / OWN / "1.part"  # behind config.json
        self.assertTrue(part.exists())
        kept = self.synced()
        self.assertGreaterEqual(kept, 64 << 20)
        # Bytes that are kept are not written again: the mark survives, which only this test knows.
        with open(part, "r+b") as file:
            file.seek(1 << 20)
            before = file.read(1)
            file.seek(1 << 20)
            file.write(bytes([before[0] ^ 0xFF]))
        self.done("export", self.large, VIEW, self.out)
        with open(self.out / "model.safetensors", "r+b") as file:
            file.seek(1 << 20)
            self.assertEqual(file.read(1), bytes([before[0] ^ 0xFF]))
            file.seek(1 << 20)
            file.write(before)
        self.assertEqual(digests(self.out), self.expected)

    def test_killed_it_goes_on(self):
        code, _ = self.interrupt(signal.SIGKILL)
        self.assertEqual(code, -signal.SIGKILL)
        schema = json.loads((cli_support.ROOT / "docs/schema/export.json").read_text())
        self.assertEqual(json_schema.problems(self.record(), schema), [])
        self.goes_on()

    def test_stopped_it_goes_on(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            shutil.rmtree(self.out, ignore_errors=True)
            code, err = self.interrupt(number)
            self.assertEqual(code, 1)
            self.assertRegex(err, cli_support.ONE_LINE)
            self.assertRegex(err.decode(), r"out: interrupted after [\d.]+ MB of [\d.]+ MB \(the same")
            self.goes_on()

    def test_an_ignored_interrupt_stays_ignored(self):
        # As a shell starts its background jobs.
        program = subprocess.Popen(["sh", "-c", 'trap "" INT; exec "$0" "$@"', cli_support.CKFS,
                                    "export", self.large, VIEW, self.out, "--jobs", "1"],
                                   stderr=subprocess.PIPE)
        try:
            while program.poll() is None and self.synced() < 64 << 20:
                pass
            program.send_signal(signal.SIGINT)
            _, err = program.communicate(timeout=LIMIT)
        finally:
            program.kill()
            program.wait()
        self.assertEqual(program.returncode, 0, err)
        self.assertEqual(digests(self.out), self.expected)

    def test_another_view_replaces_it_only_if_forced(self):
        self.interrupt(signal.SIGKILL)
        self.fails(1, f"holds an unfinished export of {VIEW}", "export", self.large,
                   "bf16-safetensors", self.out)
        self.done("export", self.large, "bf16-safetensors", self.out, "--force")
        self.assertEqual(sorted(os.listdir(self.out)), ["config.json", "model.safetensors"])


class FullDisk(cli_support.TestCase):
    """OUT on a tmpfs of its own, which only root can mount: so this runs as root only."""

    def disk(self, size):
        where = self.directory / "disk"
        where.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "ckfs-test", where],
                       check=True)
        self.addCleanup(subprocess.run, ["umount", where], check=True)
        return where

    def test_too_small_a_disk_is_told_before_anything_is_written(self):
        out = self.disk(1 << 20) / "out"
        self.fails(1, r"/out: no space left: [\d.]+ [KMG]?B needed, [\d.]+ [KMG]?B free", "export", self.source,
                   VIEW, out)
        self.assertEqual(list(out.iterdir()), [])

    def test_a_finished_copy_stays_where_there_is_no_room_for_another(self):
        out = self.disk(2 << 20) / "out"
        self.done("export", self.source, "bf16-safetensors", out)
        before = digests(out)
        self.fails(1, "no space left", "export", self.source, "fp32-safetensors", out, "--force")
        self.assertEqual(digests(out), before)
        # It makes room for one that needs it.
        self.done("export", self.source, "fp16-safetensors", out, "--force")

    def test_a_disk_that_fills_up_leaves_nothing_that_looks_complete(self):
        source = self.directory / "large"
        source.mkdir()
        make_large(source)
        disk = self.disk(200 << 20)
        out = disk / "out"
        # The export is stopped after it has reserved the room for the large file, and before it
        # begins with the small one.
        program = start("export", source, VIEW, out, "--jobs", "1")
        try:
            while not (out / OWN / "1.part").exists():
                self.assertIsNone(program.poll())
            program.send_signal(signal.SIGSTOP)
            os.waitpid(program.pid, os.WUNTRACED)
            self.assertFalse((out / "config.json").exists())
            with open(disk / "ballast", "wb", buffering=0) as ballast:
                with self.assertRaisesRegex(OSError, "No space left"):
                    while True:
                        ballast.write(bytes(1 << 20))
            program.send_signal(signal.SIGCONT)
            _, err = program.communicate(timeout=LIMIT)
        finally:
            program.kill()
            program.wait()
        self.assertEqual(program.returncode, 1)
        self.assertRegex(err, cli_support.ONE_LINE)
        self.assertRegex(err.decode(), r"/out: no space left: [\d.]+ [KMG]?B needed, [\d.]+ [KMG]?B free")
        self.assertFalse((out / "config.json").exists())
        (disk / "ballast").unlink()
        self.done("export", source, VIEW, out)
        self.assertEqual(sorted(digests(out)), ["config.json", "model.safetensors"])

    def test_a_rank_takes_the_room_that_it_had_when_it_was_killed(self):
        source = self.directory / "large"
        source.mkdir()
        make_large(source)
        reserved = 80 << 20  # and more: without it there is no room for all
        out = self.disk(200 << 20) / "out"
        words = ["export", source, VIEW, out, "--rank", "0", "--world", "1"]
        program = start(*words)
        try:
            part = out / OWN / "1.part"
            while not part.exists() or part.stat().st_blocks * 512 < reserved:
                self.assertIsNone(program.poll())
        finally:
            program.kill()
            program.wait()
        self.done(*words)
        self.assertEqual(sorted(digests(out)), ["config.json", "model.safetensors"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
