#!/usr/bin/env python3
"""torch itself on views and sources of torch checkpoints: torch.load in every mode, safetensors,
DCP's own converter, and transformers on a model directory that never was one."""
import json
import os
import subprocess
import sys
import unittest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch
import torch.distributed.checkpoint as dcp
import torch.utils.serialization.config as serialization
from safetensors.torch import load_file
from support import DATA, TESTS, WorkDirectory, load_all, mounted, run, same_bits
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

ZERO = DATA.parent / "deepspeed"
TORCH = DATA.parent / "torch"
MODES = [(mmap, weights_only) for mmap in (False, True) for weights_only in (False, True)]


def bin_views(case):
    return json.loads((ZERO / case / "expected.json").read_text())["bins"]


def same_tensors(test, want, got):
    test.assertEqual(list(want), list(got))
    for name, tensor in want.items():
        test.assertTrue(same_bits(tensor, got[name]), name)


class TorchLoad(WorkDirectory):
    def test_takes_the_bin_form_in_every_mode(self):
        for case in sorted(path.parent.name for path in ZERO.glob("*/expected.json")):
            with mounted(ZERO / case / "source", self.work / "mnt") as mnt:
                for view, files in bin_views(case).items():
                    for name, expected in files.items():
                        plain = load_all(mnt / "fp32-consolidated")
                        want = {tensor: plain[tensor] for tensor in expected}
                        for mmap, weights_only in MODES:
                            with self.subTest(case=case, view=view, file=name, mmap=mmap,
                                              weights_only=weights_only):
                                got = torch.load(mnt / view / name, mmap=mmap,
                                                 weights_only=weights_only)
                                same_tensors(self, want, got)
                                got = None
                        with open(mnt / view / name, "rb") as file:
                            same_tensors(self, want, torch.load(file))
                        plain = want = got = None  # they map the view

    def test_gives_tied_tensors_one_storage(self):
        with mounted(ZERO / "zero3-bf16-w4-tied-frozen" / "source", self.work / "mnt") as mnt:
            got = torch.load(mnt / "fp32-consolidated@format=bin" / "pytorch_model.bin")
            self.assertEqual(got["embed.weight"].data_ptr(), got["head.weight"].data_ptr())

    def test_computes_the_offsets_that_the_files_have(self):
        """torch can place storages by arithmetic alone; it must come to the same places."""
        with mounted(ZERO / "zero2-bf16-w2" / "source", self.work / "mnt") as mnt:
            view = mnt / "fp32-consolidated@format=bin" / "pytorch_model.bin"
            want = torch.load(view)
            serialization.load.calculate_storage_offsets = True
            try:
                for mmap, weights_only in MODES:
                    with self.subTest(mmap=mmap, weights_only=weights_only):
                        same_tensors(self, want,
                                     torch.load(view, mmap=mmap, weights_only=weights_only))
            finally:
                serialization.load.calculate_storage_offsets = False

    def test_of_many_shapes_and_dtypes_is_what_torch_would_have_saved(self):
        """The whole file, with the checksums of zero that torch writes when asked to."""
        torch.manual_seed(3)
        state = {f"layers.{k}.weight": torch.randn(1 + k % 7, 3 + k % 5) for k in range(1100)}
        state |= {"scalar": torch.tensor(1.5), "five": torch.randn(1, 2, 3, 1, 2),
                  "empty": torch.zeros(0, 5), "bool": torch.arange(9) % 2 == 0,
                  "long": torch.arange(300), "größe": torch.randn(70000)}
        torch.save(state, self.work / "state.pt")
        out = self.work / "out"
        run("export", self.work / "state.pt", "fp32-consolidated@format=bin", out)
        serialization.save.compute_crc32 = False
        try:
            torch.save(state, self.work / "pytorch_model.bin")
        finally:
            serialization.save.compute_crc32 = True
        self.assertTrue((self.work / "pytorch_model.bin").read_bytes()
                        == (out / "pytorch_model.bin").read_bytes())


class LargeFiles(WorkDirectory):
    """Beyond 4 GiB positions need zip64 fields. The checkpoint is sparse; nobody reads its data."""

    def places(self, path, calculated):
        """Where the file's storages are in the mapping, from the first of them on."""
        serialization.load.calculate_storage_offsets = calculated
        try:
            state = torch.load(path, mmap=True)
        finally:
            serialization.load.calculate_storage_offsets = False
        first = next(iter(state.values())).data_ptr()
        return {name: (list(t.shape), t.data_ptr() - first) for name, t in state.items()}

    def test_have_their_storages_where_torch_looks_for_them(self):
        subprocess.run([sys.executable, TESTS / "tools" / "make_zero.py", "llama-70b",
                        self.work / "zero", "--ranks", "2"], check=True, stdout=subprocess.DEVNULL)
        with mounted(self.work / "zero", self.work / "mnt") as mnt:
            files = sorted((mnt / "fp32-consolidated@format=bin").glob("*.bin"))
            path = max(files, key=lambda file: file.stat().st_size)
            read, calculated = (self.places(path, how) for how in (False, True))
            self.assertEqual(read, calculated)
            self.assertGreater(max(place for _, place in read.values()), 2**32)
            self.assertEqual(723, sum(len(self.places(file, False)) for file in files))


class Safetensors(WorkDirectory):
    def test_loads_what_torch_loads(self):
        for case, file in (("zip-dtypes", "pytorch_model.bin"), ("zip-views", "views.pt"),
                           ("legacy-stream", "old.pt"), ("zip-crc-zero", "pytorch_model.bin"),
                           ("zip-module-metadata", "model.pth")):
            with self.subTest(case=case):
                source = TORCH / case / "source" / file
                want = {name: tensor for name, tensor in torch.load(source).items()}
                with mounted(source, self.work / "mnt") as mnt:
                    got = load_file(mnt / "safetensors" / "model.safetensors")
                    self.assertEqual(sorted(want), sorted(got))
                    for name, tensor in want.items():
                        self.assertTrue(same_bits(tensor.detach(), got[name]), name)
                    got = None  # it maps the view


class Nested(WorkDirectory):
    def test_state_dicts_are_chosen_by_their_key(self):
        torch.manual_seed(11)
        model, average = ({"a.weight": torch.randn(5, 3), "b": torch.randn(2)} for _ in range(2))
        torch.save({"epoch": 4, "state_dict": model, "ema": average}, self.work / "last.ckpt")
        for options, want in (([], model), (["--key", "state_dict"], model),
                              (["--key", "ema"], average)):
            with self.subTest(options=options):
                with mounted(self.work / "last.ckpt", self.work / "mnt", *options) as mnt:
                    got = load_all(mnt / "safetensors")
                    self.assertEqual(sorted(want), sorted(got))
                    for name, tensor in want.items():
                        self.assertTrue(same_bits(tensor, got[name]), name)
                    got = None  # it maps the view


class DistributedCheckpoint(WorkDirectory):
    def test_gives_the_tensors_of_dcp_to_torch_save(self):
        for case in ("dcp-fsdp2-w2", "dcp-hsdp-w4"):
            with self.subTest(case=case):
                source = TORCH / case / "source"
                dcp_to_torch_save(source, self.work / "joined.pt")
                with mounted(source, self.work / "mnt") as mnt:
                    got = load_all(mnt / "safetensors")
                    want = {name: tensor for name, tensor in flat(torch.load(
                        self.work / "joined.pt", weights_only=False)) if name in got}
                    self.assertEqual(sorted(got), sorted(want))
                    for name, tensor in want.items():
                        self.assertTrue(same_bits(tensor, got[name]), name)
                    got = None  # it maps the view

    def test_of_a_fresh_one_gives_its_tensors(self):
        torch.manual_seed(5)
        state = {"model": {"a.weight": torch.randn(7, 11), "b": torch.randn(3).bfloat16(),
                           "count": torch.tensor(2**40)}, "epoch": 3}
        dcp.save(state, checkpoint_id=str(self.work / "dcp"), no_dist=True)
        with mounted(self.work / "dcp", self.work / "mnt") as mnt:
            got = load_all(mnt / "safetensors")
            want = state["model"]
            self.assertEqual(sorted(want), sorted(got))
            for name, tensor in want.items():
                self.assertTrue(same_bits(tensor, got[name]), name)
            got = None  # it maps the view


def flat(value, prefix=""):
    for key, below in value.items() if isinstance(value, dict) else enumerate(value):
        name = f"{prefix}{key}"
        if isinstance(below, torch.Tensor):
            yield name, below
        elif isinstance(below, (dict, list, tuple)):
            yield from flat(below, f"{name}.")


class FromPretrained(WorkDirectory):
    """A state dict saved by torch.save, with a config.json beside it."""

    def setUp(self):
        super().setUp()
        torch.manual_seed(7)
        self.model = LlamaForCausalLM(LlamaConfig(
            vocab_size=61, hidden_size=32, intermediate_size=72, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
            tie_word_embeddings=False)).eval()
        self.run_directory = self.work / "run"
        self.run_directory.mkdir()
        self.model.config.save_pretrained(self.run_directory)
        torch.save(self.model.state_dict(), self.run_directory / "pytorch_model.bin")

    def logits(self, model):
        with torch.no_grad():
            return model(torch.arange(1, 13).reshape(1, -1)).logits

    def load(self, directory, **options):
        model, info = AutoModelForCausalLM.from_pretrained(
            directory, dtype="auto", local_files_only=True, output_loading_info=True, **options)
        self.assertFalse(info["missing_keys"])
        self.assertFalse(info["unexpected_keys"])
        return model.eval()

    def reference(self, dtype):
        """The model in another dtype, as transformers saves and loads it."""
        folder = self.work / str(dtype)
        self.model.to(dtype).save_pretrained(folder)
        return self.logits(self.load(folder))

    def check(self, source, *options):
        want = {"fp32-safetensors": self.reference(torch.float32),
                "bf16-safetensors": self.reference(torch.bfloat16)}
        with mounted(source, self.work / "mnt", *options) as mnt:
            for view, logits in want.items():
                with self.subTest(view=view):
                    model = self.load(mnt / view)
                    self.assertEqual({logits.dtype}, {p.dtype for p in model.parameters()})
                    got = self.logits(model)
                    model = None  # it maps the view
                    self.assertTrue(torch.equal(logits, got))

    def test_gives_the_logits_of_the_model_that_was_saved(self):
        self.check(self.run_directory)

    def test_takes_the_config_from_elsewhere(self):
        elsewhere = self.work / "elsewhere"
        elsewhere.mkdir()
        os.rename(self.run_directory / "config.json", elsewhere / "config.json")
        self.check(self.run_directory / "pytorch_model.bin", "--config", elsewhere)

    def test_takes_the_bin_form_beside_a_config(self):
        with mounted(self.run_directory, self.work / "mnt") as mnt:
            model = self.load(mnt / "fp32-consolidated@format=bin", use_safetensors=False)
            self.assertTrue(torch.equal(self.logits(self.model), self.logits(model)))
            model = None  # it maps the view


if __name__ == "__main__":
    unittest.main()
