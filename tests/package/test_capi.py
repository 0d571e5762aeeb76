#!/usr/bin/env python3
"""libckfs.so, as a program in plain C sees it: its header, its symbols, and what it needs."""
import json
import os
import pathlib
import re
import struct
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("CKFS_BUILD", ROOT / "build/release"))
LIBRARY = BUILD / "libckfs.so.1"
SOURCE = ROOT / "tests/data/hf/deepseek-v3-fp8/source"


def run(*command):
    done = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL,
                          capture_output=True)
    if done.returncode != 0:
        raise AssertionError(f"{command}: exit {done.returncode}\n{done.stderr.decode()}")
    return done.stdout


def declared():
    header = (ROOT / "include/ckfs/ckfs.h").read_text()
    return sorted(re.findall(r"^CKFS_API .*?\b(ckfs_\w+)\(", header, re.M))


class Library(unittest.TestCase):
    def test_exports_what_the_header_declares_and_nothing_else(self):
        table = run("readelf", "--wide", "--dyn-syms", LIBRARY).decode()
        defined = [line.split()[-1] for line in table.splitlines()
                   if re.search(r"\b(GLOBAL|WEAK|UNIQUE)\s+DEFAULT\s+\d+ ", line)]
        symbols = sorted(name for name in defined if name != "CKFS_1")
        self.assertEqual(symbols, [f"{name}@@CKFS_1" for name in declared()])

    def test_has_a_name_with_the_version_of_its_abi(self):
        dynamic = run("readelf", "--wide", "--dynamic", LIBRARY).decode()
        self.assertIn("Library soname: [libckfs.so.1]", dynamic)

    def test_serves_a_program_in_c99(self):
        with tempfile.TemporaryDirectory(prefix="ckfs-capi-") as work:
            program = pathlib.Path(work) / "library_user"
            run("cc", "-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", "-I", ROOT / "include",
                ROOT / "tests/package/library_user.c", "-o", program, LIBRARY,
                f"-Wl,-rpath,{LIBRARY.parent}")
            expected = tensor_of_files(SOURCE, "model.norm.weight")
            self.assertEqual(run(program, SOURCE, "bf16-safetensors", "model.norm.weight"), expected)
            wrong = subprocess.run([program, SOURCE, "bf16-safetensors", "no.such"],
                                   capture_output=True)
            self.assertEqual(wrong.returncode, 1)
            self.assertIn(b"library_user: 1 bf16-safetensors: no tensor", wrong.stderr)


def tensor_of_files(source, name):
    """The bytes of a tensor that the view passes unchanged."""
    index = json.loads((source / "model.safetensors.index.json").read_text())
    data = (source / index["weight_map"][name]).read_bytes()
    length, = struct.unpack("<Q", data[:8])
    begin, end = json.loads(data[8:8 + length])[name]["data_offsets"]
    return data[8 + length + begin:8 + length + end]


if __name__ == "__main__":
    unittest.main()
