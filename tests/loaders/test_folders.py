#!/usr/bin/env python3
"""Weights in folders of a model (sentence-transformers, diffusers, an adapter): safetensors reads each
from the view as torch casts it. The tools themselves: `./dev loaders`."""
import json
import unittest

import torch
from safetensors.torch import load_file, save_file
from support import CASTS, WorkDirectory, mounted, run, same_bits


class Folders(WorkDirectory):
    def make(self):
        source = self.work / "source"
        torch.manual_seed(5)
        base = {f"layers.{i}.weight": torch.randn(64, 48) for i in range(3)}
        files = {
            "model.safetensors": base,
            "2_Dense/model.safetensors": {"linear.weight": torch.randn(16, 48),
                                          "linear.bias": torch.randn(16).half()},
            "adapter/adapter_model.safetensors": {
                "base.layers.0.lora_A.weight": torch.randn(4, 48).bfloat16(),
                "base.layers.0.lora_B.weight": torch.randn(64, 4)},
        }
        copies = {"checkpoint-5/model.safetensors": base, "original/model.safetensors": base,
                  "mistral/consolidated.safetensors": {"tok": torch.randn(4)}}
        for name, tensors in {**files, **copies}.items():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            save_file(tensors, source / name)
        (source / "config.json").write_text(json.dumps({"torch_dtype": "float32"}))
        (source / "2_Dense/config.json").write_text(json.dumps({"in_features": 48}))
        return source, files, copies

    def test_are_in_the_views_as_torch_casts_them_and_copies_are_not(self):
        source, files, copies = self.make()
        with mounted(source, self.work / "mnt") as mnt:
            for view, dtype in CASTS.items():
                found = {str(path.relative_to(mnt / view))
                         for path in (mnt / view).rglob("*.safetensors")}
                self.assertEqual(found, set(files))
                for name, tensors in files.items():
                    got = load_file(mnt / view / name)
                    self.assertEqual(set(got), set(tensors))
                    for tensor, values in tensors.items():
                        self.assertTrue(same_bits(got[tensor], values.to(dtype)), (view, tensor))
                got = None  # it maps the view
            self.assertEqual((mnt / "bf16-safetensors/2_Dense/config.json").read_text(),
                             (source / "2_Dense/config.json").read_text())
        text = run("inspect", source).decode()
        for name in copies:
            self.assertIn(f"  {name}: ", text)
        self.assertIn("2_Dense/: 2 tensors of its own", text)
        self.assertIn("adapter/adapter_model.safetensors: an adapter, 2 tensors of its own", text)

    def test_are_exported(self):
        source, files, _ = self.make()
        run("export", source, "bf16-safetensors", self.work / "out")
        for name, tensors in files.items():
            got = load_file(self.work / "out" / name)
            for tensor, values in tensors.items():
                self.assertTrue(same_bits(got[tensor], values.bfloat16()), tensor)


if __name__ == "__main__":
    unittest.main(verbosity=2)
