#!/usr/bin/env python3
"""The programs that people copy checkpoints to a bucket with take a MaxText view off the mount,
file by file. Needs rclone, and gsutil in .venv/gsutil."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS / "golden"))
import ways  # noqa: E402

SOURCE = ways.DATA.parent / "maxtext" / "deepseek3" / "source"
GSUTIL = TESTS.parent / ".venv" / "gsutil" / "bin" / "gsutil"
VIEWS = ("maxtext-unscanned", "maxtext-scanned@ep=2,storage=zarr3")


class Copies(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="ckfs-slow-")
        self.addCleanup(temporary.cleanup)
        self.work = pathlib.Path(temporary.name)

    def check(self, copy):
        with ways.mounted(SOURCE, self.work / "mnt") as mount:
            for view in VIEWS:
                with self.subTest(view=view):
                    out = self.work / "out" / view
                    out.parent.mkdir(exist_ok=True)
                    copy(mount / view, out)
                    self.assertTrue(ways.files_of(mount / view) == ways.files_of(out))

    def test_gsutil(self):
        def copy(view, out):
            subprocess.run([GSUTIL, "-q", "-m", "cp", "-r", view, f"file://{out.parent}"],
                           check=True)
        self.check(copy)

    def test_rclone(self):
        def copy(view, out):
            subprocess.run(["rclone", "copy", view, out], check=True)
        self.check(copy)


if __name__ == "__main__":
    unittest.main()
