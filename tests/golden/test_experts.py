#!/usr/bin/env python3
"""Layouts of experts that no tool writes, against the formulas: element by element, in Python. And
what happens to models whose experts are not all there, and to families that a file adds."""
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1] / "tools"),
                str(pathlib.Path(__file__).resolve().parent)]
import digest  # noqa: E402
import naive  # noqa: E402
import ways  # noqa: E402

RECIPES = ways.DATA.parent / "recipes"
VIEW = "bf16-safetensors"


class Stack:
    """A stored tensor of experts: [i, j, k] and [i, j] are the two bytes of an element."""

    def __init__(self, tensor):
        self.shape, self.data = tensor.shape, tensor.data

    def __getitem__(self, index):
        flat = 0
        for i, extent in zip(index, self.shape):
            assert 0 <= i < extent
            flat = flat * extent + i
        return self.data[2 * flat:2 * flat + 2]


def made(shape, element):
    """The tensor of that shape with element(i, j, ...)."""
    indexes = [()]
    for extent in shape:
        indexes = [index + (i,) for index in indexes for i in range(extent)]
    return naive.Tensor("BF16", list(shape), b"".join(element(*index) for index in indexes))


def halves(source, prefix, transposed, interleaved):
    """{name: Tensor} of the linear experts of one layer: `prefix` is what stands before
    gate_up_proj and down_proj in `source`."""
    up, down = Stack(source[prefix + "gate_up_proj"]), Stack(source[prefix + "down_proj"])
    if transposed:
        experts, hidden, both = up.shape
    else:
        experts, both, hidden = up.shape
    inner, found = both // 2, {}
    for e in range(experts):
        def row(i, part, e=e):
            column = 2 * i + part if interleaved else i + part * inner
            return lambda h: up[e, h, column] if transposed else up[e, column, h]
        for part, name in ((0, "gate_proj"), (1, "up_proj")):
            found[f"{prefix}{e}.{name}.weight"] = made(
                (inner, hidden), lambda i, h, part=part, row=row: row(i, part)(h))
        found[f"{prefix}{e}.down_proj.weight"] = made(
            (hidden, inner),
            lambda h, i, e=e: down[e, i, h] if transposed else down[e, h, i])
    for name, parts in (("gate_up_proj", ("gate_proj", "up_proj")), ("down_proj", ("down_proj",))):
        if prefix + name + "_bias" not in source:
            continue
        bias = Stack(source[prefix + name + "_bias"])
        for e in range(experts):
            for part, target in enumerate(parts):
                found[f"{prefix}{e}.{target}.bias"] = made(
                    (bias.shape[1] // len(parts),),
                    lambda i, e=e, part=part: bias[e, i * len(parts) + part])
    return found


def linear_of(source, transposed, interleaved, rename=()):
    source = dict(source)
    for old, new in rename:
        for name in [name for name in source if old in name]:
            source[name.replace(old, new)] = source.pop(name)
    want = {}
    for name, tensor in source.items():
        if name.endswith(".experts.gate_up_proj"):
            want |= halves(source, name.removesuffix("gate_up_proj"), transposed, interleaved)
        elif ".experts." not in name:
            want[name] = tensor
    return want


class WorkDirectory(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="ckfs-experts-")
        self.addCleanup(temporary.cleanup)
        self.work = pathlib.Path(temporary.name)

    def export(self, source, view, *options):
        out = self.work / f"out{len(list(self.work.iterdir()))}"
        ways.run("export", source, view, out, *options)
        return out

    def assert_same(self, want, got):
        self.assertEqual(sorted(want), sorted(got))
        for name in want:
            self.assertEqual((want[name].dtype, want[name].shape),
                             (got[name].dtype, got[name].shape), name)
            self.assertTrue(want[name].data == got[name].data, name)

    def changed(self, case, config=None, drop=(), reshape=None):
        """A copy of a case's source, as one file."""
        out = self.work / f"source{len(list(self.work.iterdir()))}"
        out.mkdir()
        tensors = naive.read_all(ways.DATA / case / "source")
        for name in drop:
            del tensors[name]
        for name, shape in (reshape or {}).items():
            tensors[name].shape = shape
        naive.write(out / "model.safetensors", tensors)
        text = json.loads((ways.DATA / case / "source" / "config.json").read_text())
        (out / "config.json").write_text(json.dumps(text | (config or {})))
        return out

    def refused(self, source, view, *options):
        done = subprocess.run([ways.CKFS, "ls", source, view, *options], capture_output=True,
                              text=True)
        self.assertEqual(1, done.returncode, done.stdout)
        return done.stderr


class Linear(WorkDirectory):
    def test_of_stacked_families_is_by_the_formulas(self):
        granite = ((".input_linear.weight", ".experts.gate_up_proj"),
                   (".output_linear.weight", ".experts.down_proj"))
        for case, transposed, interleaved, rename in (
                ("experts-gpt-oss", True, True, ()), ("experts-llama4", True, False, ()),
                ("experts-qwen3-vl-moe", True, False, ()),
                ("experts-granitemoe", False, False, granite)):
            with self.subTest(case=case):
                source = ways.DATA / case / "source"
                want = linear_of(naive.read_all(source), transposed, interleaved, rename)
                self.assertGreater(sum(".experts." in name for name in want), 10)
                self.assert_same(want, naive.read_all(self.export(source, VIEW + "@experts=linear")))


class RoundTrip(WorkDirectory):
    """From each layout to each other: the same bytes as from the source."""

    def test_router_biases_stay_f32_without_being_asked_for(self):
        source = ways.DATA / "experts-deepseek-v3" / "source"
        for layout in ("linear", "fused"):
            self.assert_same(
                naive.read_all(self.export(source, f"{VIEW}@cast=quantized,experts={layout}")),
                naive.read_all(self.export(source, f"{VIEW}@experts={layout}")))

    def test_of_every_case(self):
        layouts = {"experts-gpt-oss": ["linear", "fused", "packed"],
                   "experts-llama4": ["linear", "fused", "packed"],
                   "experts-granitemoe": ["linear", "fused", "packed"],
                   "experts-qwen3-vl-moe": ["linear", "fused", "packed"]}
        for case in sorted(path.name for path in ways.DATA.glob("experts-*")):
            source = ways.DATA / case / "source"
            known = layouts.get(case, ["linear", "fused"])
            views = {layout: f"{VIEW}@cast=quantized,experts={layout}" for layout in known}
            first = {layout: self.export(source, view) for layout, view in views.items()}
            for layout in known:
                want = naive.read_all(first[layout])
                for begin in known:
                    with self.subTest(case=case, layout=layout, begin=begin):
                        again = self.export(first[begin], views[layout])
                        self.assert_same(want, naive.read_all(again))
            if "packed" in known:  # the Hub's own form
                self.assert_same(naive.read_all(source), naive.read_all(first["packed"]))


class Files(WorkDirectory):
    def test_of_fused_experts_are_one_for_each_layer(self):
        for case in ("experts-mixtral", "experts-qwen3-vl-moe"):
            with self.subTest(case=case):
                out = self.export(ways.DATA / case / "source", VIEW + "@experts=fused")
                files = sorted(path.name for path in out.glob("*.safetensors"))
                self.assertEqual(["model-layer-00000.safetensors", "model-layer-00001.safetensors",
                                  "model-rest.safetensors"], files)
                index = json.loads((out / "model.safetensors.index.json").read_text())
                total = 0
                for name, file in index["weight_map"].items():
                    layer = re.search(r"(?:^|\.)layers\.(\d+)\.", name)
                    want = f"model-layer-{int(layer[1]):05}" if layer else "model-rest"
                    self.assertEqual(want + ".safetensors", file, name)
                    total += len(naive.read(out / file)[name].data)
                self.assertEqual(total, index["metadata"]["total_size"])

    def test_are_split_where_a_size_is_given_and_in_other_layouts(self):
        source = ways.DATA / "experts-mixtral" / "source"
        for view in ("experts=fused,max_shard=30KB", "experts=linear,max_shard=30KB"):
            out = self.export(source, f"{VIEW}@{view}")
            count = len(list(out.glob("*.safetensors")))
            self.assertGreater(count, 2)
            self.assertTrue((out / f"model-00001-of-{count:05}.safetensors").is_file())
        self.assertTrue((self.export(source, VIEW + "@experts=linear") /
                         "model.safetensors").is_file())

    def test_have_the_config_and_the_side_files_of_the_plain_view(self):
        source = self.changed("experts-mixtral")
        (source / "tokenizer.json").write_text("{}")
        plain, fused = self.export(source, VIEW), self.export(source, VIEW + "@experts=fused")
        for name in ("config.json", "tokenizer.json"):
            self.assertEqual((plain / name).read_bytes(), (fused / name).read_bytes())


class OddExperts(WorkDirectory):
    def test_that_are_missing_are_named(self):
        name = "model.layers.1.block_sparse_moe.experts.{}.w{}.weight"
        source = self.changed("experts-mixtral", drop=[name.format(5, 1)])
        error = self.refused(source, VIEW + "@experts=fused")
        self.assertRegex(error, r"experts=fused: mixtral\.json:\d+: "
                         r'"model\.layers\.1\.mlp\.experts\.gate_up_proj": e 5 is missing')
        # The other views are there.
        self.export(source, VIEW + "@experts=linear")

    def test_that_are_fewer_than_the_config_says(self):
        name = "model.layers.1.block_sparse_moe.experts.11.w{}.weight"
        source = self.changed("experts-mixtral", drop=[name.format(i) for i in (1, 2, 3)])
        error = self.refused(source, VIEW + "@experts=fused")
        self.assertIn('"model.layers.1.mlp.experts.gate_up_proj": 11 values of e where there must '
                      "be 12", error)

    def test_of_another_shape(self):
        name = "model.layers.0.block_sparse_moe.experts.3.w2.weight"
        source = self.changed("experts-mixtral", reshape={name: [20, 24]})
        error = self.refused(source, VIEW + "@experts=fused")
        self.assertIn('"model.layers.0.mlp.experts.down_proj": stack: part 3 has shape [20, 24]',
                      error)

    def test_whose_other_half_is_missing(self):
        name = "model.layers.1.block_sparse_moe.experts.{}.w3.weight"
        source = self.changed("experts-mixtral", drop=[name.format(e) for e in range(12)])
        self.assertIn('"model.layers.1.mlp.experts.0.w1.weight": no tensor matches',
                      self.refused(source, VIEW + "@experts=fused"))

    def test_of_a_model_without_any(self):
        self.assertIn('no layout of experts is known for this model (model_type llama)',
                      self.refused(ways.DATA / "llama-bf16" / "source", VIEW + "@experts=fused"))
        source = self.changed("experts-mixtral", drop=[
            name for name in naive.read_all(ways.DATA / "experts-mixtral" / "source")
            if ".experts." in name])
        self.assertIn("no tensor fits", self.refused(source, VIEW + "@experts=fused"))
        self.assertIn("no tensor fits", self.refused(source, VIEW + "@experts=linear"))

    def test_that_are_zero_have_a_gate_and_an_up_projection_at_most(self):
        """LongCat Flash, as transformers saves it (4 experts and 3 zero ones), and as the Hub has it."""
        e = "model.layers.0.mlp.experts."
        config = {"model_type": "longcat_flash", "n_routed_experts": 4, "zero_expert_num": 3}

        def source(name, gates):
            tensors, count = {"model.norm.weight": ("BF16", [2])}, 0
            for i in range(gates):
                tensors[f"{e}{i}.gate_proj.weight"] = ("BF16", [3, 2])
                tensors[f"{e}{i}.up_proj.weight"] = ("BF16", [3, 2])
            for i in range(4):
                tensors[f"{e}{i}.down_proj.weight"] = ("BF16", [2, 3])
            found = {}
            for tensor, (dtype, shape) in tensors.items():
                size = 2 * shape[0] * (shape[1] if len(shape) == 2 else 1)
                count += 1
                found[tensor] = naive.Tensor(dtype, shape, bytes([count, 0x3F] * (size // 2)))
            folder = self.work / name
            folder.mkdir()
            naive.write(folder / "model.safetensors", found)
            (folder / "config.json").write_text(json.dumps(config))
            return folder, found

        for gates in (4, 7):
            folder, tensors = source(f"of-{gates}", gates)
            fused = naive.read_all(self.export(folder, VIEW + "@experts=fused"))
            self.assertEqual([gates, 6, 2], fused[e + "gate_up_proj"].shape)
            self.assertEqual([4, 2, 3], fused[e + "down_proj"].shape)
            self.assertEqual(fused[e + "gate_up_proj"].data, b"".join(
                tensors[f"{e}{i}.{half}_proj.weight"].data
                for i in range(gates) for half in ("gate", "up")))
            # And back.
            again = self.work / f"fused-{gates}"
            again.mkdir()
            naive.write(again / "model.safetensors", fused)
            (again / "config.json").write_text(json.dumps(config))
            linear = naive.read_all(self.export(again, VIEW + "@experts=linear"))
            self.assertEqual({name: (t.shape, t.data) for name, t in tensors.items()},
                             {name: (t.shape, t.data) for name, t in linear.items()})
        for gates, message in ((6, r"is 6 here and must be 7|6.*7"), (3, "3.*4"), (8, "8.*7")):
            self.assertRegex(self.refused(source(f"of-{gates}", gates)[0],
                                          VIEW + "@experts=fused"), message)

    def test_of_two_sizes_are_refused(self):
        source = self.changed("experts-mixtral", config={"model_type": "ernie4_5_vl_moe"})
        self.assertIn("no layout of experts is known", self.refused(source, VIEW + "@experts=fused"))


class Quantized(WorkDirectory):
    def test_experts_are_decoded_and_then_laid_out_mtp_too(self):
        source = ways.DATA / "deepseek-v3-fp8" / "source"
        plain = naive.read_all(self.export(source, VIEW))
        got = naive.read_all(self.export(source, VIEW + "@experts=fused"))
        layers = {name.split(".")[2] for name in got if name.endswith(".experts.gate_up_proj")}
        self.assertEqual({name.split(".")[2] for name in plain if ".experts." in name}, layers)
        config = json.loads((source / "config.json").read_text())
        self.assertIn(str(config["num_hidden_layers"]), layers)  # the layer of MTP
        self.assertEqual([], [name for name in got if re.search(r"\.experts\.\d", name)])
        for layer in layers:
            prefix = f"model.layers.{layer}.mlp.experts."
            count = got[prefix + "down_proj"].shape[0]
            for fused, parts in (("gate_up_proj", ("gate_proj", "up_proj")),
                                 ("down_proj", ("down_proj",))):
                want = b"".join(plain[f"{prefix}{e}.{part}.weight"].data
                                for e in range(count) for part in parts)
                self.assertTrue(want == got[prefix + fused].data, prefix + fused)


class OwnRecipes(WorkDirectory):
    expected = json.loads((ways.DATA / "experts-mixtral" / "expected.json").read_text())[
        VIEW + "@experts=fused"]

    def test_add_a_family(self):
        source = self.changed("experts-mixtral", config={"model_type": "own_moe"})
        self.refused(source, VIEW + "@experts=fused")
        for way in ("export", "mount"):
            out = self.work / way
            out.mkdir()
            ways.WAYS[way](source, VIEW + "@experts=fused", out, self.work,
                           ["--recipe", RECIPES / "own_moe.json"])
            self.assertEqual([], list(digest.differences(self.expected, str(out))))
        built_in = self.export(ways.DATA / "experts-mixtral" / "source", VIEW + "@experts=fused")
        self.assertEqual({name: (built_in / name).read_bytes() for name in
                          ("model-layer-00000.safetensors", "model-rest.safetensors")},
                         {name: (self.work / "mount" / name).read_bytes() for name in
                          ("model-layer-00000.safetensors", "model-rest.safetensors")})

    def test_go_before_the_built_in_families(self):
        own = json.loads((RECIPES / "own_moe.json").read_text())
        own["family"] = ["mixtral"]
        own["experts"] = {"packed": [{"drop": "{p:**}.experts.{q:**}"}]}
        (self.work / "own.json").write_text(json.dumps(own))
        source = ways.DATA / "experts-mixtral" / "source"
        got = naive.read_all(self.export(source, VIEW + "@experts=packed", "--recipe",
                                         self.work / "own.json"))
        self.assertEqual([], [name for name in got if "experts" in name])

    def test_add_a_view(self):
        source = ways.DATA / "experts-mixtral" / "source"
        recipe = ["--recipe", RECIPES / "own_view.json"]
        self.assertIn("own-fused/", ways.run("ls", source, *recipe).decode().split())
        views = json.loads(ways.run("inspect", "--json", source, *recipe))["views"]
        self.assertIn(("own-fused", "mixtral as transformers holds it", True),
                      [(v["name"], v["description"], v["available"]) for v in views])
        out = self.export(source, "own-fused", *recipe)
        self.assertEqual([], list(digest.differences(self.expected, str(out))))
        self.assertTrue((out / "model.safetensors").is_file())
        with ways.mounted(source, self.work / "mnt", "-o", f"recipe={RECIPES}/own_view.json") as mnt:
            self.assertIn("own-fused", [path.name for path in mnt.iterdir()])
            self.assertEqual((out / "model.safetensors").read_bytes(),
                             (mnt / "own-fused" / "model.safetensors").read_bytes())
        split = self.export(source, "own-fused@max_shard=20KB", *recipe)
        self.assertGreater(len(list(split.glob("*.safetensors"))), 2)

    def test_that_do_not_fit_the_source_are_errors_when_it_is_opened(self):
        source = ways.DATA / "llama-bf16" / "source"
        for verb in (["ls", source], ["inspect", source], ["mount", source, self.work]):
            done = subprocess.run([ways.CKFS, *map(str, verb), "--recipe",
                                   RECIPES / "own_view.json"], capture_output=True, text=True)
            self.assertEqual(1, done.returncode)
            self.assertIn("no layout of experts is known", done.stderr)
        done = subprocess.run([ways.CKFS, "ls", ways.DATA, "--recipe", self.work / "none.json"],
                              capture_output=True, text=True)
        self.assertEqual(2, done.returncode)
        self.assertIn("none.json", done.stderr)

    def test_change_the_identity_of_an_export(self):
        source, out = ways.DATA / "experts-mixtral" / "source", self.work / "out"
        text = (RECIPES / "own_view.json").read_text()
        (self.work / "a.json").write_text(text)
        ways.run("export", source, "own-fused", out, "--recipe", self.work / "a.json")
        first = (out / "model.safetensors").read_bytes()
        (self.work / "a.json").write_text(text.replace(".mlp.gate.weight", ".mlp.other.weight"))
        again = ["export", source, "own-fused", out, "--recipe", self.work / "a.json"]
        with self.assertRaisesRegex(AssertionError, "holds a finished export of own-fused"):
            ways.run(*again)
        ways.run(*again, "--force")
        self.assertNotEqual(first, (out / "model.safetensors").read_bytes())


class Attention(unittest.TestCase):
    def test_what_sarvam_has_in_one_tensor_is_apart_as_in_transformers(self):
        with tempfile.TemporaryDirectory(prefix="ckfs-experts-") as work:
            source, out = pathlib.Path(work, "source"), pathlib.Path(work, "out")
            source.mkdir()
            layer = "model.layers.0."
            rows = [bytes([row, column]) for row in range(12) for column in range(4)]
            both = naive.Tensor("BF16", [12, 4], b"".join(rows))
            tensors = {layer + "attention.query_key_value.weight": both,
                       layer + "attention.dense.weight": both}
            for e in range(2):
                for part in ("gate_proj", "up_proj", "down_proj"):
                    tensors[f"{layer}mlp.experts.{e}.{part}.weight"] = naive.Tensor(
                        "BF16", [2, 2], bytes(range(e, e + 8)))
            naive.write(source / "model.safetensors", tensors)
            (source / "config.json").write_text(json.dumps({
                "model_type": "sarvam_moe", "num_attention_heads": 2, "num_key_value_heads": 1,
                "head_dim": 3, "num_experts": 2}))
            ways.run("export", source, f"{VIEW}@experts=fused", out)
            found = naive.read_all(out)
            for name, begin, end in (("q", 0, 6), ("k", 6, 9), ("v", 9, 12)):
                tensor = found[f"{layer}self_attn.{name}_proj.weight"]
                self.assertEqual([end - begin, 4], tensor.shape)
                self.assertEqual(both.data[8 * begin:8 * end], tensor.data)
            self.assertEqual(both.data, found[layer + "self_attn.o_proj.weight"].data)
            self.assertEqual([2, 4, 2], found[layer + "mlp.experts.gate_up_proj"].shape)


if __name__ == "__main__":
    unittest.main()
