"""`ckfs inspect` for people: sizes, what is not available, what to type next; roles of weight files."""

import json
import os
import shutil
import subprocess
import unittest

import cli_support
from cli_support import ROOT, mounted_fs

MAXTEXT = ROOT / "tests/data/maxtext/deepseek3/source"


class Inspect(cli_support.TestCase):
    def told(self, source):
        return json.loads(self.done("inspect", "--json", source))

    def test_a_view_is_as_large_as_its_files(self):
        for view in self.told(self.source)["views"]:
            if not view["available"]:
                self.assertNotIn("bytes", view)
                continue
            out = self.directory / view["name"]
            self.done("export", self.source, view["name"], out)
            sizes = [path.stat().st_size for path in out.rglob("*")
                     if path.is_file() and ".ckfs-export.d" not in path.parts]
            self.assertEqual(view["bytes"], sum(sizes), view["name"])

    def test_views_that_are_not_available_take_one_line(self):
        text = self.done("inspect", self.source).decode()
        lines = [line for line in text.splitlines() if "not available" in line]
        self.assertEqual(len(lines), 1, text)
        self.assertRegex(lines[0], r"^  not available: .*\borbax\b.* \(--all says why\)$")
        all_text = self.done("inspect", "--all", self.source).decode()
        self.assertRegex(all_text, r"(?m)^  orbax +-  not available:\n    source: is not in Orbax' format")

    def test_where_nothing_can_be_converted_it_says_why(self):
        source = self.directory / "odd"
        source.mkdir()
        header = mounted_fs.safetensors_header({"a.weight": ("F8_E8M0", [4], 4)})
        (source / "model.safetensors").write_bytes(header + bytes(4))
        (source / "config.json").write_text('{"quantization_config": {"quant_method": "odd"}}')
        self.assertIn("  bf16-safetensors            -  not available:\n    ",
                      self.done("inspect", source).decode())

    def test_it_ends_with_commands_that_work(self):
        source = self.directory / "a model's"
        shutil.copytree(self.source, source)
        text = self.done("inspect", source).decode()
        commands = [line.strip() for line in text.split("\nnext\n")[1].splitlines()]
        self.assertIn(f"ckfs mount '{self.directory}/a model'\\''s' view", commands)
        for command in commands:
            if command.startswith("ckfs "):
                subprocess.run(["sh", "-c", f'"$0" {command.removeprefix("ckfs ")}', os.path.abspath(cli_support.CKFS)],
                               cwd=self.directory, check=True, stdout=subprocess.DEVNULL)
        self.assertTrue(mounted_fs.is_mounted(self.directory / "view"))
        self.done("umount", self.directory / "view")
        self.assertTrue((self.directory / "OUT/config.json").exists())

    def test_it_has_the_line_for_maxtext_and_a_word_on_lossy(self):
        text = self.done("inspect", MAXTEXT).decode()
        self.assertIn("load_parameters_path=$PWD/view/maxtext-scanned/0/items scan_layers=true\n", text)
        self.assertIn("load_parameters_path=$PWD/view/maxtext-unscanned/0/items scan_layers=false\n", text)
        self.assertRegex(text, r"lossy: an ordinary cast to fewer bits")

    def test_it_has_the_lines_for_megatron_and_torchtitan_where_there_are_rules(self):
        qwen3 = ROOT / "tests/data/megatron/back-qwen3/source"
        text = self.done("inspect", qwen3).decode()
        self.assertIn("  Megatron: --load $PWD/view/megatron-torch-dist --finetune "
                      "--no-load-optim --no-load-rng\n", text)
        self.assertIn("  torchtitan: --checkpoint.initial_load_path="
                      "$PWD/view/dcp@names=torchtitan\n", text)
        # A model that both have rules for, with layers that do not fit them.
        other = self.directory / "other"
        shutil.copytree(qwen3, other)
        config = json.loads((other / "config.json").read_text())
        (other / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 7}))
        text = self.done("inspect", other).decode()
        self.assertNotIn("  Megatron: ", text)
        self.assertNotIn("  torchtitan: ", text)

    def test_every_weight_file_has_a_role(self):
        source = self.directory / "model"
        shutil.copytree(self.source, source)
        one = mounted_fs.safetensors_header({"w.lora_A.weight": ("F32", [2, 2], 16)}) + bytes(16)
        (source / "adapter_model.safetensors").write_bytes(one)
        (source / "adapter_config.json").write_text("{}")
        (source / "model-Q4_K_M.gguf").write_bytes(b"GGUF")
        for rank in (0, 1):
            (source / f"rank{rank}.safetensors").write_bytes(one)
        files = {file["path"]: (file["role"], file["bytes"]) for file in self.told(source)["weight_files"]}
        self.assertEqual(files, {
            "adapter_model.safetensors": ("adapter", len(one)),
            "model-00001-of-00002.safetensors":
                ("model", (source / "model-00001-of-00002.safetensors").stat().st_size),
            "model-00002-of-00002.safetensors":
                ("model", (source / "model-00002-of-00002.safetensors").stat().st_size),
            "model-Q4_K_M.gguf": ("other", 4),
            "rank0.safetensors": ("slice", len(one)),
            "rank1.safetensors": ("slice", len(one)),
        })


if __name__ == "__main__":
    unittest.main(verbosity=2)
