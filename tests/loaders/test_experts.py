#!/usr/bin/env python3
"""The layouts of experts before the eyes of transformers: what it loads of experts=fused needs no
conversion and is saved from disk; and the names of every family are those that transformers makes
of the Hub's, the numbers those of torch.stack and torch.cat."""
import json
import os
import re
import unittest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch
from safetensors.torch import save_file
from support import DATA, TESTS, WorkDirectory, load_all, mounted, run, same_bits
from transformers import AutoModelForCausalLM
from transformers.conversion_mapping import get_checkpoint_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

RECIPES = TESTS.parent / "src" / "view" / "recipes"
FUSED = "bf16-safetensors@experts=fused"
KEPT = "bf16-safetensors@cast=quantized,experts=fused"


def load(directory, **options):
    model, info = AutoModelForCausalLM.from_pretrained(
        directory, dtype="auto", local_files_only=True, output_loading_info=True,
        experts_implementation="eager", **options)
    assert not info["missing_keys"], info["missing_keys"]
    return model.eval()


def logits(model):
    with torch.no_grad():
        # The weights have infinities among them.
        return model(torch.arange(1, 13).reshape(1, -1)).logits.nan_to_num(7)


class FromPretrained(WorkDirectory):
    def test_of_the_fused_view_converts_nothing_and_gives_the_same_model(self):
        for case in ("mixtral", "qwen3-moe", "deepseek-v3", "gpt-oss"):
            with self.subTest(case=case):
                source = DATA / f"experts-{case}" / "source"
                plain = load(source)
                with mounted(source, self.work / "mnt") as mnt:
                    model = load(mnt / KEPT)
                    self.assertEqual([], model._weight_conversions)
                    self.assertEqual(case == "gpt-oss", plain._weight_conversions == [])
                    want, got = plain.state_dict(), model.state_dict()
                    self.assertEqual(sorted(want), sorted(got))
                    for name, tensor in want.items():
                        self.assertTrue(same_bits(tensor, got[name]), name)
                    self.assertTrue(torch.equal(logits(plain), logits(model)))
                    model = got = tensor = None  # they map the view

    def test_with_offload_to_disk_can_be_saved(self):
        for case in ("mixtral", "qwen3-moe", "deepseek-v3", "gpt-oss"):
            with self.subTest(case=case):
                source = DATA / f"experts-{case}" / "source"
                with mounted(source, self.work / "mnt") as mnt:
                    want = {name: tensor.clone() for name, tensor in load_all(mnt / KEPT).items()}
                    devices = {"model.embed_tokens": "cpu", "model.layers.0": "cpu",
                               "model.layers.1": "disk", "model.norm": "disk",
                               "model.rotary_emb": "cpu", "lm_head": "disk"}
                    model = load(mnt / KEPT, device_map=devices,
                                 offload_folder=self.work / f"offload-{case}")
                    # What lies on the disk is the view itself: nothing was written again.
                    self.assertEqual([], [path for path in (self.work / f"offload-{case}").glob("*")
                                          if "expert" in path.name])
                    out = self.work / f"saved-{case}"
                    model.save_pretrained(out, max_shard_size="20KB")
                    model = None
                got = load_all(out)
                self.assertEqual(sorted(want), sorted(got))
                for name, tensor in want.items():
                    self.assertTrue(same_bits(tensor, got[name]), name)


def samples(pattern):
    """Names that a pattern of a renaming fits."""
    choices = re.search(r"\(([a-z_]+(?:\|[a-z_]+)+)\)", pattern)
    if choices:
        for word in choices[1].split("|"):
            yield from samples(pattern.replace(choices[0], word))
        return
    anchored = pattern.startswith("^")
    name = re.sub(r"[()]", "", pattern.lstrip("^")).replace("\\d+", "3").replace("\\.", ".")
    if not anchored:
        name = ("model.layers.3" if name.startswith(".") else "model.layers.3.") + name
    if not re.search(r"(weight|bias|_fn|_base|_scale|_log|ape|sink|proj|alpha|\.s|\.b)$", name):
        name = name.rstrip(".") + ".weight"
    yield name


class Names(WorkDirectory):
    # Of these transformers renames and converts more than experts; FORMATS says so.
    EXPERTS_ONLY = {"deepseek_ocr2", "qwen4_exp_text", "kimi_k25"}
    # transformers applies these to names without the prefix of the text model.
    SCOPED = {"mistral_large4_text"}

    def converted(self, names, model):
        """{name: the name that transformers gives it}"""
        mapping = get_checkpoint_conversion_mapping(model)
        renamings = [entry for entry in mapping if isinstance(entry, WeightRenaming)]
        converters = [entry for entry in mapping if isinstance(entry, WeightConverter)]
        return {name: rename_source_key(name, renamings, converters)[0] for name in names}

    def test_of_every_family_are_those_of_transformers(self):
        seen = set()
        for path in sorted(RECIPES.glob("*.json")):
            family = json.loads(path.read_text())
            if "experts" not in family:  # other rules of a model: MaxText's trees
                continue
            layout = family["experts"]["fused"]
            for model in family["family"]:
                mapping = get_checkpoint_conversion_mapping(model)
                if model in self.SCOPED or not any(
                        isinstance(entry, WeightConverter) and "experts.*" in pattern
                        for entry in mapping or () for pattern in entry.source_patterns):
                    continue
                with self.subTest(family=path.name, model=model):
                    tensors = self.linear_source(model, mapping, layout)
                    want = self.converted(tensors, model)
                    source = self.work / f"{path.stem}-{model}"
                    source.mkdir()
                    save_file(tensors, source / "model.safetensors")
                    (source / "config.json").write_text(json.dumps({"model_type": model}))
                    out = self.work / f"out-{path.stem}-{model}"
                    run("export", source, FUSED, out)
                    got = load_all(out)
                    self.assertEqual(sorted(set(want.values())), sorted(got))
                    self.check_values(tensors, want, got)
                    seen.add(path.stem)
        self.assertGreater(len(seen), 20, seen)

    def linear_source(self, model, mapping, layout):
        """One layer with twelve experts under the names that transformers converts, and a tensor
        for each name that it changes."""
        tensors = {}
        for entry in mapping:
            if isinstance(entry, WeightConverter):
                if not any("experts.*" in pattern for pattern in entry.source_patterns):
                    continue
                for pattern in entry.source_patterns:
                    for expert in range(12):
                        name = self.before_renaming(pattern, layout).replace("*", str(expert))
                        shape = (6, 4) if re.search(r"(down_proj|w2|fc2)\.weight$", name) else (4, 6)
                        tensors[name] = torch.randn(shape, dtype=torch.bfloat16)
            elif type(entry) is WeightRenaming and model not in self.EXPERTS_ONLY:
                for pattern in entry.source_patterns:
                    for name in samples(pattern):
                        tensors.setdefault(name, torch.randn(2, dtype=torch.bfloat16))
        # A sample that another renaming makes of another sample would be there twice.
        first = {}
        for name, target in self.converted(tensors, model).items():
            if ".experts." in name or first.setdefault(target, name) == name:
                continue
            del tensors[name]
        return tensors

    @staticmethod
    def before_renaming(pattern, layout):
        """The name in the checkpoint of experts that a converter takes."""
        wanted = pattern.replace("\\.", ".").lstrip(".").replace("mlp.", "").replace(
            "feed_forward.", "").replace("mixer.", "")
        for rule in layout:
            taken = rule.get("take", [])
            for take in [taken] if isinstance(taken, str) else taken:
                if take.replace("{e}", "*").endswith(wanted) and "{e}" in take:
                    return take.replace("{p:**}", "model.layers.3.").replace("{e}", "*")
        raise AssertionError(f"{pattern}: no rule takes it")

    def check_values(self, tensors, names, got):
        experts = {}
        for name, target in names.items():
            match = re.search(r"experts\.(\d+)\.(\w+)\.weight$", name)
            if match:
                experts.setdefault(target, {}).setdefault(match[2], {})[int(match[1])] = tensors[name]
            else:
                self.assertTrue(same_bits(tensors[name], got[target]), name)
        for target, parts in experts.items():
            order = sorted(parts, key=["gate_proj", "w1", "fc1", "up_proj", "w3", "fc3", "down_proj",
                                       "w2", "fc2"].index)
            stacks = [torch.stack([parts[part][e] for e in range(12)]) for part in order]
            self.assertTrue(same_bits(torch.cat(stacks, dim=1), got[target]), target)


if __name__ == "__main__":
    unittest.main()
