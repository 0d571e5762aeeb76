#!/usr/bin/env python3
"""Every ```example of docs/RECIPES.md: the tensors before, as a checkpoint; the rules, as a recipe;
the tensors after, as `ckfs export` writes them, or the error that `ckfs ls` prints."""
import json
import pathlib
import re
import struct
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/golden")]
import naive  # noqa: E402
import ways  # noqa: E402

TEXT = (ROOT / "docs/RECIPES.md").read_text()
EXAMPLES = re.findall(r"^```example\n(.*?)^```", TEXT, re.S | re.M)
TENSOR = re.compile(r"(?P<name>\S+) (?:(?P<dtype>\w+) )?\[(?P<shape>[\d, ]*)\]  (?P<values>.*)")
# The words that a rule and an operation may begin with, from the program's own errors.
RULES = ["take", "select", "drop", "expect", "forbid", "only", "use"]

INTEGERS = {"I32": "i", "I64": "q"}

# The views that rules begin with: values are F32 there, or as they are in the source.
FLOATS, FROM = "fp32-safetensors", "bf16-safetensors@cast=quantized"


def tensor(line):
    match = TENSOR.fullmatch(line)
    assert match, line
    dtype = match["dtype"] or "F32"
    shape = [int(extent) for extent in match["shape"].split(",")]
    if dtype in INTEGERS:
        numbers = [int(value) for value in match["values"].split()]
        data = struct.pack(f"<{len(numbers)}{INTEGERS[dtype]}", *numbers)
        return match["name"], naive.Tensor(dtype, shape, data)
    values = [float(value) for value in match["values"].split()]
    return match["name"], naive.Tensor(dtype, shape, naive.encode(values, dtype))


class Examples(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="ckfs-recipes-")
        self.addCleanup(temporary.cleanup)
        self.work = pathlib.Path(temporary.name)

    def test_there_is_one_for_each_rule_and_operation(self):
        rules = "\n".join(example.split("---\n")[1] for example in EXAMPLES)
        source = (ROOT / "src/view/recipes/operation.cc").read_text()
        operations = re.findall(r'\{"(\w+)", Kind::\w+\}', source) + ["canonical_nan"]
        self.assertGreater(len(operations), 10)
        for word in RULES + operations:
            self.assertIn(f'{{"{word}":', rules)
        for heading in re.findall(r"^### (.*)$", TEXT.split("## Operations")[1], re.M):
            section = TEXT.split(f"### {heading}\n")[1].split("\n#")[0]
            self.assertIn("```example\n", section, heading)

    def test_have_the_result_that_stands_there(self):
        self.assertGreater(len(EXAMPLES), 20)
        for number, example in enumerate(EXAMPLES):
            before, rules, after = example.split("---\n")
            with self.subTest(rules=rules):
                folder = self.work / str(number)
                source = folder / "source"
                source.mkdir(parents=True)
                naive.write(source / "model.safetensors", dict(map(tensor, before.splitlines())))
                (source / "config.json").write_text(json.dumps({"num_heads": 2}))
                lines = rules.splitlines()
                lists = [lines.pop(0) + ", "] if lines[0].startswith('"lists"') else [""]
                start = FROM if any(" BF16 [" in line for line in before.splitlines()) else FLOATS
                text = ",\n".join(lines)
                (folder / "recipe.json").write_text(
                    f'{{"view": "example", {lists[0]}"from": "{start}", "rules": [\n{text}]}}')
                if after.startswith("! "):
                    done = subprocess.run([ways.CKFS, "ls", source, "--recipe", "recipe.json"],
                                          cwd=folder, capture_output=True, text=True)
                    self.assertEqual((1, f"ckfs: {after[2:]}"), (done.returncode, done.stderr))
                    continue
                out = folder / "out"
                ways.run("export", source, "example", out, "--recipe", folder / "recipe.json")
                got = naive.read_all(out)
                want = dict(map(tensor, after.splitlines()))
                self.assertEqual(sorted(want), sorted(got))
                for name, expected in want.items():
                    self.assertEqual((expected.dtype, expected.shape, expected.data),
                                     (got[name].dtype, got[name].shape, got[name].data), name)


if __name__ == "__main__":
    unittest.main()
