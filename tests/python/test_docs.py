#!/usr/bin/env python3
"""docs/PYTHON.md: its code runs as it is written, and its table of exceptions is that of the package."""
import contextlib
import os
import re
import unittest

import support
from support import FP8, ROOT

import ckfs

PAGE = (ROOT / "docs/PYTHON.md").read_text()


class Page(support.TestCase):
    def test_code_runs(self):
        directory = self.work()
        (directory / "DeepSeek-V3").symlink_to(FP8)
        blocks = re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)
        self.assertGreater(len(blocks), 4)
        names = {}
        before = os.getcwd()
        os.chdir(directory)
        self.addCleanup(os.chdir, before)
        with contextlib.redirect_stderr(None):
            for block in blocks:
                exec(compile(block, "docs/PYTHON.md", "exec"), names)

    def test_exceptions_are_those_of_the_package(self):
        rows = re.findall(r"^\| (`\w+Error`.*?) \| (`.*?`) \| (.*?) \|", PAGE, re.M)
        told = {}
        for names, codes, bases in rows:
            names, codes = re.findall(r"`(\w+)`", names), re.findall(r"`(\w+)`", codes)
            for number, name in enumerate(names):
                told[name] = codes[min(number, len(codes) - 1)]
                kind = getattr(ckfs, name)
                self.assertTrue(any(base.__name__ in bases for base in kind.__mro__
                                    if base.__module__ == "builtins" and base.__name__ not in
                                    ("Exception", "BaseException", "object")), name)
        public = {name: kind.code for name, kind in vars(ckfs).items()
                  if isinstance(kind, type) and issubclass(kind, ckfs.Error)
                  and name not in ("Error", "StoppedError")}
        self.assertEqual(told, public)

    def test_public_names_have_docstrings(self):
        for name in ckfs.__all__:
            self.assertTrue(getattr(ckfs, name).__doc__, name)
        for kind in (ckfs.Model, ckfs.Tensor, ckfs.Checkpoint):
            for name, member in vars(kind).items():
                if callable(member) and not name.startswith("_") and name not in (
                        "values", "ndim", "numel"):
                    self.assertTrue(member.__doc__, f"{kind.__name__}.{name}")


if __name__ == "__main__":
    unittest.main()
