"""The hostile torch files (tests/data/torch-hostile) as SRC of the program: refused with one line, or
the honest tensor is exported; nothing executed, little memory, under a second of processor time."""

import json
import os
import resource
import shutil
import struct
import subprocess
import unittest

import cli_support
from cli_support import CKFS, ONE_LINE, ROOT

CORPUS = ROOT / "tests/data/torch-hostile"
HONEST = struct.pack("<15f", *range(15))
# Its tensor `w` is right, but a tensor beside it is not: the file is refused whole.
REFUSED_WHOLE = {"storage-bad-elsewhere"}
MEMORY = 64 << 20


def tensors(path):
    """{name: bytes} of a safetensors file."""
    data = path.read_bytes()
    size = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:size])
    header.pop("__metadata__", None)
    return {name: data[size + t["data_offsets"][0] : size + t["data_offsets"][1]]
            for name, t in header.items()}


class Hostile(cli_support.TestCase):
    def export(self, path):
        """Exit code, standard error, the exported tensors, peak memory and processor time."""
        out = self.directory / path.stem
        said = self.directory / "stderr"
        with open(said, "wb") as stderr:
            process = subprocess.Popen([CKFS, "export", path, "safetensors", out], stdin=subprocess.DEVNULL,
                                       stdout=subprocess.DEVNULL, stderr=stderr,
                                       env={**os.environ, "CKFS_HOSTILE_MARKER": self.marker})
            try:
                _, status, used = os.wait4(process.pid, 0)
                process.returncode = os.waitstatus_to_exitcode(status)
            finally:
                process.kill()
        found = {}
        for file in out.rglob("*.safetensors") if out.is_dir() else []:
            found.update(tensors(file))
        return (process.returncode, said.read_bytes(), found, used.ru_maxrss * 1024,
                used.ru_utime + used.ru_stime)

    def setUp(self):
        super().setUp()
        self.marker = str(self.directory / "executed")

    def test_each_is_refused_or_serves_its_honest_tensor(self):
        cases = json.loads((CORPUS / "cases.json").read_text())
        self.assertGreaterEqual(len(cases), 60)
        usual = self.export(ROOT / "tests/data/torch/zip-views/source/views.pt")[3]
        for case in cases:
            path = CORPUS / "zip" / (case["name"] + ".pt")
            with self.subTest(case["name"]):
                code, error, found, memory, seconds = self.export(path)
                self.assertFalse(os.path.exists(self.marker), "its payload was executed")
                if case["error"] is None and case["name"] not in REFUSED_WHOLE:
                    self.assertEqual((code, found.get("w")), (0, HONEST), error)
                else:
                    self.assertNotIn("w", found)
                    self.assertEqual(code, 1)
                    self.assertRegex(error, ONE_LINE)
                self.assertLessEqual(memory, usual + path.stat().st_size + MEMORY)
                self.assertLess(seconds, 1)


class Arrays(cli_support.TestCase):
    def test_what_reading_an_array_without_chunks_would_cost_is_found_at_once(self):
        source = self.directory / "item"
        shutil.copytree(ROOT / "tests/data/orbax/plain_v2/source", source)
        tree = json.loads((source / "_METADATA").read_text())
        tree["store_array_data_equal_to_fill_value"] = False
        (source / "_METADATA").write_text(json.dumps(tree))
        (source / "big/0.0").unlink()
        array = json.loads((source / "big/.zarray").read_text())
        array.update(shape=[1 << 28] * 2, chunks=[1 << 28] * 2, order="F")
        (source / "big/.zarray").write_text(json.dumps(array))
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        report = json.loads(self.done("inspect", source, "--view", "safetensors", "--json"))
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.assertIn("decoding", report)
        self.assertLess(used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime, 10)


if __name__ == "__main__":
    unittest.main()
