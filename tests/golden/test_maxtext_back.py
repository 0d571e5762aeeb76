#!/usr/bin/env python3
"""MaxText's trees as sources: the forms that a tree has, layouts of experts, what says which model
it is, and trees that do not fit. The arrays lie in a safetensors file here: the way back does not
ask for the container."""
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent)]
import naive  # noqa: E402
import orbax_item  # noqa: E402
import ways  # noqa: E402
from maxtext_cases import DATA  # noqa: E402

HUGGINGFACE = ("bf16-safetensors", "fp16-safetensors", "fp32-safetensors")
MAXTEXT = ("maxtext-unscanned", "maxtext-scanned")


class Trees(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="ckfs-maxtext-")
        self.addCleanup(temporary.cleanup)
        self.work = pathlib.Path(temporary.name)

    def tree(self, case, view, tensors=lambda found: found, config=lambda found: found):
        """A directory whose only file of weights is a tree."""
        folder = self.work / "tree"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        text = config(json.loads((DATA / case / "source/config.json").read_text()))
        if text is not None:
            (folder / "config.json").write_text(json.dumps(text))
        found = naive.read(DATA / case / f"expected/{view}.safetensors")
        naive.write(folder / "model.safetensors", tensors(found))
        return folder

    def exported(self, source, view, *options):
        out = self.work / "out"
        shutil.rmtree(out, ignore_errors=True)
        ways.run("export", source, view, out, *options)
        return out

    def model(self, source, view="bf16-safetensors", *options):
        return {name: (tensor.dtype, tensor.shape, tensor.data) for name, tensor in
                naive.read_all(self.exported(source, view, *options)).items()}

    def arrays(self, source, view, *options):
        item = orbax_item.Item(self.exported(source, view, *options) / "0/items")
        return {name: item.value(name) for name in item.arrays}


class Forms(Trees):
    def test_every_form_is_the_same_tree(self):
        others = ("opt_state.mu.params.decoder.decoder_norm.scale", "opt_state.count", "step")
        for view in ("unscanned", "scanned"):
            plain = self.model(self.tree("qwen3-moe", view))
            for before, behind in (("params.params.", ".value"), ("params.", ""),
                                   ("params.", ".value"), ("base.", ".value"), ("", ".value"),
                                   ("", "")):
                def renamed(tensors, lists):
                    found = {}
                    for name, tensor in tensors.items():
                        if not name.startswith("params.params."):
                            continue
                        path = name.removeprefix("params.params.")
                        if lists:
                            path = re.sub(r"layers_(\d+)", r"layers.\1", path)
                        found[before + path + behind] = tensor
                    for name in others:
                        found[name] = naive.Tensor("I32", [2], bytes(8))
                    return found
                for lists in (False, True):
                    with self.subTest(view=view, before=before, behind=behind, lists=lists):
                        source = self.tree("qwen3-moe", view, lambda t: renamed(t, lists))
                        self.assertTrue(plain == self.model(source))

    def test_what_is_no_parameter_is_in_no_view_of_a_model(self):
        def with_state(tensors):
            state = {f"opt_state.{name}": tensor for name, tensor in tensors.items()}
            return {**tensors, **state}
        for view in MAXTEXT:
            arrays = self.arrays(self.tree("qwen3-moe", "scanned", with_state), view)
            self.assertEqual([], [name for name in arrays if "opt_state" in name])

    def test_the_state_of_random_number_generators_is_no_weight_at_any_level(self):
        def with_state(tensors):
            found = {f"base.{name.removeprefix('params.params.')}.value": tensor
                     for name, tensor in tensors.items() if name.startswith("params.params.")}
            for above in ("to_nnx__rngs", "dropout_rngs", "decoder.to_nnx__rngs", "decoder.rngs",
                          "decoder.layers.self_attention.attention_op.dropout_rngs"):
                for below in ("params.count.value", "params.key.value", "default.key"):
                    found[f"base.{above}.{below}"] = naive.Tensor("U32", [2], bytes(8))
            return found
        want = self.model(self.tree("qwen3-moe", "scanned"))
        source = self.tree("qwen3-moe", "scanned", with_state)
        self.assertTrue(want == self.model(source))
        views = {view["name"]: view for view in json.loads(ways.run("inspect", source, "--json"))["views"]}
        for view in ("bf16-safetensors", *MAXTEXT):
            self.assertIn({"subject": "base.to_nnx__rngs.params.count.value",
                           "text": "left out: the state of a random number generator, not a weight; "
                                   "so are 14 more arrays"}, views[view]["remarks"])
        for view in MAXTEXT:
            self.assertEqual([], [name for name in self.arrays(source, view) if "rngs" in name])

    def test_collections_beside_the_parameters_are_state_unless_the_family_has_them(self):
        def with_others(tensors):
            state = naive.Tensor("U32", [2], bytes(8))
            return {**tensors, "params.batch_stats.decoder.mean": state, "params.aqt.decoder.x.y": state,
                    "params.MoEBiasVar.decoder.layers.gate.bias": state}
        want = self.model(self.tree("qwen3-moe", "scanned"))
        source = self.tree("qwen3-moe", "scanned", with_others)
        self.assertTrue(want == self.model(source))
        for view in MAXTEXT:
            self.assertEqual([], [name for name in self.arrays(source, view)
                                  if name != "step" and not name.startswith("params.params.")])

    def test_what_linen_has_in_collections_nnx_has_among_the_parameters(self):
        for view in ("unscanned", "scanned"):
            want = self.model(self.tree("deepseek4", view))
            self.assertIn("layers.3.ffn.gate.bias", want)
            self.assertIn("layers.0.ffn.gate.tid2eid", want)
            for before, behind in (("params.params.", ""), ("base.", ".value"), ("", ".value")):
                def merged(tensors):
                    found = {}
                    for name, tensor in tensors.items():
                        path = re.sub(r"^params\.\w+\.", "", name)
                        if path != name:
                            found[before + path + behind] = tensor
                    return found
                with self.subTest(view=view, before=before):
                    self.assertTrue(want == self.model(self.tree("deepseek4", view, merged)))

            def with_more(tensors):
                one = tensors["params.params.decoder.decoder_norm.scale"]
                return {**tensors, "params.MoEBiasVar.decoder.more": one}
            done = subprocess.run(
                [ways.CKFS, "ls", self.tree("deepseek4", view, with_more), "bf16-safetensors"],
                capture_output=True, text=True, check=False)
            self.assertRegex(done.stderr, r'"params.MoEBiasVar.decoder.more" is not an? (array|tensor) that')

    def test_arrays_that_the_model_has_nothing_of_are_named(self):
        source = self.tree("deepseek4", "unscanned")
        views = {view["name"]: view for view in json.loads(ways.run("inspect", source, "--json"))["views"]}
        note = {"subject": "params.params.decoder.layers_0.mhc_attention.mhc_norm.scale",
                "text": "left out: the model has no such tensor; so are 13 more arrays"}
        self.assertIn(note, views["bf16-safetensors"]["remarks"])
        self.assertNotIn(note, views["maxtext-scanned"]["remarks"])
        self.assertEqual([], [name for name in self.model(source) if "norm" in name and "hc_" in name])
        wrong = self.tree("deepseek4", "unscanned", lambda tensors: {
            name: naive.Tensor("F32", [63], bytes(252)) if name.endswith("mhc_mlp.mhc_norm.scale")
            else tensor for name, tensor in tensors.items()})
        done = subprocess.run([ways.CKFS, "ls", wrong, "bf16-safetensors"], capture_output=True,
                              text=True, check=False)
        self.assertIn("is 63 here and 64 by config.json", done.stderr)

    def test_what_only_resembles_it_is_refused(self):
        def with_array(tensors):
            return {**tensors, "params.params.decoder.rngs_of_mine": naive.Tensor("U32", [2], bytes(8))}
        source = self.tree("qwen3-moe", "scanned", with_array)
        done = subprocess.run([ways.CKFS, "cat", source, "bf16-safetensors/config.json"],
                              capture_output=True, text=True, check=False)
        self.assertIn("rngs_of_mine", done.stderr)

    def test_a_tree_in_a_folder_is_a_model_of_its_own(self):
        for case, view in (("deepseek3", "unscanned"), ("gemma2", "scanned")):
            with self.subTest(case):
                alone = self.tree(case, view)
                want = {name: self.model(alone, name) for name in HUGGINGFACE}
                inner = self.work / "inner"
                shutil.rmtree(inner, ignore_errors=True)
                alone.rename(inner)
                outer = self.tree("qwen3-moe", "unscanned")
                inner.rename(outer / "inner")
                for name in HUGGINGFACE:
                    out = self.exported(outer, name)
                    got = naive.read_all(out / "inner")
                    self.assertTrue(want[name] == {key: (tensor.dtype, tensor.shape, tensor.data)
                                                   for key, tensor in got.items()}, name)


class Experts(Trees):
    def test_layouts_are_those_of_the_model(self):
        for view in ("bf16-safetensors@experts=fused", "bf16-safetensors@experts=linear",
                     "fp16-safetensors@experts=fused,max_shard=4KB"):
            with self.subTest(view):
                want = self.model(DATA / "qwen3-moe/source", view)
                self.assertTrue(want == self.model(self.tree("qwen3-moe", "scanned"), view))
                self.assertTrue(want == self.model(self.tree("qwen3-moe", "unscanned"), view))

    def test_shards_have_the_size_that_is_asked_for(self):
        out = self.exported(self.tree("qwen3-moe", "scanned"), "bf16-safetensors@max_shard=8KB")
        shards = sorted(out.glob("*.safetensors"))
        self.assertGreater(len(shards), 3)
        index = json.loads((out / "model.safetensors.index.json").read_text())
        self.assertEqual({path.name for path in shards}, set(index["weight_map"].values()))

    def test_values_are_as_stored_where_nothing_is_cast(self):
        model = self.model(self.tree("gemma3", "unscanned"), "bf16-safetensors@cast=quantized")
        self.assertEqual("F32", model["model.language_model.norm.weight"][0])
        self.assertEqual("BF16", model["model.language_model.embed_tokens.weight"][0])


class Families(Trees):
    """What says which model it is."""
    # Of llama31 and qwen3-dense more below.
    CASES = {"deepseek3": "deepseek3-671b", "gemma2": "gemma2-2b", "gpt-oss": "gpt-oss-20b",
             "mixtral": "mixtral-8x7b", "qwen3-moe": "qwen3-30b-a3b", "qwen3-dense": "qwen3-0.6b"}

    def test_numbers_come_from_the_arrays_where_there_is_no_config(self):
        for case, name in self.CASES.items():
            for view in ("unscanned", "scanned"):
                with self.subTest(case=case, view=view):
                    want = self.model(self.tree(case, view))
                    bare = self.tree(case, view, config=lambda c: None)
                    self.assertTrue(want == self.model(bare))
                    self.assertTrue(want == self.model(bare, "bf16-safetensors", "--family", name))
                    # Numbers that config.json may leave out.
                    for view in MAXTEXT:
                        self.assertTrue(
                            self.arrays(self.tree(case, "scanned"), f"{view}@fsdp=2") ==
                            self.arrays(self.tree(case, "scanned", config=lambda c: None),
                                        f"{view}@fsdp=2"))

    def test_trees_that_are_those_of_several_families(self):
        for view in ("unscanned", "scanned"):
            bare = self.tree("llama31", view, config=lambda c: None)
            done = subprocess.run([ways.CKFS, "ls", bare, "bf16-safetensors"], text=True,
                                  capture_output=True)
            self.assertEqual(1, done.returncode)
            self.assertRegex(done.stderr, "^ckfs: bf16-safetensors: MaxText's tree of parameters "
                             r"fits several families \(llama2, .*llama3.1, .*--config DIR or "
                             r"--family NAME says what model it is\)\n$")
            self.assertEqual("source/\n", ways.run("ls", bare).decode())
            told = self.model(bare, "bf16-safetensors", "--family", "llama3.1-8b")
            self.assertTrue(told == self.model(self.tree("llama31", view), "bf16-safetensors",
                                               "--family", "llama3.1"))
            self.assertFalse(told == self.model(bare, "bf16-safetensors", "--family", "llama2-7b"))

    def test_a_tree_of_no_family(self):
        source = self.tree("qwen3-moe", "scanned", config=lambda c: None, tensors=lambda t: {
            name: tensor for name, tensor in t.items() if "query_norm" not in name})
        self.assertIn("fits no family of models", ways.run("inspect", source).decode())
        self.assertEqual("source/\n", ways.run("ls", source).decode())

    def test_config_json_is_the_models(self):
        source = self.tree("qwen3-moe", "scanned")
        out = self.exported(source, "fp16-safetensors")
        want = json.loads((source / "config.json").read_text())
        got = json.loads((out / "config.json").read_text())
        key = "dtype" if "dtype" in want else "torch_dtype"
        self.assertEqual({**want, key: "float16"}, got)


class RoundTrips(Trees):
    """A model, the tree that it becomes, and the model that the tree becomes."""

    def test_what_is_not_rounded_comes_back(self):
        # deepseek3-fp8 and kimi-int4 have a router bias in F32, which to_huggingface casts. Code 8
        # of MXFP4 is -0, but not where MaxText decodes it, so gpt-oss is in BF16 already.
        for case, want in (("qwen3-dense", ""), ("qwen3-moe", ""), ("deepseek3", ""),
                           ("deepseek3-reshard", ""), ("gpt-oss", ""), ("olmo3", ""),
                           ("qwen3-next", ""),
                           ("deepseek3-fp8", "@cast=all"), ("kimi-int4", "@cast=all")):
            source = DATA / case / "source"
            if case == "gpt-oss":
                source = self.exported(source, "bf16-safetensors").rename(self.work / case)
            model = self.model(source, f"bf16-safetensors{want}")
            for view in MAXTEXT:
                with self.subTest(case=case, view=view):
                    arrays = self.arrays(source, f"{view}@dtype=source")
                    tree = self.tree_of(arrays, source / "config.json")
                    self.assertTrue(model == self.model(tree))
                    # And by way of the item: as it is, cut for two devices, as plain files.
                    for more in ("", ",fsdp=2", ",storage=zarr3"):
                        item = self.work / "item"
                        shutil.rmtree(item, ignore_errors=True)
                        self.exported(source, f"{view}@dtype=source{more}").rename(item)
                        self.assertTrue(model == self.model(item / "0/items", "bf16-safetensors",
                                                            "--config", tree), more)

    def test_encoders_come_back(self):
        for case, views in (("qwen3-vl", MAXTEXT),
                            ("qwen3-omni", MAXTEXT),
                            ("qwen3-vl-moe", MAXTEXT[:1]),):
            source = DATA / case / "source"
            model = self.model(source)
            for view in views:
                with self.subTest(case=case, view=view):
                    arrays = self.arrays(source, f"{view}@dtype=source,multimodal=1")
                    tree = self.tree_of(arrays, source / "config.json")
                    self.assertTrue(model == self.model(tree))
                    # The tree without them, of the model and of the tree.
                    text = self.arrays(source, f"{view}@dtype=source")
                    self.assertLess(set(text), set(arrays))
                    self.assertTrue(text == self.arrays(tree, f"{view}@dtype=source"))
                    self.assertTrue(arrays == self.arrays(tree,
                                                          f"{view}@dtype=source,multimodal=1"))

    def test_the_tree_of_each_release_comes_back(self):
        # Of deepseek3-mtp there are as many layers with experts as experts: its bias fits both.
        bias = ".mlp.gate.e_score_correction_bias"
        for case, mtp in (("deepseek3", 0), ("deepseek3-mtp", 0), ("deepseek3-mtp", 1)):
            source = DATA / case / "source"
            whole = self.model(source)
            for release, other in (("0.2.5", "0.2.3"), ("0.2.3", "0.2.5")):
                # What the tree shares with the model, or lacks, is not written.
                shared = ["embed_tokens", "shared_head.head"]
                shared += ["shared_head.norm"] * (release == "0.2.3")
                model = {name: value for name, value in whole.items()
                         if not name.startswith("model.layers.3.") or case == "deepseek3" or
                         (mtp and not any(part in name for part in shared))}
                for view in MAXTEXT:
                    with self.subTest(case=case, mtp=mtp, release=release, view=view):
                        spelling = f"{view}@dtype=source,maxtext={release}"
                        arrays = self.arrays(source, spelling + ",mtp=1" * mtp)
                        tree = self.tree_of(arrays, source / "config.json")
                        said = self.model(tree, f"bf16-safetensors@maxtext={release}")
                        self.assertEqual(set(model), set(said))
                        self.assertTrue(model == said)
                        same = self.arrays(tree, spelling + ",mtp=1" * mtp)
                        self.assertTrue(arrays == same)
                        if case == "deepseek3":  # 4 experts, 2 layers
                            self.assertTrue(model == self.model(tree))
                        elif view == "maxtext-scanned" and not mtp:
                            taken = self.model(tree, f"bf16-safetensors@maxtext={other}")
                            self.assertEqual({f"model.layers.{i}{bias}" for i in (1, 2)}, {
                                name for name in model if model[name] != taken[name]})
                            self.assertIn("fits MaxText 0.2.5 and 0.2.3 alike",
                                          ways.run("inspect", tree).decode())

    def tree_of(self, arrays, config):
        codes = {"bfloat16": "BF16", "float32": "F32", "int32": "I32"}
        folder = self.work / "tree"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        # Of a model whose codes are decoded.
        text = {key: value for key, value in json.loads(config.read_text()).items()
                if key != "quantization_config"}
        (folder / "config.json").write_text(json.dumps(text))
        naive.write(folder / "model.safetensors", {
            name: naive.Tensor(codes[dtype], shape, data)
            for name, (dtype, shape, data) in arrays.items() if name != "step"
        })
        return folder


class Refusals(Trees):
    """Trees that do not fit: no view of a model, and which array and rule."""

    def refused(self, case, view, pattern, **change):
        source = self.tree(case, view, **change)
        for name in HUGGINGFACE + MAXTEXT:
            done = subprocess.run([ways.CKFS, "ls", source, name], text=True, capture_output=True)
            self.assertEqual(1, done.returncode, done.stdout)
            self.assertRegex(done.stderr, rf"^ckfs: {name}: .*{pattern}.*\n$")
        self.assertEqual("source/\n", ways.run("ls", source).decode())
        self.assertRegex(ways.run("inspect", source).decode(), pattern)

    def test_arrays_that_are_missing(self):
        def without(pattern):
            return lambda t: {k: v for k, v in t.items() if not re.search(pattern, k)}
        for case, view, pattern, message in (
                ("qwen3-moe", "unscanned", r"layers_1\.", r'maxtext.json:\d+: "params.params.decoder'
                 r'.layers_0[^"]*": i 1 is missing, of 3 tensors like this one'),
                ("qwen3-moe", "unscanned", r"layers_2\.", "i 2 is missing"),
                ("qwen3-moe", "unscanned", r"layers_1\.self_attention\.key\.",
                 r'layers_0.self_attention.key.kernel": i 1 is missing'),
                ("qwen3-moe", "unscanned", r"self_attention\.key\.",
                 r'maxtext.json:\d+: no tensor fits "params.params.\{p\}.self_attention.key.kernel"'),
                ("qwen3-moe", "scanned", r"self_attention\.key\.", "no tensor fits"),
                ("qwen3-moe", "scanned", "token_embedder", "no tensor fits"),
                ("qwen3-moe", "scanned", "logits_dense", "no tensor fits"),
                ("qwen3-moe", "scanned", r"moe_block\.wi_1", r"no tensor fits .*\.wi_1"),
                ("gpt-oss", "scanned", r"GptOssMlp\.wi_1$",
                 r'maxtext_gpt_oss.json:\d+: "params.params.decoder.layers_\d+.GptOssMlp.wi_0": '
                 r'no tensor matches "params.params.\{p\}.GptOssMlp.wi_1" in this group'),
                ("gpt-oss", "scanned", r"layers\.layers_1\.", "i 1 is missing"),
                ("deepseek3", "unscanned", "moe_layers_1", "i 1 is missing, of 2"),
                ("deepseek3", "unscanned", "dense_layers_0", "i 0 is missing, of 2"),
                ("deepseek3", "unscanned", r"dense_layers_\d\.mlp\.wo",
                 r'no tensor fits ".*dense_layers_\{i\}\.mlp\.wo'),
                ("deepseek3", "unscanned", r"dense_layers_\d\.self_attention\.out",
                 "i 0 is missing, of")):
            with self.subTest(case=case, view=view, pattern=pattern):
                self.refused(case, view, message, tensors=without(pattern))

    def test_arrays_that_nobody_knows(self):
        for name in ("params.params.decoder.layers.mlp.bias", "params.params.extra",
                     "params.params.decoder.layers.self_attention.query.kernel.more"):
            with self.subTest(name):
                self.refused("qwen3-moe", "scanned", "is not an array that the rules know|fits",
                             tensors=lambda t: {
                                 **t, name: t["params.params.decoder.layers.self_attention."
                                              "key_norm.scale"]})

    def test_configs_that_contradict_the_arrays(self):
        experts = r"\$num_experts \?\? \$num_local_experts is 4 here and 5 by config.json"
        for change, message in (
                ({"hidden_size": 41}, r"\$hidden_size is 40 here and 41 by config.json"),
                ({"num_attention_heads": 5}, "is 4 here and 5 by config.json"),
                ({"num_key_value_heads": 4}, "is 2 here and 4 by config.json"),
                ({"num_attention_heads": 8, "head_dim": 5}, "is 10 here and 5 by config.json"),
                ({"head_dim": 5}, "is 10 here and 5 by config.json"),
                ({"vocab_size": 102}, r"\$vocab_size is 101 here and 102 by config.json"),
                ({"num_local_experts": 5, "num_experts": 5}, experts),
                ({"moe_intermediate_size": 13},
                 r"\$moe_intermediate_size is 12 here and 13 by config.json")):
            with self.subTest(change):
                for view in ("unscanned", "scanned"):
                    self.refused("qwen3-moe", view, rf'json:\d+: "[^"]*": .*{message}',
                                 config=lambda c: {**c, **change})
        self.refused("qwen3-moe", "scanned", r"\$num_hidden_layers is 3 here and 4 by config.json",
                     config=lambda c: {**c, "num_hidden_layers": 4})
        self.refused("qwen3-moe", "unscanned", "i 3 is missing, of 4",
                     config=lambda c: {**c, "num_hidden_layers": 4})
        self.refused("qwen3-moe", "unscanned", "i is 2, of 2",
                     config=lambda c: {**c, "num_hidden_layers": 2})
        self.refused("gpt-oss", "scanned", r"\$num_hidden_layers / 2 is 2 here and 3 by config.json",
                     config=lambda c: {**c, "num_hidden_layers": 6})
        self.refused("deepseek3", "unscanned", "is missing|counted from 0",
                     config=lambda c: {**c, "first_k_dense_replace": 1})

    def test_arrays_that_contradict_each_other(self):
        def with_shape(name, shape):
            def change(tensors):
                count = 2
                for extent in shape:
                    count *= extent
                return {**tensors, name: naive.Tensor("BF16", shape, bytes(count))}
            return change
        p = "params.params.decoder.layers."
        for config in (lambda c: c, lambda c: None):
            for name, shape in ((p + "moe_block.wi_0", [3, 3, 40, 12]),
                                (p + "moe_block.wi_0", [4, 2, 40, 12]),
                                (p + "moe_block.wi_0", [4, 3, 40]),
                                (p + "self_attention.query.kernel", [40, 3, 40]),
                                (p + "self_attention.query.kernel", [40, 3, 4, 10, 1]),
                                (p + "self_attention.out.kernel", [4, 3, 10, 39]),
                                (p + "pre_self_attention_layer_norm.scale", [40]),
                                (p + "pre_self_attention_layer_norm.scale", []),
                                ("params.params.token_embedder.embedding", [101, 40, 1])):
                with self.subTest(name=name, shape=shape, config=config({}) is not None):
                    self.refused("qwen3-moe", "scanned", r'json:\d+: "[^"]*": |fits no family',
                                 tensors=with_shape(name, shape), config=config)

    def test_models_that_no_family_has(self):
        self.refused("qwen3-moe", "scanned",
                     r"no rules are known for this model \(model_type mamba;",
                     config=lambda c: {**c, "model_type": "mamba", "architectures": ["Mamba"]})


if __name__ == "__main__":
    unittest.main()
