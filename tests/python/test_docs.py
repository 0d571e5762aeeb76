#!/usr/bin/env python3
"""docs/PYTHON.md: its code runs as it is written, and its table of exceptions is that of the package."""
import contextlib
import os
import re
import unittest

import fsspec
import numpy
import support
import torch
from support import FP8, ROOT

import ckfs
from ckfs import _fsspec

# As the wheel's entry point does it (tests/slow/test_wheel.py).
fsspec.register_implementation("ckfs", _fsspec.CkfsFileSystem, clobber=True)

PAGE = (ROOT / "docs/PYTHON.md").read_text()


# What is run elsewhere: a program in C, a device that few machines have, a library that .venv/hf does
# not have (tests/orbax/test_python_arrays.py), words that stand for others.
ELSEWHERE = (".torch(device=\"cuda\")", "tensor.jax()", "…")


class Page(support.TestCase):
    def setUp(self):
        directory = self.work()
        (directory / "DeepSeek-V3").symlink_to(FP8)
        before = os.getcwd()
        os.chdir(directory)
        self.addCleanup(os.chdir, before)

    def test_calls_between_the_lines_run(self):
        model = ckfs.open("DeepSeek-V3", "fp32-safetensors")
        tensor = model["model.norm.weight"]

        class Module:
            """As one of torch that has the model's parameters."""

            def state_dict(self, keep_vars=False):
                return {each.name: torch.empty(each.shape) for each in model.values()}

        named = {"ckfs": ckfs, "fsspec": fsspec, "numpy": numpy, "torch": torch, "model": model,
                 "tensor": tensor, "buffer": bytearray(tensor.nbytes), "name": tensor.name,
                 "module": Module(), "function": lambda level, line: None, "level": "warning"}
        self.addCleanup(ckfs.set_log)
        lines = re.sub(r"^```.*?^```$", "", PAGE, flags=re.M | re.S)
        done = set()
        for code in re.findall(r"`([^`\n]+)`", lines):
            begins = re.match(r"\.?(ckfs|fsspec|numpy|torch|model|tensor|load_into)\b", code)
            if not begins or not code.endswith((")", "]")):
                continue
            code = code.replace(", …}", "}")
            if any(each in code for each in ELSEWHERE):
                continue
            code = code.replace("load_into", "model.load_into") if code.startswith("load_into") else code
            code = "tensor" + code if code.startswith(".") else code
            eval(compile(code, "docs/PYTHON.md", "eval"), dict(named))
            done.add(code)
        self.assertLessEqual({"tensor.torch()", "tensor.into(buffer)", "model.load_into(module)",
                              "model.read_into({name: buffer})", "tensor[10:20]",
                              "ckfs.set_log(function, level)"}, done)

    def test_code_runs(self):
        blocks = re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)
        self.assertGreater(len(blocks), 4)
        names = {}
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
