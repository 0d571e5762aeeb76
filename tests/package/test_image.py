"""mount-helpers/kubernetes/build-image: the files of the image are enough to run ckfs, alone in a root
directory, by a user without privileges."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/cli"), str(ROOT / "tests/support")]
from cli_support import CKFS, LIMIT, Checkpoint  # noqa: E402

BUILD = ROOT / "mount-helpers/kubernetes/build-image"
MOST = 30 << 20  # without a fetcher, whose libraries are Debian's choice


class Image(unittest.TestCase):
    def setUp(self):
        self.work = pathlib.Path(tempfile.mkdtemp(prefix="ckfs-image-"))
        self.addCleanup(shutil.rmtree, self.work)
        self.program = self.work / "ckfs"
        shutil.copy(CKFS, self.program)
        self.root = self.work / "root"

    def fill(self, what):
        return subprocess.run([BUILD, "--root", self.root, what], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, timeout=LIMIT, check=False)

    def inside(self, *words):
        return subprocess.run(["unshare", "--user", "--map-current-user", "--keep-caps", "chroot", self.root,
                               "/ckfs", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              timeout=LIMIT, check=False,
                              env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})

    def test_a_program_and_its_libraries_are_enough(self):
        done = self.fill(self.program)
        self.assertEqual(done.returncode, 0, done.stderr)
        size = sum(path.stat().st_size for path in self.root.rglob("*") if path.is_file())
        self.assertLess(size, MOST)
        checkpoint = Checkpoint(self.root / "source", megabytes=1)
        done = self.inside("cat", "/source", "bf16-safetensors/config.json")
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        self.assertIn(b"llama", done.stdout)
        self.assertTrue(checkpoint.shard(0).exists())
        done = self.inside("export", "/source", "bf16-safetensors", "/tmp/out")
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        subprocess.run([CKFS, "verify", self.root / "source", "bf16-safetensors", self.root / "tmp/out"],
                       check=True, stdout=subprocess.DEVNULL, timeout=LIMIT)

    def test_of_a_wheel_it_takes_the_program(self):
        wheel = self.work / "ckfs-0.whl"
        folder = self.work / "wheel/ckfs-0.data/scripts"
        folder.mkdir(parents=True)
        shutil.copy(self.program, folder)
        subprocess.run([sys.executable, "-m", "zipfile", "-c", wheel, self.work / "wheel/ckfs-0.data"],
                       check=True)
        done = self.fill(wheel)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(b"ckfs ", self.inside("--version").stdout)

    def test_what_is_missing_is_named(self):
        for words, text in [(["none"], "none: no such file"), ([], "which program"),
                            (["--what", "x", self.program], "no such option")]:
            done = subprocess.run([BUILD, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                  timeout=LIMIT, check=False, env={**os.environ, "TMPDIR": str(self.work)})
            self.assertEqual(done.returncode, 1)
            self.assertIn(text, done.stderr)


if __name__ == "__main__":
    unittest.main()
