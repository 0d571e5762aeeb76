#!/usr/bin/env python3
"""Quantizing views against what the tools wrote on the CPU: every tensor, and the configuration.

Every view comes out of `ckfs export` and of one more of the ways (ways.RUNS), which take turns.
"""
import itertools
import json
import pathlib
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "golden"), str(TESTS / "support"), str(TESTS / "tools")]
import naive  # noqa: E402
import quantized_digest  # noqa: E402
import ways  # noqa: E402
from counting_source import CountingSource  # noqa: E402

DATA = TESTS / "data" / "quantize"
CASES = {path.parent.name: json.loads(path.read_text())
         for path in sorted(DATA.glob("*/expected.json"))}
VIEWS = [(case, view) for case, expected in CASES.items() for view in expected["views"]]


def config_of(directory):
    return json.loads((directory / "config.json").read_text())


def as_sets(config):
    """The tool of FP8 writes these lists in no order."""
    if config is None:
        return None
    return {key: sorted(value) if key in ("modules_to_not_convert", "ignore") else value
            for key, value in config.items()}


class QuantizingView(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="ckfs-golden-")
        self.addCleanup(temporary.cleanup)
        self.work = pathlib.Path(temporary.name)

    def fetch(self, case, view, way, engine=()):
        out = self.work / f"out{len(list(self.work.iterdir()))}"
        out.mkdir()
        ways.WAYS[way](DATA / case / "source", view, out, self.work, list(engine))
        return out

    def test_has_the_tensors_of_the_tool_by_every_way(self):
        runs = itertools.cycle(ways.RUNS)
        for case, view in VIEWS:
            want = CASES[case]["views"][view]["tensors"]
            for way, engine in [("export", ()), next(runs)]:
                with self.subTest(case=case, view=view, way=way, engine=" ".join(engine)):
                    got = quantized_digest.tensors(self.fetch(case, view, way, engine))
                    self.assertEqual(sorted(want), sorted(got))
                    different = [name for name in want if want[name] != got[name]]
                    self.assertEqual([], different)

    def test_has_the_configuration_of_the_tool_and_the_rest_of_the_sources(self):
        for case, view in VIEWS:
            with self.subTest(case=case, view=view):
                source = config_of(DATA / case / "source")
                got = config_of(self.fetch(case, view, "export"))
                want = CASES[case]["views"][view]["config"]
                quantization = got.pop("quantization_config", None)
                if view.startswith("fp8") and want is not None:
                    quantization, want = as_sets(quantization), as_sets(want)
                    tied = source.get("tie_word_embeddings", False)
                    for key in ("modules_to_not_convert", "ignore"):
                        if tied and key in quantization:
                            quantization[key].remove("lm_head")  # on purpose: FORMATS
                self.assertEqual(want, quantization)
                source.pop("quantization_config", None)
                if "exact=1" in view:
                    source.pop("expert_dtype", None)
                self.assertEqual(source, got)

    def test_is_refused_where_the_tool_refuses_or_writes_something_wrong(self):
        for case, expected in CASES.items():
            for view in expected["refused"]:
                with self.subTest(case=case, view=view):
                    done = subprocess.run(
                        [ways.CKFS, "export", str(DATA / case / "source"), view,
                         str(self.work / f"{case}-{view}")],
                        capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
                    self.assertNotEqual(0, done.returncode)
                    self.assertRegex(done.stderr, r"weight")  # the tensor by its name

    def test_is_read_back_as_its_codes_and_scales_say(self):
        """A view as a source: the BF16 view of what was exported, by arithmetic of its own."""
        for case, view in [("fp8-block-deepseek-v3", "fp8-safetensors"),
                           ("ct-rows-qwen3-moe", "ct-safetensors"),
                           ("ct-rows-qwen3-moe", "ct-safetensors@scheme=W8A8"),
                           ("ct-fp8-block-deepseek-v3", "ct-safetensors@scheme=FP8_BLOCK"),
                           ("ct-w4a16-llama", "ct-safetensors@scheme=W4A16"),
                           ("ct-nvfp4-qwen3-moe", "ct-safetensors@scheme=NVFP4A16,fuse=experts"),
                           ("bnb-nf4", "nf4-safetensors")]:
            with self.subTest(case=case, view=view):
                made = self.fetch(case, view, "export")
                shutil.rmtree(made / ".ckfs-export.d", ignore_errors=True)
                want = naive.view(made, "BF16")
                back = self.work / f"back{len(list(self.work.iterdir()))}"
                ways.run("export", made, "bf16-safetensors@cast=all", back)
                got = naive.read_all(back)
                self.assertEqual(sorted(want), sorted(got))
                for name, tensor in want.items():
                    self.assertEqual((tensor.dtype, tensor.shape),
                                     (got[name].dtype, got[name].shape), name)
                    self.assertTrue(tensor.data == got[name].data, name)

    def test_takes_any_range(self):
        """Ranges that begin and end within units of codes and scales."""
        for case, view in [("values-groups", "ct-safetensors@scheme=W4A16_ASYM"),
                           ("ct-nvfp4-qwen3-moe", "ct-safetensors@scheme=NVFP4A16"),
                           ("fp8-block-llama", "fp8-safetensors"), ("bnb-nf4", "nf4-safetensors")]:
            whole = self.fetch(case, view, "export")
            for path in sorted(whole.glob("*.safetensors")):
                data = path.read_bytes()
                for begin, size in ((8, 64), (len(data) // 3, 999), (len(data) // 2, 1),
                                    (len(data) - 77, 77), (len(data) // 5, len(data) // 2)):
                    with self.subTest(case=case, view=view, begin=begin, size=size):
                        got = ways.run("cat", DATA / case / "source", f"{view}/{path.name}",
                                       "--offset", begin, "--length", size)
                        self.assertTrue(data[begin:begin + size] == got)


def files_of(directory):
    return {str(path.relative_to(directory)): path.read_bytes()
            for path in sorted(directory.rglob("*")) if path.is_file()}


def write_model(directory, weights, rows, columns):
    """A model of so many BF16 matrices, each with other values."""
    directory.mkdir()
    header, data = {}, b""
    for i in range(weights):
        values = bytearray(random.Random(i).randbytes(rows * columns * 2))
        values[1::2] = bytes(0x3c + (byte & 0x83) for byte in values[1::2])  # of one size
        header[f"model.layers.{i}.mlp.up_proj.weight"] = {
            "dtype": "BF16", "shape": [rows, columns],
            "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (directory / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    (directory / "config.json").write_text('{"model_type": "llama"}')
    return len(data)


class Reads(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="ckfs-golden-")
        self.addCleanup(temporary.cleanup)
        self.work = pathlib.Path(temporary.name)
        self.data = write_model(self.work / "model", 6, 1024, 1024)
        self.source = CountingSource(self.work / "model", self.work / "counted")
        self.addCleanup(self.source.close)

    def bytes_read(self):
        counts = self.source.counts()
        self.source.reset()
        return sum(file["bytes"] for file in counts["files"].values())

    def test_of_an_export_are_the_values_once(self):
        for view in ("fp8-safetensors", "fp8-safetensors@block=channel", "nf4-safetensors",
                     "ct-safetensors@scheme=W4A16_ASYM", "ct-safetensors@scheme=MXFP4A16"):
            with self.subTest(view=view):
                self.bytes_read()
                ways.run("export", self.source.path, view, self.work / view)
                self.assertLess(self.bytes_read(), self.data * 1.05)
                want = quantized_digest.tensors(self.work / view)
                again = self.work / f"cat {view}"
                again.mkdir()
                ways.by_cat(self.work / "model", view, again, self.work, [])
                self.assertEqual(want, quantized_digest.tensors(again))

    def test_of_an_export_with_scales_of_whole_tensors_are_the_values_twice(self):
        """Once for the largest values, which stay however little memory there is."""
        for view in ("ct-safetensors@scheme=NVFP4A16", "fp8-safetensors@block=tensor"):
            with self.subTest(view=view):
                self.bytes_read()
                ways.run("export", "--memory", "64MiB", self.source.path, view, self.work / view)
                self.assertLess(self.bytes_read(), self.data * 2.05)

    def test_of_ranks_are_together_those_of_one_process(self):
        for view, times in (("fp8-safetensors", 1), ("ct-safetensors@scheme=W4A16_ASYM", 1),
                            ("ct-safetensors@scheme=NVFP4A16", 2),
                            ("fp8-safetensors@block=tensor", 2)):
            with self.subTest(view=view):
                ways.run("export", self.work / "model", view, self.work / f"{view} serial")
                for world in (1, 2, 3):
                    self.bytes_read()
                    out = self.work / f"{view} {world}"
                    for rank in range(world):
                        ways.run("export", "--rank", rank, "--world", world, self.source.path,
                                 view, out)
                    self.assertLess(self.bytes_read(), self.data * (times + 0.05))
                    self.assertEqual(files_of(self.work / f"{view} serial"), files_of(out))

    def test_of_some_codes_are_their_rows_of_granules(self):
        self.bytes_read()
        size = dict(ways.listing(self.source.path, "fp8-safetensors"))["model.safetensors"]
        headers = self.bytes_read()
        ways.run("cat", self.source.path, "fp8-safetensors/model.safetensors", "--offset",
                 size - 100_000, "--length", 4096)
        # Five rows, of 128 that share scales, perhaps two times.
        self.assertLess(self.bytes_read(), headers + 2 * 128 * 1024 * 2 + (64 << 10))

    def test_of_a_scale_are_its_weights_values(self):
        self.bytes_read()
        ways.listing(self.source.path, "fp8-safetensors")
        headers = self.bytes_read()
        ways.run("cat", self.source.path, "fp8-safetensors/model.safetensors", "--offset", 2048,
                 "--length", 64)
        self.assertLess(self.bytes_read(), headers + 2 * self.data // 6 + (64 << 10))


if __name__ == "__main__":
    unittest.main(defaultTest=ways.sanitized("QuantizingView.test_takes_any_range"))
