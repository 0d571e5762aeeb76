#!/usr/bin/env python3
"""docs/SUPPORTED.md: the program reads or refuses each quantization as the table says. (The families
of models are docs/FAMILIES.md, which tests/lint/families makes.)"""
import json
import os
import pathlib
import re
import struct
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
CKFS = pathlib.Path(os.environ.get("CKFS_BIN", ROOT / "build/release/ckfs")).resolve()
TEXT = (ROOT / "docs/SUPPORTED.md").read_text()
CODE = re.compile(r"`([^`]+)`")


def rows(name):
    """The cells of each row of the table between the markers."""
    table = TEXT.split(f"<!-- {name}:begin -->\n")[1].split(f"<!-- {name}:end -->")[0]
    return [[cell.strip() for cell in line.strip("|\n").split(" | ")]
            for line in table.splitlines()[2:]]


def recipes():
    return [json.loads(path.read_text())
            for path in sorted((ROOT / "src/view/recipes").glob("*.json"))]


def words(cell):
    return set(CODE.findall(cell))


def write_model(directory, dtype="BF16", config=None):
    """A model of one tensor of 16 elements."""
    size = 16 * {"BF16": 2, "I8": 1}[dtype]
    header = json.dumps({"m.weight": {"dtype": dtype, "shape": [4, 4],
                                      "data_offsets": [0, size]}}).encode()
    pathlib.Path(directory, "model.safetensors").write_bytes(
        struct.pack("<Q", len(header)) + header + bytes(size))
    pathlib.Path(directory, "config.json").write_text(json.dumps(config or {}))


class Families(unittest.TestCase):
    def test_of_megatron_are_those_of_the_recipes(self):
        types = set().union(*(words(row[1]) for row in rows("megatron")))
        mine = [recipe["family"] for recipe in recipes() if "megatron" in recipe]
        self.assertEqual(set().union(*mine), types)


class Files(unittest.TestCase):
    def test_that_are_refused_alone_and_left_out_beside_safetensors(self):
        lines = re.findall(r"^\| (.*) \| refuses.*beside safetensors: left out \|$", TEXT,
                           re.M | re.I)
        endings = sorted(set(CODE.findall(" ".join(lines))))
        self.assertGreater(len(endings), 10)
        with tempfile.TemporaryDirectory(prefix="ckfs-docs-") as model:
            write_model(model)
            for ending in endings:
                path = pathlib.Path(model, f"other{ending}")
                path.write_bytes(b"no tensors that ckfs reads" * 9)
                with self.subTest(ending):
                    alone = subprocess.run([CKFS, "inspect", path], capture_output=True)
                    self.assertEqual(1, alone.returncode, alone)
            told = subprocess.run([CKFS, "ls", model, "bf16-safetensors"], check=True,
                                  stdout=subprocess.PIPE, text=True).stdout
            self.assertEqual(["config.json", "model.safetensors"], told.split())

    def test_a_gguf_is_called_one(self):
        with tempfile.TemporaryDirectory(prefix="ckfs-docs-") as directory:
            path = pathlib.Path(directory, "model.gguf")
            path.write_bytes(b"GGUF" + bytes(100))
            for source in path, directory:
                told = subprocess.run([CKFS, "inspect", source], capture_output=True, text=True)
                self.assertEqual(1, told.returncode)
                self.assertRegex(told.stderr, "GGUF|gguf")


class Quantizations(unittest.TestCase):
    def test_methods_that_are_read_are_those_of_the_schemes(self):
        read = set().union(*(words(row[1]) for row in rows("quantizations")
                             if row[2].startswith("reads")))
        known = set()
        for path in (ROOT / "src/source/hf/schemes").glob("*.cc"):
            for methods in re.findall(r"\.methods = \{([^}]*)\}", path.read_text()):
                known.update(re.findall(r'"([^"]+)"', methods))
        self.assertEqual(set(), read - known)
        self.assertEqual(set(), known - read)

    def test_methods_that_are_refused_are_refused_by_name(self):
        refused = set().union(*(words(row[1]) for row in rows("quantizations")
                                if row[2].startswith("refuses by name")))
        refused -= {"compressed-tensors"}
        self.assertGreater(len(refused), 10)
        for method in sorted(refused):
            with self.subTest(method), tempfile.TemporaryDirectory(prefix="ckfs-docs-") as model:
                write_model(model, "I8", {"quantization_config": {"quant_method": method}})
                told = json.loads(subprocess.run([CKFS, "inspect", "--json", model], check=True,
                                                 stdout=subprocess.PIPE).stdout)
                views = {view["name"]: view for view in told["views"]}
                self.assertTrue(views["source"]["available"])
                self.assertFalse(views["bf16-safetensors"]["available"])
                reasons = [reason["text"] for reason in views["bf16-safetensors"]["reasons"]]
                self.assertIn(f'"{method}"', "\n".join(reasons))


if __name__ == "__main__":
    unittest.main()
