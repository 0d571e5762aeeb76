#!/usr/bin/env python3
"""README and GUIDE: every command of their ```sh blocks works, as pasted and in order, in a directory
with the checkpoints that they name. Programs that are not here have a stand-in (stand_ins/), which
does of their work what can be done here and says what not."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
CKFS = pathlib.Path(os.environ.get("CKFS_BIN", ROOT / "build/release/ckfs")).resolve()
STAND_INS = ROOT / "tests/docs/stand_ins"
QWEN3 = ROOT / "tests/data/maxtext/qwen3-dense"
# The model of make_zero.py's llama-tiny.
LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16",
         "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4,
         "num_key_value_heads": 2, "num_hidden_layers": 2, "vocab_size": 256,
         "tie_word_embeddings": False}


def text_of(page):
    return (ROOT / page).read_text()


def blocks(page, kind):
    return re.findall(rf"^```{kind}\n(.*?)^```", text_of(page), re.S | re.M)


class Pages(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="ckfs-docs-")
        self.addCleanup(temporary.cleanup)
        self.work = pathlib.Path(temporary.name)
        (self.work / "tests").symlink_to(ROOT / "tests")
        self.tool("make_demo.py", "DeepSeek-V3")
        self.tool("make_zero.py", "llama-tiny", "run/checkpoint-500", "--ranks", "2", "--fill")
        (self.work / "run/checkpoint-500/config.json").write_text(json.dumps(LLAMA))
        shutil.copytree(QWEN3 / "source", self.work / "Qwen3-8B")
        hub = self.work / ".cache/huggingface/hub/models--deepseek-ai--DeepSeek-V3"
        shutil.copytree(self.work / "DeepSeek-V3", hub / "snapshots/abc")
        (hub / "refs").mkdir()
        (hub / "refs/main").write_text("abc")
        (self.work / "llama.cpp").symlink_to(STAND_INS)
        self.addCleanup(self.unmount)

    def tool(self, name, *arguments):
        subprocess.run([sys.executable, ROOT / "tests/tools" / name, *arguments], check=True,
                       cwd=self.work, stdout=subprocess.DEVNULL)

    def unmount(self):
        mountpoint = self.work / "view"
        if os.path.ismount(mountpoint):
            subprocess.run([CKFS, "umount", mountpoint], check=True)

    def run_page(self, page):
        """What the commands of the page print."""
        # `python` is the reader's own one with safetensors, torch and transformers.
        path = os.pathsep.join([str(CKFS.parent), str(ROOT / ".venv/hf/bin"), str(STAND_INS),
                                os.environ["PATH"]])
        environment = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
        environment |= {"PATH": path, "HF_HUB_OFFLINE": "1", "HOME": str(self.work),
                        "PYTHONPATH": str(STAND_INS), "CKFS_REPOSITORY": str(ROOT)}
        script = "set -euo pipefail\n" + "".join(blocks(page, "sh"))
        done = subprocess.run(["bash", "-x"], input=script, cwd=self.work, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment)
        self.assertEqual(0, done.returncode, done.stdout)
        return done.stdout

    def test_session_and_recipes_of_the_readme_work(self):
        # The session makes the model that it uses.
        shutil.rmtree(self.work / "DeepSeek-V3")
        told = self.run_page("README.md")
        self.assertIn("stand-in for vLLM: DeepseekV3ForCausalLM, 41 tensors", told)
        self.assertEqual("DeepSeek-V3-BF16: 41 tensors\n", (self.work / "model.gguf").read_text())
        self.assertEqual(3, told.count("\ntorch.bfloat16\n"))  # session, DeepSpeed, MaxText
        self.assertRegex(told, r"\ntensor\(\[\[.*dtype=torch.bfloat16\)")
        self.assertIn("model.safetensors", os.listdir(self.work / "fp32-model"))

    def test_commands_of_the_guide_work(self):
        shutil.copytree(QWEN3 / "expected/scanned", self.work / "maxtext-runs/try/checkpoints")
        told = self.run_page("docs/GUIDE.md")
        index = json.loads((self.work / "converted/model.safetensors.index.json").read_text())
        self.assertIn("lm_head.weight", index["weight_map"])
        self.assertIn("DeepSeek-V3-BF16", os.listdir(self.work))
        self.assertIn("21 tensors", told)
        # The tensor that is read without a mount has the bytes of the copy.
        show = ("from safetensors import safe_open; print(safe_open('converted/'+'"
                + index["weight_map"]["model.embed_tokens.weight"]
                + "', 'pt').get_slice('model.embed_tokens.weight')[:1, :4])")
        want = subprocess.run([ROOT / ".venv/hf/bin/python", "-c", show], cwd=self.work, check=True,
                              stdout=subprocess.PIPE, text=True).stdout
        self.assertIn("\n" + want, told)

    def test_no_recipe_names_how_many_shards_a_model_has(self):
        # A real DeepSeek-V3 has -of-000163, the small one -of-000002.
        for page in "README.md", "docs/GUIDE.md":
            for block in blocks(page, "sh"):
                self.assertNotIn("-of-", block)

    def test_the_readme_is_short_and_its_blocks_are_either_run_or_shown(self):
        self.assertLessEqual(len(text_of("README.md").splitlines()), 200)
        # `console` is the installation: tests/package runs it.
        for page, kinds in ("README.md", {"sh", "console"}), ("docs/GUIDE.md", {"sh"}):
            self.assertLessEqual(set(re.findall(r"^```(\w+)$", text_of(page), re.M)), kinds)

    def test_session_of_the_readme_lists_the_views_there_are(self):
        listed = re.search(r"^```\n(bf16-.*)\n```", text_of("README.md"), re.M)[1].split()
        told = json.loads(subprocess.run([CKFS, "ls", "--json", self.work / "DeepSeek-V3"],
                                         check=True, stdout=subprocess.PIPE).stdout)
        names = [entry["path"] for entry in told["entries"] if entry["path"] != ".ckfs"]
        self.assertEqual(sorted(names), listed)


class Demo(unittest.TestCase):
    def test_walks_to_its_end(self):
        done = subprocess.run([ROOT / "tests/tools/demo.sh"], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              env={**os.environ, "CKFS_BIN": str(CKFS)})
        self.assertEqual(0, done.returncode, done.stdout)
        self.assertIn("demo: ok", done.stdout)
        self.assertIn("DeepseekV3ForCausalLM, torch.bfloat16", done.stdout)


class Dev(unittest.TestCase):
    def test_without_a_verb_lists_the_verbs(self):
        told = subprocess.run([ROOT / "dev"], check=True, stdout=subprocess.PIPE, text=True).stdout
        for verb in ("build", "test", "demo", "bench", "lint", "fuzz", "package"):
            self.assertRegex(told, rf"(?m)^  {verb}\b")

    def test_refuses_an_unknown_verb_with_the_list(self):
        done = subprocess.run([ROOT / "dev", "frobnicate"], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True)
        self.assertEqual(2, done.returncode)
        self.assertIn("./dev VERB", done.stderr)


if __name__ == "__main__":
    unittest.main()
