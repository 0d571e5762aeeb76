#!/usr/bin/env python3
"""Views of checkpoints written by real tools, against what the reference tools made of them.

Every view comes out of `ckfs cat`, `ckfs export` and a mount, with both readers, 1 and 8 threads,
tiles of the normal size and of 4 KiB, every two of these together in some run (ways.RUNS): all must
give the same bytes, and these must be the reference's.
"""
import functools
import json
import pathlib
import shutil
import sys
import tempfile
import unittest

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1] / "tools"),
                str(pathlib.Path(__file__).resolve().parent)]
import digest  # noqa: E402
import naive  # noqa: E402
import ways  # noqa: E402

CASES = sorted(path.parent.name for path in ways.DATA.glob("*/expected.json"))
# Every view of which a reference is known.
GOLDEN = [(case, view) for case in CASES
          for view in json.loads((ways.DATA / case / "expected.json").read_text())]
DTYPES = {"bf16": ("BF16", "bfloat16"), "fp16": ("F16", "float16"), "fp32": ("F32", "float32")}


@functools.cache
def exported(case, view):
    """An export of the view, which the tests of this file share and do not change."""
    out = pathlib.Path(tempfile.mkdtemp(prefix="ckfs-golden-"))
    unittest.addModuleCleanup(shutil.rmtree, out)
    ways.run("export", ways.DATA / case / "source", view, out / "out")
    return out / "out"


class WorkDirectory(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory(prefix="ckfs-golden-")
        self.addCleanup(self.temporary.cleanup)
        self.work = pathlib.Path(self.temporary.name)

    def fetch(self, case, view, way, engine=()):
        """The view's directory, by one way."""
        out = self.work / f"out{len(list(self.work.iterdir()))}"
        out.mkdir()
        ways.WAYS[way](ways.DATA / case / "source", view, out, self.work, list(engine))
        return out


class View(WorkDirectory):
    def test_has_the_bytes_of_the_reference_by_every_way(self):
        for case, view in GOLDEN:
            expected = json.loads((ways.DATA / case / "expected.json").read_text())[view]
            first = None
            for way, engine in ways.golden_runs():
                with self.subTest(case=case, view=view, way=way, engine=" ".join(engine)):
                    out = self.fetch(case, view, way, engine)
                    if first is None:
                        self.assertEqual([], list(digest.differences(expected, str(out))))
                        first = ways.files_of(out)
                    self.assertTrue(first == ways.files_of(out), "other bytes than before")

    def test_in_f32_and_f16_equals_arithmetic_by_hand(self):
        for case in CASES:
            for view, (dtype, _) in (("fp32-safetensors", DTYPES["fp32"]),
                                     ("fp16-safetensors", DTYPES["fp16"])):
                with self.subTest(case=case, view=view):
                    want = naive.view(ways.DATA / case / "source", dtype)
                    got = naive.read_all(exported(case, view))
                    self.assertEqual(sorted(want), sorted(got))
                    for name, tensor in want.items():
                        self.assertEqual((tensor.dtype, tensor.shape),
                                         (got[name].dtype, got[name].shape), name)
                        data = digest.canonical_nan(tensor.dtype, got[name].data)
                        expected = digest.canonical_nan(tensor.dtype, tensor.data)
                        self.assertTrue(data == expected, name)

    def test_consolidated_holds_the_tensors_of_the_fp32_view(self):
        for case in CASES:
            with self.subTest(case=case):
                consolidated = exported(case, "fp32-consolidated")
                plain = exported(case, "fp32-safetensors")
                got, want = naive.read_all(consolidated), naive.read_all(plain)
                self.assertEqual(sorted(want), sorted(got))
                for name in want:
                    self.assertTrue(want[name].data == got[name].data, name)
                # Small enough for one file under zero_to_fp32's name.
                self.assertTrue((consolidated / "model.safetensors").is_file())
                self.assertFalse((consolidated / "model.safetensors.index.json").exists())

    def test_of_a_plain_source_in_its_own_dtype_has_the_source_tensors(self):
        source = naive.read_all(ways.DATA / "llama-bf16" / "source")
        got = naive.read_all(self.fetch("llama-bf16", "bf16-safetensors", "mount"))
        self.assertEqual(sorted(source), sorted(got))
        for name in source:
            self.assertTrue(source[name].data == got[name].data, name)

    def test_named_source_is_the_source(self):
        for case, way in ways.in_turn(CASES, ways.WAYS):
            with self.subTest(case=case, way=way):
                out = self.fetch(case, "source", way)
                self.assertTrue(ways.files_of(ways.DATA / case / "source")
                                == ways.files_of(out))


# What only says how weights are quantized.
QUANTIZATION_FILES = {"hf_quant_config.json", "quantize_config.json", "quant_config.json"}


def shown_files(case):
    """The files of the source, but for those of which dense weights leave nothing."""
    files = ways.files_of(ways.DATA / case / "source")
    for path in list(files):
        auxiliary = path.endswith(".safetensors") and all(
            name.endswith(naive.AUXILIARY) for name in naive.read(ways.DATA / case / "source" / path))
        if auxiliary or path in QUANTIZATION_FILES:
            del files[path]
    return files


def say_dtype(config, name):
    """Gives every dtype at any level that name, and drops quantizations. -> whether the top has one"""
    config.pop("quantization_config", None)
    for value in config.values():
        if isinstance(value, dict):
            say_dtype(value, name)
    keys = {"dtype", "torch_dtype"} & set(config)
    config.update({key: name for key in keys})
    return bool(keys)


class SideFiles(WorkDirectory):
    def test_are_the_source_files_except_config_and_index(self):
        for case in CASES:
            for name in DTYPES:
                view = f"{name}-safetensors"
                with self.subTest(case=case, view=view):
                    got = ways.files_of(exported(case, view))
                    want = shown_files(case)
                    # Mirrored shards: the same names throughout.
                    self.assertEqual(sorted(want), sorted(got))
                    for path in want:
                        if not path.endswith((".safetensors", ".index.json")) and \
                                path != "config.json":
                            self.assertTrue(want[path] == got[path], path)

    def test_config_says_the_new_dtype_and_is_otherwise_untouched(self):
        for case in CASES:
            source = (ways.DATA / case / "source" / "config.json").read_text()
            for name, (_, torch_name) in DTYPES.items():
                view = f"{name}-safetensors"
                with self.subTest(case=case, view=view):
                    text = ways.run("cat", ways.DATA / case / "source", f"{view}/config.json").decode()
                    want = json.loads(source)
                    if not say_dtype(want, torch_name):
                        want["torch_dtype"] = torch_name
                    # Order of the members, too.
                    self.assertEqual(json.dumps(want), json.dumps(json.loads(text)))
                    # Every line that stays is a line of the source.
                    lines = {line.rstrip(",") for line in source.splitlines()}
                    strange = [line for line in text.splitlines()
                               if line.rstrip(",") not in lines and "dtype" not in line]
                    self.assertEqual([], strange)

    def test_config_is_the_text_of_the_reference_tool(self):
        for case, view in GOLDEN:
            with self.subTest(case=case, view=view):
                reference = ways.DATA / case / "expected" / view / "config.json"
                if not reference.exists():  # the tool writes only one view of this source
                    continue
                got = ways.run("cat", ways.DATA / case / "source", f"{view}/config.json")
                self.assertEqual(reference.read_text(), got.decode())

    def test_index_names_every_tensor_once_with_its_file_and_the_total(self):
        for case in CASES:
            for name in DTYPES:
                view = f"{name}-safetensors"
                with self.subTest(case=case, view=view):
                    out = exported(case, view)
                    shards = list(out.glob("*.safetensors"))
                    path = out / "model.safetensors.index.json"
                    # One shard of several may be left: the others held nothing but scales.
                    self.assertEqual(shards != [out / "model.safetensors"], path.exists())
                    if not path.exists():
                        continue
                    index = json.loads(path.read_text())
                    where, total = {}, 0
                    for path in sorted(out.glob("*.safetensors")):
                        for tensor, value in naive.read(path).items():
                            self.assertNotIn(tensor, where)
                            where[tensor] = path.name
                            total += len(value.data)
                    self.assertEqual(where, index["weight_map"])
                    self.assertEqual(total, index["metadata"]["total_size"])


class Listing(WorkDirectory):
    def test_sizes_are_those_of_the_files(self):
        for case, name in ways.in_turn(CASES, DTYPES):
            view = f"{name}-safetensors"
            with self.subTest(case=case, view=view):
                listed = dict(ways.listing(ways.DATA / case / "source", view))
                # Not by `cat`, whose pieces end where the listing says that a file does.
                for out in (exported(case, view), self.fetch(case, view, "mount")):
                    self.assertEqual(listed, {path: len(data) for path, data in ways.files_of(out).items()})


if __name__ == "__main__":
    unittest.main(defaultTest=ways.sanitized(
        "View.test_has_the_bytes_of_the_reference_by_every_way"))
