"""docs/CLI_ABI.md, line by line: JSON against its schemas, exit codes, what goes where."""

import json
import re
import shutil
import signal
import unittest

import cli_support
import json_schema
from cli_support import DATA, LIMIT, ROOT, start

SCHEMAS = ROOT / "docs/schema"
SOURCES = sorted(path / "source" for path in DATA.iterdir() if (path / "source").is_dir())


class Validator(unittest.TestCase):
    """The validator can say no."""

    SCHEMA = {
        "type": "object",
        "required": ["a"],
        "additionalProperties": False,
        "properties": {
            "a": {"type": "integer", "minimum": 1},
            "b": {"type": "array", "items": {"enum": ["x", "y"]}},
            "c": {"type": "string", "pattern": "^z+$"},
            "d": {"anyOf": [{"const": 1}, {"type": "boolean"}]},
        },
    }

    def test_accepts(self):
        for value in ({"a": 1}, {"a": 2, "b": ["x"], "c": "zz", "d": True}, {"a": 9, "d": 1}):
            self.assertEqual(json_schema.problems(value, self.SCHEMA), [])

    def test_refuses(self):
        for value in ([], {}, {"a": 0}, {"a": "1"}, {"a": True}, {"a": 1, "b": ["z"]},
                      {"a": 1, "b": {}}, {"a": 1, "c": "y"}, {"a": 1, "d": 2}, {"a": 1, "e": 0}):
            self.assertNotEqual(json_schema.problems(value, self.SCHEMA), [], value)
        with self.assertRaises(ValueError):
            json_schema.problems({}, {"maximum": 1})


class Json(cli_support.TestCase):
    def check(self, text, name):
        value = json.loads(text)
        schema = json.loads((SCHEMAS / f"{name}.json").read_text())
        self.assertEqual(json_schema.problems(value, schema), [])
        self.assertEqual(next(iter(value)), "version")
        return value

    def test_inspect(self):
        self.assertGreaterEqual(len(SOURCES), 4)
        for source in [self.source, *SOURCES]:
            with self.subTest(source):
                told = self.check(self.done("inspect", "--json", source), "inspect")
                names = [view["name"] for view in told["views"] if view["available"]]
                self.assertIn("source", names)
                self.assertTrue(told["labels"])

    def test_inspect_names_what_is_quantized_in_a_folder_of_a_pipeline(self):
        source = self.directory / "pipeline"
        shutil.copytree(ROOT / "tests/data/hf/ct-fp8-block/source", source / "text_encoder")
        (source / "model_index.json").write_text(
            '{"_class_name": "P", "text_encoder": ["transformers", "LlamaForCausalLM"]}')
        told = self.check(self.done("inspect", "--json", source), "inspect")
        self.assertRegex(told["quantization"], "^text_encoder: fp8 ")
        self.assertEqual([group["weights"] for group in told["quantized"]], [7])
        text = self.done("inspect", source).decode()
        self.assertRegex(text, r'safetensors, text_encoder: fp8 [^;]*\n')
        self.assertIn('("text_encoder/model.layers.0.self_attn.k_proj.weight")', text)

    def test_inspect_of_a_view(self):
        source = ROOT / "tests/data/maxtext/deepseek3/source"
        for view in ("maxtext-scanned", "bf16-safetensors"):
            told = self.check(self.done("inspect", "--json", source, "--view", view),
                              "inspect_view")
            self.assertEqual(view, told["view"])
            self.assertTrue(all(array["sources"] for array in told["arrays"]))
            self.assertEqual(view == "maxtext-scanned", "chunk" in told["arrays"][0])
        text = self.done("inspect", source, "--view", "maxtext-scanned").decode()
        self.assertIn("model.layers.{2-3}.mlp.experts.{0-3}.up_proj.weight (8)\n", text)

    def test_inspect_of_a_source_with_obstacles(self):
        source = self.directory / "odd"
        source.mkdir()
        header = cli_support.mounted_fs.safetensors_header(
            {"w": ("F8_E4M3", [128, 128], 16384), "w_scale_inv": ("F32", [2, 2], 16)})
        (source / "model.safetensors").write_bytes(header + bytes(16400))
        (source / "config.json").write_text(json.dumps({
            "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}))
        told = self.check(self.done("inspect", "--json", source), "inspect")
        (view,) = [view for view in told["views"] if view["name"] == "bf16-safetensors"]
        self.assertFalse(view["available"])
        self.assertTrue(view["reasons"])
        self.fails(1, "w", "ls", source, "bf16-safetensors")

    def test_ls(self):
        for source in [self.source, *SOURCES]:
            with self.subTest(source):
                told = self.check(self.done("ls", "--json", source), "ls")
                for entry in told["entries"]:
                    self.check(self.done("ls", "--json", source, entry["path"]), "ls")

    def test_stats_and_views(self):
        target = self.directory / "mnt"
        target.mkdir()
        self.done("mount", self.source, target)
        try:
            (target / "bf16-safetensors/model-00001-of-00002.safetensors").read_bytes()
            told = self.check(self.done("stats", "--json", target), "status")
            self.assertGreater(told["bytes_to_readers"], 0)
            self.assertGreater(told["requests"], 0)
            self.assertTrue(told["files"])
            self.check((target / ".ckfs/status.json").read_text(), "status")
            self.check((target / ".ckfs/views.json").read_text(), "views")
            text = self.done("stats", target).decode()
            for word in ("requests", "source bytes", "tiles", "hits", "memory peak"):
                self.assertIn(word, text)
        finally:
            self.done("umount", target)

    def test_digest(self):
        words = [word for name in ("sha256", "crc32c", "xxh128") for word in ("--algorithm", name)]
        told = self.check(self.done("digest", self.source, "source", "--json", *words), "digest")
        self.assertTrue(told["files"])

    def test_doctor(self):
        told = self.check(cli_support.run("doctor", "--json", self.source).stdout, "doctor")
        self.assertIn("memory", [finding["name"] for finding in told["findings"]])

    def test_the_page_lists_every_schema(self):
        page = (ROOT / "docs/CLI_ABI.md").read_text()
        listed = set(re.findall(r"\(schema/(\w+\.json)\)", page))
        self.assertEqual(listed, {path.name for path in SCHEMAS.iterdir()})


class Streams(cli_support.TestCase):
    def test_ls_is_one_name_a_line(self):
        lines = self.done("ls", self.source, "source").decode().splitlines()
        found = sorted(path.name + "/" * path.is_dir() for path in self.source.iterdir())
        self.assertEqual(sorted(lines), found)

    def test_the_log_at_its_default_level_is_silent(self):
        for words in (["inspect", self.source], ["ls", self.source],
                      ["export", self.source, "source", self.directory / "out"],
                      ["cat", self.source, "bf16-safetensors/config.json"]):
            self.done(*words)  # fails if anything is on standard error

    def test_a_killed_program_has_its_signals_status(self):
        program = start("cat", self.source, "fp32-safetensors/model-00001-of-00002.safetensors")
        try:
            program.stdout.read(1)
            program.send_signal(signal.SIGTERM)
            program.communicate(timeout=LIMIT)
        finally:
            program.kill()
            program.wait()
        self.assertEqual(program.returncode, -signal.SIGTERM)


if __name__ == "__main__":
    unittest.main(verbosity=2)
