#!/usr/bin/env python3
"""The units of mount-helpers/systemd, as they are installed, are units to systemd."""
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("CKFS_BUILD", ROOT / "build/release"))
UNITS = ("ckfs@.service", "mnt-deepseek.mount", "mnt-deepseek.automount")


class Units(unittest.TestCase):
    def setUp(self):
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="ckfs-units-"))
        self.addCleanup(shutil.rmtree, self.root)
        subprocess.run(["cmake", "--install", BUILD, "--prefix", self.root / "usr",
                        "--component", "runtime"], check=True, stdout=subprocess.DEVNULL)
        # Those that systemd itself has: the ones that ours name must be there.
        shutil.copytree("/usr/lib/systemd/system", self.root / "usr/lib/systemd/system",
                        dirs_exist_ok=True, symlinks=True)
        self.directory = self.root / "etc/systemd/system"
        self.directory.mkdir(parents=True)
        examples = self.root / "usr/share/doc/ckfs/examples"
        for name in UNITS[1:]:
            shutil.copy(examples / name, self.directory)

    def verify(self, name):
        done = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no",
             f"--root={self.root}", name.replace("@.", "@x.")],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return done.returncode, done.stdout

    def test_are_units(self):
        for name in UNITS:
            with self.subTest(name=name):
                self.assertEqual((0, ""), self.verify(name))

    def test_a_mistake_would_be_seen(self):
        service = self.root / "usr/lib/systemd/system/ckfs@.service"
        service.write_text(service.read_text().replace("ExecStart=/usr/bin/ckfs", "ExecStart=ckfz"))
        self.assertNotEqual((0, ""), self.verify("ckfs@.service"))


if __name__ == "__main__":
    unittest.main()
