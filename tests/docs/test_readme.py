#!/usr/bin/env python3
"""Every command of the README's ```sh blocks works, in order, in a directory with a checkpoint."""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
CKFS = pathlib.Path(os.environ.get("CKFS_BIN", ROOT / "build/release/ckfs")).resolve()


def blocks(kind):
    return re.findall(rf"^```{kind}\n(.*?)^```", (ROOT / "README.md").read_text(), re.S | re.M)


class Readme(unittest.TestCase):
    def test_commands_of_the_quick_start_work(self):
        with tempfile.TemporaryDirectory(prefix="ckfs-readme-") as work:
            subprocess.run([sys.executable, ROOT / "tests/tools/make_demo.py",
                            pathlib.Path(work, "DeepSeek-V3")], check=True,
                           stdout=subprocess.DEVNULL)
            # `python` is the reader's own one with safetensors and torch.
            path = os.pathsep.join([str(CKFS.parent), str(ROOT / ".venv/hf/bin"),
                                    os.environ["PATH"]])
            script = "set -euo pipefail\n" + "".join(blocks("sh"))
            # The line of the session at the top, as it is typed.
            typed = re.search(r"^\$ (python -c .*)$", (ROOT / "README.md").read_text(), re.M)[1]
            script = script.replace("ckfs stats view\n", f"{typed}\nckfs stats view\n")
            try:
                done = subprocess.run(["bash", "-x"], input=script, cwd=work, text=True,
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                      env={**os.environ, "PATH": path, "HF_HUB_OFFLINE": "1"})
            finally:
                mountpoint = pathlib.Path(work, "view")
                if os.path.ismount(mountpoint):
                    subprocess.run([CKFS, "umount", mountpoint], check=True)
            self.assertEqual(0, done.returncode, done.stdout)
            index = json.loads(
                pathlib.Path(work, "converted/model.safetensors.index.json").read_text())
            self.assertIn("lm_head.weight", index["weight_map"])
            self.assertIn("DeepSeek-V3-BF16", os.listdir(work))

    def test_is_short_and_its_blocks_are_either_run_or_shown(self):
        text = (ROOT / "README.md").read_text()
        self.assertLessEqual(len(text.splitlines()), 200)
        # `console` is the installation: tests/package runs it.
        self.assertLessEqual(set(re.findall(r"^```(\w+)$", text, re.M)), {"sh", "console"})

    def test_session_at_the_top_lists_the_views_there_are(self):
        session = re.search(r"\$ ls view\n(.*)\n", (ROOT / "README.md").read_text())[1].split()
        case = ROOT / "tests/data/hf/deepseek-v3-fp8/source"
        told = json.loads(subprocess.run([CKFS, "ls", "--json", case], check=True,
                                         stdout=subprocess.PIPE).stdout)
        names = [entry["path"] for entry in told["entries"] if entry["path"] != ".ckfs"]
        self.assertEqual(sorted(names), session)


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
