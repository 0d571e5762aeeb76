#!/usr/bin/env python3
"""Unmodified loaders read a mounted view: safetensors' safe_open and load_file, and transformers'
from_pretrained, whose model gives the logits of the directory that torch converted."""
import json
import os
import unittest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from support import (CASES, CASTS, DATA, WorkDirectory, bf16_reference, dequantized, load_all,
                     make_demo, mounted, same_bits, without_nan)
from transformers import AutoModelForCausalLM


def logits(directory):
    # The default way to multiply experts wants widths that are multiples of 8 elements.
    model, info = AutoModelForCausalLM.from_pretrained(
        directory, dtype="auto", local_files_only=True, output_loading_info=True,
        experts_implementation="eager")
    assert not info["missing_keys"], info["missing_keys"]
    model.eval()
    tokens = torch.arange(1, 13).reshape(1, -1)
    with torch.no_grad():
        return model, model(tokens).logits


class SafeOpen(WorkDirectory):
    def test_maps_a_view_and_gives_the_tensors_of_the_reference(self):
        for case in CASES:
            source = DATA / case / "source"
            config = json.loads((source / "config.json").read_text())
            block = config.get("quantization_config", {}).get("weight_block_size")
            want = dequantized(load_all(source), block)
            with mounted(source, self.work / "mnt") as mnt:
                seen = set()
                for path in sorted((mnt / "bf16-safetensors").glob("*.safetensors")):
                    with safe_open(path, framework="pt") as file:
                        for name in file.keys():
                            with self.subTest(case=case, tensor=name):
                                got, expected = file.get_tensor(name), want[name]
                                self.assertEqual(expected.dtype, got.dtype)
                                self.assertTrue(torch.equal(got.isnan(), expected.isnan()))
                                self.assertTrue(same_bits(got.nan_to_num(0, None, None),
                                                          expected.nan_to_num(0, None, None)))
                                if got.ndim > 1:  # a slice reads a part of the mapping
                                    part = file.get_slice(name)[1:, :1]
                                    self.assertTrue(same_bits(part, got[1:, :1]))
                            seen.add(name)
                got = part = file = None  # they map the view
                self.assertEqual(set(want), seen)


class LoadFile(WorkDirectory):
    def test_gives_what_safe_open_gives(self):
        source = make_demo(self.work / "demo", "--hidden", "256")
        with mounted(source, self.work / "mnt") as mnt:
            for view in CASTS:
                for path in sorted((mnt / view).glob("*.safetensors")):
                    tensors = load_file(path)
                    with safe_open(path, framework="pt") as file:
                        self.assertEqual(set(file.keys()), set(tensors))
                        for name in file.keys():
                            self.assertTrue(same_bits(file.get_tensor(name), tensors[name]), name)
                    tensors = file = None  # they map the view


class FromPretrained(WorkDirectory):
    def compare(self, source):
        reference = bf16_reference(source, self.work / "reference")
        _, want = logits(reference)
        self.assertTrue(torch.isfinite(want).all(), "the twin should have finite logits")
        with mounted(source, self.work / "mnt") as mnt:
            model, got = logits(mnt / "bf16-safetensors")
            self.assertTrue(torch.equal(want, got))
            self.assertEqual(torch.bfloat16, next(model.parameters()).dtype)
            model = None  # its parameters may map the view

    def test_gives_the_logits_of_the_demo_model(self):
        self.compare(make_demo(self.work / "demo", "--hidden", "256"))

    def test_gives_the_logits_of_a_llama(self):
        self.compare(without_nan(DATA / "llama-bf16" / "source", self.work / "twin"))

    def test_gives_the_logits_of_deepseek_v3(self):
        self.compare(without_nan(DATA / "deepseek-v3-fp8" / "source", self.work / "twin"))

    def test_gives_the_logits_of_deepseek_v31(self):
        self.compare(without_nan(DATA / "deepseek-v31-ue8m0" / "source", self.work / "twin"))

    def test_gives_the_logits_of_qwen(self):
        self.compare(without_nan(DATA / "qwen-fp8-bf16-scale" / "source", self.work / "twin"))


if __name__ == "__main__":
    unittest.main()
