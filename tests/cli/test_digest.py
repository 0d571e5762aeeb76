"""`ckfs digest` and `ckfs verify`: against coreutils, and against copies that are not right."""

import contextlib
import hashlib
import json
import math
import os
import pathlib
import pty
import resource
import shutil
import signal
import subprocess
import unittest

import cli_support
import json_schema
from cli_support import LIMIT, run, start

VIEW = "fp32-safetensors@max_shard=1MB"


class Digest(cli_support.TestCase):
    def setUp(self):
        super().setUp()
        self.out = self.directory / "out"
        self.done("export", self.source, VIEW, self.out)
        self.files = {str(path.relative_to(self.out)): path
                      for path in self.out.rglob("*") if path.is_file()}

    def digest(self, *words):
        return self.done("digest", self.source, VIEW, *words).decode()

    def check(self, program, text):
        subprocess.run([program, "-c", "--quiet", "-"], input=text.encode(), cwd=self.out,
                       check=True)

    def test_is_what_coreutils_check(self):
        text = self.digest()
        want = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {name}\n"
                for name, path in sorted(self.files.items())]
        self.assertEqual(text, "".join(want))
        self.check("sha256sum", text)
        self.check("sha256sum", self.digest("--tag-lines"))

    def test_ends_where_nobody_reads(self):
        program = start("digest", self.source, VIEW, "--jobs", "1", stdout=subprocess.PIPE)
        program.stdout.close()
        self.assertEqual(program.wait(timeout=LIMIT), 0)

    def test_on_a_terminal_the_lines_stand_alone(self):
        ours, theirs = pty.openpty()
        program = start("digest", self.source, VIEW, stdout=theirs, stderr=theirs)
        os.close(theirs)
        with os.fdopen(ours, "rb", buffering=0) as terminal:
            text = b""
            with contextlib.suppress(OSError):  # the other end is closed
                while piece := terminal.read(65536):
                    text += piece
        self.assertEqual(program.wait(timeout=LIMIT), 0)
        self.assertEqual(text.replace(b"\r\n", b"\n").decode(), self.digest())

    def test_is_what_xxhsum_checks(self):
        self.check("xxh128sum", self.digest("--algorithm", "xxh128"))

    def test_several_are_tagged(self):
        text = self.digest("--algorithm", "sha256", "--algorithm", "crc32c", "--algorithm",
                           "xxh128")
        self.assertEqual(len(text.splitlines()), 3 * len(self.files))
        self.assertRegex(text, r"(?m)^CRC32C \(config\.json\) = [A-Za-z0-9+/]{6}==$")

    def test_json_has_sizes_and_provenance(self):
        told = json.loads(self.digest("--json", "--algorithm", "crc32c"))
        self.assertEqual(told["view"], VIEW)
        self.assertRegex(told["fingerprint"], "^[0-9a-f]{16}$")
        for file in told["files"]:
            self.assertEqual(file["size"], self.files[file["path"]].stat().st_size)
            self.assertIn(file["exactness"], ("bit-exact", "exact", "lossy"))

    def test_names_with_backslashes_and_ends_of_line(self):
        source = self.directory / "model"
        shutil.copytree(self.source, source)
        (source / "a\\b\nc.json").write_text("x")
        text = self.done("digest", source, VIEW).decode()
        self.assertIn("\\\\b\\nc.json", text)
        copy = self.directory / "copy"
        self.done("export", source, VIEW, copy)
        subprocess.run(["sha256sum", "-c", "--quiet", "-"], input=text.encode(), cwd=copy,
                       check=True)
        sums = self.directory / "sums"
        sums.write_text(text)
        self.done("verify", source, VIEW, sums)

    def test_to_a_file(self):
        sums = self.directory / "SHA256SUMS"
        text = self.digest("--output", sums)
        self.assertRegex(text, rf"^{sums}: digests of {len(self.files)} files, [\d.]+ MB, [\d.]+ s\n$")
        self.assertEqual(sums.read_text(), self.digest())
        self.assertEqual(sorted(os.listdir(self.directory)), ["SHA256SUMS", "out"])
        self.digest("-o", sums, "--json")
        told = json.loads(sums.read_text())
        again = json.loads(self.digest("--json"))
        self.assertEqual(told, again)

    def test_to_a_file_it_goes_on_from_the_partial_one(self):
        sums = self.directory / "SHA256SUMS"
        partial = self.directory / "SHA256SUMS.partial"
        header = {"version": 1, "fingerprint": json.loads(self.digest("--json"))["fingerprint"],
                  "view": VIEW, "layout_version": json.loads(self.digest("--json"))["layout_version"],
                  "algorithms": ["sha256"]}
        name = sorted(self.files)[0]
        # A sum that only this test knows.
        known = f"SHA256 ({name}) = {'a' * 64}\n"
        partial.write_text("# ckfs digest " + json.dumps(header, separators=(",", ":")) + "\n" + known)
        partial.chmod(0o600)
        self.assertIn("; 1 of them by an earlier run", self.digest("-o", sums))
        self.assertIn(f"{'a' * 64}  {name}\n", sums.read_text())
        self.assertFalse(partial.exists())
        # Made from another source it is worth nothing.
        header["fingerprint"] = "0" * 16
        partial.write_text("# ckfs digest " + json.dumps(header, separators=(",", ":")) + "\n" + known)
        self.assertNotIn("earlier run", self.digest("-o", sums))
        self.assertEqual(sums.read_text(), self.digest())

    # verify

    def verify(self, code, *words):
        ended = run("verify", self.source, VIEW, *words)
        self.assertEqual((ended.returncode, ended.stderr), (code, b""), ended.stdout)
        return ended.stdout.decode()

    def test_without_memory_it_cannot_tell(self):
        for megabytes in (20, 24, 28, 32, 36, 40, 44, 48, 56, 64):
            def bound(limit=megabytes << 20):
                resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
            if run("--version", preexec_fn=bound).returncode != 0:
                continue  # no room for the program itself
            ended = run("verify", self.source, VIEW, self.out, preexec_fn=bound)
            self.assertIn(ended.returncode, (0, 2), (megabytes, ended.stderr))

    def test_a_right_copy(self):
        self.assertRegex(self.verify(0, self.out), "no difference from")
        for words in ([], ["--json"], ["--algorithm", "crc32c", "--algorithm", "xxh128"]):
            sums = self.directory / "sums"
            sums.write_text(self.digest(*words))
            self.assertRegex(self.verify(0, sums), "no difference from")

    def test_the_first_difference_by_tensor_and_element(self):
        name = next(name for name in self.files if name.endswith(".safetensors"))
        data = bytearray(self.files[name].read_bytes())
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8:8 + size])
        tensor, facts = max(((k, v) for k, v in header.items() if k != "__metadata__"),
                            key=lambda one: one[1]["data_offsets"][1] - one[1]["data_offsets"][0])
        element = math.prod(facts["shape"]) // 2 + 1
        place, rest = [], element
        for extent in reversed(facts["shape"]):
            place.insert(0, rest % extent)
            rest //= extent
        at = 8 + size + facts["data_offsets"][0] + 4 * element
        data[at + 2] ^= 0x40
        data[-1] ^= 1
        self.files[name].write_bytes(data)
        text = self.verify(1, self.out)
        self.assertIn(f"{name}: tensor {tensor}, element {place} (byte {at + 2}): "
                      f"{data[at:at + 4].hex()} in the copy", text)
        self.assertIn("1 files differ", text)

    def test_what_is_missing_too_much_or_has_another_size(self):
        names = sorted(self.files)
        self.files[names[0]].unlink()
        (self.out / "thesis.tex").write_text("mine")
        with open(self.files[names[1]], "ab") as file:
            file.write(b"x")
        self.files[names[2]].unlink()
        self.files[names[2]].mkdir()
        text = self.verify(1, self.out)
        self.assertIn(f"{names[0]}: is missing", text)
        self.assertIn("thesis.tex: extra file, not in the view", text)
        self.assertRegex(text, rf"{names[1]}: has \d+ bytes in the copy, not \d+")
        self.assertIn(f"{names[2]}: is not a regular file", text)

    def test_digests_that_differ(self):
        lines = self.digest().splitlines(keepends=True)
        lines[0] = ("0" if lines[0][0] != "0" else "1") + lines[0][1:]
        lines[1] = lines[1].replace(lines[1].split("  ")[1], "other\n")
        sums = self.directory / "sums"
        sums.write_text("".join(lines))
        text = self.verify(1, sums)
        self.assertIn("sha256 is ", text)
        self.assertIn("other: extra file, not in the view", text)
        self.assertIn("is missing", text)

    def test_a_sample_says_what_it_proves(self):
        self.assertRegex(self.verify(0, "--sample", "0.5", self.out),
                         r"\d+ of \d+ pieces of 1 MiB.*with a probability of")

    def test_a_list_without_end_is_refused(self):
        self.fails(2, "not a list of digests: a line has more than 65536 bytes",
                   "verify", self.source, VIEW, "/dev/zero")
        line = b"0" * 64 + b"  " + b"n" * 60_000 + b"\n"
        with subprocess.Popen(["yes", line.decode()[:-1]], stdout=subprocess.PIPE) as endless:
            done = run("verify", self.source, VIEW, "-", stdin=endless.stdout)
            endless.kill()
        self.assertEqual(done.returncode, 2)
        self.assertRegex(done.stderr, b"a list of digests of more than 268435456 bytes")

    def test_a_signal_ends_it_while_its_list_does_not_come(self):
        readable, writable = os.pipe()
        with start("verify", self.source, VIEW, "-", stdin=readable) as process:
            os.close(readable)
            os.write(writable, b"0" * 64)
            status = f"/proc/{process.pid}/status"
            while True:  # it has its own way with signals
                lines = pathlib.Path(status).read_text().splitlines()
                (blocked,) = (line.split()[1] for line in lines if line.startswith("SigBlk"))
                if int(blocked, 16) & 1 << signal.SIGINT - 1:
                    break
            process.send_signal(signal.SIGINT)
            _, error = process.communicate(timeout=LIMIT)
            os.close(writable)
        self.assertEqual(process.returncode, 2)
        self.assertRegex(error, b"ckfs: -: interrupted before all of the list was read\n")

    def test_the_result_as_json(self):
        schema = json.loads((cli_support.ROOT / "docs/schema/verify.json").read_text())
        sums = self.directory / "sums"
        sums.write_text(self.digest())
        size = sum(path.stat().st_size for path in self.files.values())
        for copy in (self.out, sums):
            told = json.loads(self.verify(0, copy, "--json"))
            self.assertEqual(json_schema.problems(told, schema), [])
            self.assertEqual((told["equal"], told["files"], told["bytes"], told["differences"]),
                             (True, len(self.files), size, []))
        name = sorted(self.files)[0]
        self.files[name].unlink()
        told = json.loads(self.verify(1, self.out, "--json"))
        self.assertEqual(json_schema.problems(told, schema), [])
        self.assertEqual((told["equal"], told["differing"]), (False, 1))
        self.assertEqual(told["differences"], [{"path": name, "text": "is missing"}])

    def test_resume_leaves_nothing_where_all_is_equal(self):
        state = self.directory / "state"
        self.verify(0, self.out, "--resume", state)
        self.assertFalse(state.exists())
        self.fails(2, "excludes", "verify", self.source, VIEW, self.out, "--resume", state,
                   "--sample", "0.5")

    def test_what_it_cannot_tell(self):
        for words, pattern in (([self.directory / "none"], "no such file or directory"),
                               (["--sample", "2", self.out], "not a share"),
                               (["--sample", "0.5", __file__], "compared file by file"),
                               ([__file__], "neither a check file's line nor JSON")):
            with self.subTest(words=words):
                self.fails(2, pattern, "verify", self.source, VIEW, *words)
        self.fails(2, "no such view", "verify", self.source, "nothing", self.out)


if __name__ == "__main__":
    unittest.main()
