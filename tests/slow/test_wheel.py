#!/usr/bin/env python3
"""The wheel of `./dev wheel`: what is in it, where it runs, and that it works in a virtual environment
that has nothing else."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import urllib.request
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCE = ROOT / "tests/data/hf/deepseek-v3-fp8/source"
FOUND = sorted((ROOT / "build/wheel").glob("ckfs-*.whl"))
OWN = {"libc.so.6", "libm.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2", "libpthread.so.0",
       "libdl.so.2"}


def run(*command, **options):
    done = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, **options)
    if done.returncode != 0:
        raise AssertionError(f"{command}: exit {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if len(FOUND) != 1:
            raise AssertionError(f"{len(FOUND)} wheels in build/wheel (./dev wheel makes one)")
        cls.wheel = FOUND[0]
        cls.work = pathlib.Path(tempfile.mkdtemp(prefix="ckfs-wheel-"))
        cls.addClassCleanup(shutil.rmtree, cls.work)
        with zipfile.ZipFile(cls.wheel) as archive:
            archive.extractall(cls.work / "content")
        cls.content = cls.work / "content"
        run(sys.executable, "-m", "venv", cls.work / "venv")
        cls.bin = cls.work / "venv/bin"
        run(cls.bin / "python", "-m", "pip", "install", "--no-index", "--disable-pip-version-check",
            cls.wheel)
        # Nothing of this tree, of the machine's packages or of a user's settings.
        cls.environment = {"PATH": "/usr/bin:/bin", "HOME": str(cls.work), "LANG": "C.UTF-8"}

    def programs(self):
        return [path for path in self.content.rglob("*")
                if path.is_file() and path.read_bytes()[:4] == b"\x7fELF"]

    def test_is_for_every_python_and_small(self):
        self.assertRegex(self.wheel.name, r"^ckfs-[\d.]+-py3-none-manylinux_2_34_x86_64\.whl$")
        self.assertLess(self.wheel.stat().st_size, 12 << 20)
        self.assertEqual({path.name for path in self.programs()},
                         {"ckfs", "ckfs-fetcher", "libckfs.so.1"})

    def test_needs_no_library_but_libc_and_no_newer_one(self):
        for path in self.programs():
            dynamic = run("readelf", "--wide", "--dynamic", path)
            needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic))
            self.assertLessEqual(needed, OWN, path.name)
            self.assertNotIn("RUNPATH", dynamic)
            versions = {tuple(map(int, text.split("."))) for text in
                        re.findall(r"GLIBC_([\d.]+)", run("readelf", "--wide", "--version-info", path))}
            self.assertLessEqual(max(versions), (2, 34), path.name)

    def test_has_the_licences_of_what_is_in_it(self):
        directory = next(self.content.glob("*.dist-info")) / "licenses"
        self.assertIn("Apache License", (directory / "LICENSE").read_text())
        self.assertIn("GNU Lesser General Public", (directory / "libfuse3-dev.txt").read_text())
        self.assertIn("Version 2.1, February 1999", (directory / "LGPL-2.1.txt").read_text())
        self.assertIn("./dev wheel", (directory / "LIBRARIES.md").read_text())

    def test_its_program_works(self):
        out = self.work / "out"
        told = run(self.bin / "ckfs", "inspect", SOURCE, env=self.environment)
        self.assertIn("bf16-safetensors", told)
        run(self.bin / "ckfs", "export", SOURCE, "bf16-safetensors", out, env=self.environment)
        run(self.bin / "ckfs", "verify", SOURCE, "bf16-safetensors", out, env=self.environment)

    def test_its_fetcher_starts(self):
        """A server that is not there: the error is that of a connection, not of a program."""
        done = subprocess.run([self.bin / "ckfs", "inspect", "http://127.0.0.1:9/model.safetensors",
                               "--timeout", "2"],
                              env=self.environment, capture_output=True, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"127\.0\.0\.1")
        self.assertNotIn("ckfs-fetcher", done.stderr)

    def test_its_package_finds_its_fetcher(self):
        program = ("import ckfs\n"
                   "try: ckfs.open('http://127.0.0.1:9/model.safetensors', timeout=2)\n"
                   "except ckfs.IoError as error: print(error)\n")
        told = run(self.bin / "python", "-c", program, env=self.environment)
        self.assertIn("127.0.0.1", told)
        self.assertNotIn("ckfs-fetcher", told)

    def test_its_server_serves(self):
        with subprocess.Popen([self.bin / "ckfs", "serve", SOURCE, "--listen", "127.0.0.1:0"],
                              env=self.environment, stdout=subprocess.PIPE, text=True) as server:
            try:
                url = server.stdout.readline().strip()
                for view in ("source", "bf16-safetensors"):
                    expected = subprocess.run(
                        [self.bin / "ckfs", "cat", SOURCE, f"{view}/config.json"],
                        env=self.environment, capture_output=True, check=True).stdout
                    with urllib.request.urlopen(f"{url}{view}/config.json", timeout=60) as answer:
                        self.assertEqual(answer.read(), expected)
            finally:
                server.terminate()
        self.assertEqual(server.returncode, 0)

    def test_its_package_passes_its_tests(self):
        for name in ("test_model.py",):
            run(self.bin / "python", ROOT / "tests/python" / name, cwd=self.work,
                env={**self.environment, "CKFS_WHEEL": "1"})

    def test_its_mounts_come_and_go(self):
        program = ("import ckfs, sys\n"
                   "with ckfs.mounted(sys.argv[1]) as views:\n"
                   "    data = (views / 'source/config.json').read_bytes()\n"
                   "print(data == open(sys.argv[1] + '/config.json', 'rb').read(), views.exists())\n")
        self.assertEqual(run(self.bin / "python", "-c", program, SOURCE, env=self.environment),
                         "True False\n")

    def test_other_libraries_find_it(self):
        """fsspec, which is of .venv/hf, opens a URL as docs/PYTHON.md has it."""
        found = next((ROOT / ".venv/hf/lib").glob("python3*/site-packages/fsspec"))
        (self.work / "path").mkdir()
        (self.work / "path/fsspec").symlink_to(found)
        (self.work / "DeepSeek-V3").symlink_to(SOURCE)
        program = ("import fsspec, sys\n"
                   "with fsspec.open('ckfs://bf16-safetensors/config.json::DeepSeek-V3') as file:\n"
                   "    sys.stdout.buffer.write(file.read())\n")
        told = run(self.bin / "python", "-c", program, cwd=self.work,
                   env={**self.environment, "PYTHONPATH": str(self.work / "path")})
        self.assertEqual(told, run(self.bin / "ckfs", "cat", SOURCE, "bf16-safetensors/config.json",
                                   env=self.environment))


if __name__ == "__main__":
    unittest.main()
