"""What is shown and exported of the files beside a torch checkpoint: those of a model, and never what
else lies there (docs/SECURITY.md), whatever config.json and links say."""

import json
import os
import shutil
import unittest

import cli_support
from cli_support import ROOT

TORCH = ROOT / "tests/data/torch/zip-crc-zero/source/pytorch_model.bin"
ZERO = ROOT / "tests/data/deepspeed/zero2-bf16-w2/source"
VIEW = "fp32-consolidated"
MODELS = ["LICENSE", "README.md", "chat_template.jinja", "generation_config.json", "modeling_x.py",
          "preprocessor_config.json", "tokenizer.json", "tokenizer.model", "vocab.json"]
OTHERS = ["id_rsa", "ID_RSA", "id_rsa.pub", ".env", ".netrc", "secrets.json", "train.py", "notes.txt",
          "credentials.yaml", "CONFIG.JSON", "readme.md.bak", "dump.sql", "x.py", "config.json~",
          "tokenizer", "my_tokenizer.json"]
CODE = {"AutoModel": "modeling_x.XModel", "AutoConfig": "../x.Config", "AutoA": "sub/x.A",
        "AutoB": "id_rsa.Key", "AutoC": "/etc/passwd.X", "AutoD": [".env.X", None, 3, ".X", "x"],
        "AutoE": "id_rsa", "AutoF": "./x.B", "": "..", "AutoG": "x\u0000.y", "AutoH": {"a": "x.B"}}


class SideFiles(cli_support.TestCase):
    def fill(self, directory):
        (directory / "config.json").write_text(json.dumps({"auto_map": CODE, "torch_dtype": "float32"}))
        for name in MODELS + OTHERS:
            (directory / name).write_text("content of " + name)
        for folder in ("sub", "tokenizer.d", "LICENSES"):
            (directory / folder).mkdir()
            for name in ("x.py", "vocab.json", "LICENSE"):
                (directory / folder / name).write_text("content below")
        (self.directory / "x.py").write_text("content above")

    def exported(self, source, *options):
        """Names of what an export has beside tensors, and what `ls` lists."""
        out = self.directory / "out"
        self.done("export", source, VIEW, out, *options)
        listed = self.done("ls", source, VIEW, *options).decode().split()
        found = sorted(str(path.relative_to(out)) for path in out.rglob("*")
                       if path.is_file() and not str(path.relative_to(out)).startswith(".ckfs-export.d"))
        self.assertEqual(sorted(listed), found)
        shutil.rmtree(out)
        return [name for name in found if "model" not in name.split(".")[0] or name.endswith(".py")]

    def check(self, source, *options, beside=None):
        self.assertEqual(self.exported(source, *options), sorted([*MODELS, "config.json"]))
        said = self.done("inspect", source, *options).decode()
        for name in MODELS if beside else []:
            how = r" \(--config\)" if "--config" in options else ""
            self.assertRegex(said, rf"beside the source: .*\b{name}.* taken from {beside}{how}\n")
        self.assertNotIn("id_rsa", said)

    def test_of_a_file_and_of_its_directory(self):
        model = self.directory / "model"
        model.mkdir()
        shutil.copy(TORCH, model / "model.pt")
        self.fill(model)
        self.check(model / "model.pt", beside=model)
        self.check(model)

    def test_of_the_directory_above_a_tag(self):
        run = self.directory / "run"
        shutil.copytree(ZERO, run)
        self.fill(run)
        (tag,) = [path for path in run.iterdir() if path.name.startswith("global_step")]
        self.check(tag, beside=run)
        self.check(run)

    def test_of_another_directory(self):
        model, config = self.directory / "model", self.directory / "config"
        model.mkdir()
        config.mkdir()
        shutil.copy(TORCH, model / "model.pt")
        (model / "tokenizer.json").write_text("of the other")
        self.fill(config)
        self.check(model / "model.pt", "--config", config, beside=config)

    def test_links_are_named(self):
        model = self.directory / "model"
        model.mkdir()
        shutil.copy(TORCH, model / "model.pt")
        secret = self.directory / "id_rsa"
        secret.write_text("secret")
        (model / "config.json").write_text("{}")
        os.symlink(secret, model / "README.md")
        os.symlink("/etc", model / "LICENSE")  # a directory: no side file
        os.symlink("gone", model / "vocab.json")
        os.mkfifo(model / "tokenizer.json")
        for source in (model, model / "model.pt"):
            self.assertEqual(self.exported(source), ["README.md", "config.json"])
            self.assertIn(str(secret), self.done("inspect", source).decode())

    def test_nothing_without_a_config(self):
        model = self.directory / "model"
        model.mkdir()
        shutil.copy(TORCH, model / "model.pt")
        self.fill(model)
        (model / "config.json").unlink()
        for source in (model, model / "model.pt"):
            self.assertEqual(self.exported(source), [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
