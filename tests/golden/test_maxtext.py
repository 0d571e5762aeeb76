#!/usr/bin/env python3
"""MaxText's trees of families that no golden case covers, against the formulas, element by element
in Python; families that a file adds; and sources that do not fit their family's rules."""
import json
import pathlib
import random
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent)]
import naive  # noqa: E402
import orbax_item  # noqa: E402
import ways  # noqa: E402
from maxtext_cases import safetensors, without_nan_bits  # noqa: E402

DATA = ways.DATA.parent / "maxtext"
RECIPES = ways.DATA.parent / "recipes"


class Grid:
    """An array of BF16 codes."""

    def __init__(self, shape, codes):
        self.shape, self.codes = list(shape), list(codes)
        count = 1
        for extent in shape:
            count *= extent
        assert count == len(self.codes)

    @property
    def T(self):
        rows, columns = self.shape
        return Grid([columns, rows],
                    [self.codes[r * columns + c] for c in range(columns) for r in range(rows)])

    def reshape(self, *shape):
        return Grid(shape, self.codes)

    def last(self, begin, end, step=1):
        """[..., begin:end:step]"""
        width = self.shape[-1]
        codes = [code for at in range(0, len(self.codes), width)
                 for code in self.codes[at:at + width][begin:end:step]]
        return Grid([*self.shape[:-1], len(range(width)[begin:end:step])], codes)

    def map(self, function):
        return Grid(self.shape, map(function, self.codes))

    def turned(self, *order):
        """Dimension d of the result is dimension order[d]."""
        strides = [1]
        for extent in reversed(self.shape[1:]):
            strides.insert(0, strides[0] * extent)
        at = [0]
        for d in order:
            at = [begin + i * strides[d] for begin in at for i in range(self.shape[d])]
        return Grid([self.shape[d] for d in order], [self.codes[i] for i in at])

    def value(self):
        return "bfloat16", self.shape, struct.pack(f"<{len(self.codes)}H", *self.codes)


def stack(parts, axis):
    outer = 1
    for extent in parts[0].shape[:axis]:
        outer *= extent
    inner = len(parts[0].codes) // outer
    codes = [code for i in range(outer) for part in parts
             for code in part.codes[i * inner:(i + 1) * inner]]
    shape = parts[0].shape
    return Grid([*shape[:axis], len(parts), *shape[axis:]], codes)


class Source:
    """Tensors of random finite values, made as they are named."""

    def __init__(self, seed):
        self.random, self.tensors = random.Random(seed), {}

    def __call__(self, name, *shape):
        count = 1
        for extent in shape:
            count *= extent
        codes = []
        while len(codes) < count:
            code = self.random.getrandbits(16)
            if code & 0x7F80 != 0x7F80:
                codes.append(code)
        self.tensors[name] = Grid(shape, codes)
        return self.tensors[name]

    def write(self, folder, config):
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(config))
        naive.write(folder / "model.safetensors", {
            name: naive.Tensor("BF16", grid.shape, grid.value()[2])
            for name, grid in self.tensors.items()
        })


def heads(grid, count):
    """(n * d, in) -> (in, n, d)"""
    return grid.T.reshape(grid.shape[1], count, grid.shape[0] // count)


def out_heads(grid, count):
    """(H, n * d) -> (n, d, H)"""
    return grid.T.reshape(count, grid.shape[1] // count, grid.shape[0])


def divided(divisor):
    """code -> BF16(F32(x / divisor)); the quotient of two F32 is rounded to F32 once by way of F64."""
    def function(code):
        (x,) = struct.unpack("<f", struct.pack("<I", code << 16))
        return struct.unpack("<H", naive.encode([naive.to_f32(x / divisor)], "BF16"))[0]
    return function


def multiplied(factor):
    """code -> BF16(x * factor)"""
    def function(code):
        (x,) = struct.unpack("<f", struct.pack("<I", code << 16))
        return struct.unpack("<H", naive.encode([naive.to_f32(x * factor)], "BF16"))[0]
    return function


GLOBALS = {"vocab_size": 19, "hidden_size": 12, "tie_word_embeddings": False}


def globals_of(source, prefix="model.", head="lm_head.weight"):
    return {
        "token_embedder.embedding": source(prefix + "embed_tokens.weight", 19, 12),
        "decoder.decoder_norm.scale": source(prefix + "norm.weight", 12),
        "decoder.logits_dense.kernel": source(head, 19, 12).T,
    }


def norms(source, p):
    return {
        "pre_self_attention_layer_norm.scale": source(p + "input_layernorm.weight", 12),
        "post_self_attention_layer_norm.scale": source(p + "post_attention_layernorm.weight", 12),
    }


def attention(source, p, n, k, d, bias=False):
    found = {}
    for mine, theirs, count in (("query", "q", n), ("key", "k", k), ("value", "v", k)):
        weight = source(f"{p}self_attn.{theirs}_proj.weight", count * d, 12)
        found[f"self_attention.{mine}.kernel"] = heads(weight, count)
        if bias:
            found[f"self_attention.{mine}.bias"] = source(
                f"{p}self_attn.{theirs}_proj.bias", count * d).reshape(count, d)
    found["self_attention.out.kernel"] = out_heads(source(p + "self_attn.o_proj.weight", 12, n * d),
                                                   n)
    return found


def mlp(source, p, width, name="mlp", mine="mlp"):
    return {
        f"{mine}.wi_0.kernel": source(f"{p}{name}.gate_proj.weight", width, 12).T,
        f"{mine}.wi_1.kernel": source(f"{p}{name}.up_proj.weight", width, 12).T,
        f"{mine}.wo.kernel": source(f"{p}{name}.down_proj.weight", 12, width).T,
    }


def dense(source, config, query=lambda code: code, bias=False):
    """(globals, [layer])"""
    layers = []
    n, k = config["num_attention_heads"], config["num_key_value_heads"]
    for i in range(config["num_hidden_layers"]):
        p = f"model.layers.{i}."
        layer = {**norms(source, p),
                 **attention(source, p, n, k, config.get("head_dim") or 12 // n, bias),
                 **mlp(source, p, config["intermediate_size"])}
        layer["self_attention.query.kernel"] = layer["self_attention.query.kernel"].map(query)
        layers.append(layer)
    return globals_of(source), layers


def tower_layer(get, hidden, wide, count, q, out):
    """The attention and the MLP of an encoder's layer, by the ends of their names: `get(name, shape)`
    gives a tensor of the layer."""
    found = {}
    for mine, theirs in (("query", "q"), ("key", "k"), ("value", "v")):
        found[f"{q}.{mine}.kernel"] = heads(get(f"self_attn.{theirs}_proj.weight", hidden, hidden), count)
        found[f"{q}.{mine}.bias"] = get(f"self_attn.{theirs}_proj.bias", hidden).reshape(
            count, hidden // count)
    found[f"{q}.out.kernel"] = out_heads(get(f"self_attn.{out}.weight", hidden, hidden), count)
    found[f"{q}.out.bias"] = get(f"self_attn.{out}.bias", hidden)
    return found, [get("mlp.fc1.weight", wide, hidden).T, get("mlp.fc1.bias", wide),
                   get("mlp.fc2.weight", hidden, wide).T, get("mlp.fc2.bias", hidden)]


def named(tree, prefix=""):
    return {f"params.params.{prefix}{name}": grid for name, grid in tree.items()}


def unscanned(found, layers, name="decoder.layers"):
    for i, layer in enumerate(layers):
        found.update(named(layer, f"{name}_{i}."))
    return found


def scanned(found, layers, name="decoder.layers"):
    for leaf in layers[0]:
        found[f"params.params.{name}.{leaf}"] = stack([layer[leaf] for layer in layers], 1)
    return found


class Views(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="ckfs-maxtext-")
        self.addCleanup(temporary.cleanup)
        self.work = pathlib.Path(temporary.name)

    def arrays(self, source, view, *options):
        out = self.work / "out"
        shutil.rmtree(out, ignore_errors=True)
        ways.run("export", source, view, out, *options)
        item = orbax_item.Item(out / "0/items")
        return {name: item.value(name) for name in item.arrays if name != "step"}

    def compare(self, source, view, want, *options):
        got = self.arrays(source, view, *options)
        self.assertEqual(sorted(want), sorted(got))
        for name, grid in want.items():
            self.assertEqual(grid.value()[:2], tuple(got[name][:2]), name)
            self.assertTrue(grid.value()[2] == got[name][2], name)


class Formulas(Views):
    def both(self, source, config, tree, layers, *options, query=lambda code: code):
        folder = self.work / "source"
        source.write(folder, config)
        for view, want in (("maxtext-unscanned", unscanned(named(tree), layers)),
                           ("maxtext-scanned", scanned(named(tree), layers))):
            self.compare(folder, view, want, *options)
            self.way_back(source, config, want, query)

    def way_back(self, source, config, tree, query=lambda code: code):
        """The tree is the source of the view that has the first tensors again; `query`: what is
        left of a query's value."""
        folder, out = self.work / "tree", self.work / "back"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
        naive.write(folder / "model.safetensors", {
            name: naive.Tensor("BF16", grid.shape, grid.value()[2]) for name, grid in tree.items()
        })
        ways.run("export", folder, "bf16-safetensors", out)
        got = naive.read_all(out)
        towers = any("vision_encoder" in name for name in tree)
        want = {name: grid for name, grid in source.tensors.items()
                if towers or not name.startswith(("vision", "mm_", "multi_modal"))}
        self.assertEqual(sorted(want), sorted(got))
        for name, grid in want.items():
            if name.endswith("q_proj.weight"):
                grid = grid.map(query)
            self.assertEqual(("BF16", grid.shape), (got[name].dtype, got[name].shape), name)
            self.assertTrue(grid.value()[2] == got[name].data, name)
        shutil.rmtree(folder)
        shutil.rmtree(out)

    def test_qwen2(self):
        config = {**GLOBALS, "model_type": "qwen2", "num_hidden_layers": 3,
                  "num_attention_heads": 3, "num_key_value_heads": 1, "intermediate_size": 20}
        source = Source(1)
        self.both(source, config, *dense(source, config, bias=True))

    def test_llama_2_and_3_3(self):
        config = {**GLOBALS, "model_type": "llama", "num_hidden_layers": 2,
                  "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 20,
                  "head_dim": 128}
        source = Source(2)
        there, back = divided(11.3125), multiplied(11.3125)  # BF16(sqrt(128))
        parts = dense(source, config, there)
        self.both(source, config, *parts, query=lambda code: back(there(code)))
        # A Llama 3.1 by its RoPE, but said to be a 3.3.
        config["rope_scaling"] = {"rope_type": "llama3", "low_freq_factor": 1.0}
        folder = self.work / "llama-3.3"
        source.write(folder, config)
        want = unscanned(named(parts[0]), parts[1])
        self.compare(folder, "maxtext-unscanned", want, "--family", "llama3.3-70b")
        told = self.arrays(folder, "maxtext-unscanned")
        name = "params.params.decoder.layers_0.self_attention.query.kernel"
        self.assertNotEqual(want[name].value()[2], told[name][2])

    def test_mistral(self):
        config = {**GLOBALS, "model_type": "mistral", "num_hidden_layers": 2,
                  "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 16,
                  "head_dim": None}
        source = Source(3)
        # sqrt(3) is 1.734375 in BF16.
        there, back = divided(1.734375), multiplied(1.734375)
        self.both(source, config, *dense(source, config, there),
                  query=lambda code: back(there(code)))

    def test_llama4(self):
        config = {"model_type": "llama4", "text_config": {
            **GLOBALS, "model_type": "llama4_text", "num_hidden_layers": 8,
            "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 5,
            "intermediate_size": 7, "intermediate_size_mlp": 9, "num_local_experts": 3}}
        source = Source(4)
        lm = "language_model."
        tree = globals_of(source, lm + "model.", lm + "lm_head.weight")
        layers = []
        for i in range(8):
            p = f"{lm}model.layers.{i}."
            layer = {**norms(source, p), **attention(source, p, 2, 1, 5)}
            if i % 2 == 0:
                layer.update(mlp(source, p, 9, "feed_forward"))
            else:
                b = "Llama4MoEBlock_0."
                f = p + "feed_forward."
                both = source(f + "experts.gate_up_proj", 3, 12, 14)
                layer[b + "MoeBlock_0.gate.kernel"] = source(f + "router.weight", 3, 12).T
                layer[b + "MoeBlock_0.wi_0"] = both.last(0, 7)
                layer[b + "MoeBlock_0.wi_1"] = both.last(7, 14)
                layer[b + "MoeBlock_0.wo"] = source(f + "experts.down_proj", 3, 7, 12)
                layer.update(mlp(source, f, 7, "shared_expert", b + "shared_experts"))
            layers.append(layer)
        vision = self.llama4_vision(source, config)
        folder = self.work / "source"
        source.write(folder, config)
        trees = {"maxtext-unscanned": unscanned(named(tree), layers), "maxtext-scanned": named(tree)}
        for block in range(4):
            scanned(trees["maxtext-scanned"], layers[block::4], f"decoder.layers.layers_{block}")
        for view, want in trees.items():
            self.compare(folder, view, want)
            self.way_back(source, config, want)
            want.update(vision)
            self.compare(folder, f"{view}@multimodal=1", want)
            self.way_back(source, config, want)

    @staticmethod
    def llama4_vision(source, config):
        """Adds an encoder of two layers."""
        config["vision_config"] = {
            "hidden_size": 8, "image_size": 6, "patch_size": 2, "num_channels": 3,
            "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 10,
            "projector_input_dim": 9, "projector_output_dim": 9, "vision_output_dim": 9}
        v = "vision_model."
        shuffle = "Llama4VisionPixelShuffleMLP_0.pixel_shuffle_mlp.vit_pixel_shuffle_mlp_fc"
        tree = {
            "class_embedding": source(v + "class_embedding", 8),
            "positional_embedding_vlm": source(v + "positional_embedding_vlm", 10, 8),
            "Llama4UnfoldConvolution_0.vit_unfold_linear.kernel":
                source(v + "patch_embedding.linear.weight", 8, 12).T,
            shuffle + "1.kernel": source(v + "vision_adapter.mlp.fc1.weight", 9, 10).T,
            shuffle + "2.kernel": source(v + "vision_adapter.mlp.fc2.weight", 9, 9).T,
        }
        for norm in ("layernorm_pre", "layernorm_post"):
            tree[norm + ".scale"] = source(f"{v}{norm}.weight", 8)
            tree[norm + ".bias"] = source(f"{v}{norm}.bias", 8)
        for i in range(2):
            def get(name, *shape, p=f"{v}model.layers.{i}."):
                return source(p + name, *shape)
            layer, mlp_parts = tower_layer(get, 8, 10, 2, "self_attention_vision", "o_proj")
            for part, grid in zip(("fc1.kernel", "fc1.bias", "fc2.kernel", "fc2.bias"), mlp_parts):
                layer["Llama4VisionMLP_0.vit_encoder_layer_mlp_" + part] = grid
            for norm in ("input", "post_attention"):
                layer[norm + "_layer_norm.scale"] = get(norm + "_layernorm.weight", 8)
                layer[norm + "_layer_norm.bias"] = get(norm + "_layernorm.bias", 8)
            for name, grid in layer.items():
                tree[f"Llama4VisionEncoder_0.layers_{i}.{name}"] = grid
        found = named(tree, "vision_encoder.Llama4VisionModel_0.")
        projector = source("multi_modal_projector.linear_1.weight", 12, 9).T
        found.update(named({"vit_multi_modal_projector.kernel": projector},
                           "vision_encoder.Llama4MultiModalProjector_0."))
        return found

    def test_the_vision_of_gemma3(self):
        """Beside the text of the golden case, whose source has an encoder of one layer."""
        source = DATA / "gemma3/source"
        tensors = naive.read_all(source)

        def get(name, *shape):
            tensor = tensors[name]
            codes = struct.unpack(f"<{len(tensor.data) // 2}H", tensor.data)
            self.assertEqual(tuple(tensor.shape), shape, name)
            return Grid(shape, codes)
        v = "vision_tower."
        tree = {
            "embedding.kernel": get(v + "embeddings.patch_embedding.weight", 16, 3, 14, 14).turned(
                2, 3, 1, 0),
            "embedding.bias": get(v + "embeddings.patch_embedding.bias", 16),
            "pos_embedding": get(v + "embeddings.position_embedding.weight", 4, 16).reshape(1, 4, 16),
            "Transformer.encoder_norm.scale": get(v + "post_layernorm.weight", 16),
            "Transformer.encoder_norm.bias": get(v + "post_layernorm.bias", 16),
        }
        layer, mlp_parts = tower_layer(lambda name, *shape: get(f"{v}encoder.layers.0.{name}", *shape),
                                       16, 16, 2, "MultiHeadDotProductAttention_0", "out_proj")
        for part, grid in zip(("0.kernel", "0.bias", "1.kernel", "1.bias"), mlp_parts):
            layer["MlpBlockViT_0.Dense_" + part] = grid
        for n in (0, 1):
            layer[f"LayerNorm_{n}.scale"] = get(f"{v}encoder.layers.0.layer_norm{n + 1}.weight", 16)
            layer[f"LayerNorm_{n}.bias"] = get(f"{v}encoder.layers.0.layer_norm{n + 1}.bias", 16)
        for name, grid in layer.items():
            tree[f"Transformer.encoderblock_0.{name}"] = grid
        want = {name: grid.value() for name, grid in
                named(tree, "vision_encoder.Gemma3VisionEncoderLayer_0.").items()}
        e = "params.params.vision_encoder.VisionEmbedder_0."
        projection = get("multi_modal_projector.mm_input_projection_weight", 16, 24)
        want[e + "mm_input_projection.w"] = projection.value()
        norm = naive.values(tensors["multi_modal_projector.mm_soft_emb_norm.weight"])
        want[e + "mm_soft_embedding_norm.scale"] = (
            "float32", [16], naive.encode([x + 1 for x in norm], "F32"))
        want.update(safetensors(DATA / "gemma3/expected/unscanned.safetensors"))
        want.pop("step", None)
        got = self.arrays(source, "maxtext-unscanned@multimodal=1")
        self.assertEqual(sorted(want), sorted(got))
        for name, value in want.items():
            self.assertEqual(without_nan_bits((value[0], list(value[1]), value[2])),
                             without_nan_bits((got[name][0], list(got[name][1]), got[name][2])), name)
        # And back, under the names that the tool gives; it has no head of the encoder.
        folder = self.work / "tree"
        folder.mkdir()
        shutil.copy(source / "config.json", folder)
        codes = {"bfloat16": "BF16", "float32": "F32"}
        naive.write(folder / "model.safetensors", {
            name: naive.Tensor(codes[dtype], shape, data) for name, (dtype, shape, data) in got.items()})
        out = self.work / "back"
        ways.run("export", folder, "bf16-safetensors", out)
        back = naive.read_all(out)
        vision = {name: tensor for name, tensor in tensors.items()
                  if name.startswith(v) and ".head." not in name}
        self.assertGreater(len(vision), 20)
        for name, tensor in vision.items():
            there = back.pop(f"model.vision_tower.vision_model.{name.removeprefix(v)}")
            self.assertEqual(
                without_nan_bits(("bfloat16", list(tensor.shape), tensor.data)),
                without_nan_bits(("bfloat16", list(there.shape), there.data)), name)
        self.assertEqual(["model.multi_modal_projector.mm_input_projection_weight",
                          "model.multi_modal_projector.mm_soft_emb_norm.weight"],
                         sorted(name for name in back if "language_model" not in name))

    def deepseek(self, source, config, prefix=""):
        """(globals, dense layers, MoE layers)"""
        kinds = ([], [])
        n, e = config["num_attention_heads"], config["n_routed_experts"]
        first = config["first_k_dense_replace"]
        for i in range(config["num_hidden_layers"]):
            p = f"{prefix}model.layers.{i}."
            a = p + "self_attn."
            layer = norms(source, p)
            s = "self_attention."
            layer[s + "kv_norm.scale"] = source(a + "kv_a_layernorm.weight", 5)
            layer[s + "wkv_a.kernel"] = source(a + "kv_a_proj_with_mqa.weight", 5 + 2, 12).T
            layer[s + "wkv_b.kernel"] = heads(source(a + "kv_b_proj.weight", n * (3 + 4), 5), n)
            layer[s + "out.kernel"] = out_heads(source(a + "o_proj.weight", 12, n * 4), n)
            if config.get("q_lora_rank"):
                layer[s + "q_norm.scale"] = source(a + "q_a_layernorm.weight", 6)
                layer[s + "wq_a.kernel"] = source(a + "q_a_proj.weight", 6, 12).T
                layer[s + "wq_b.kernel"] = heads(source(a + "q_b_proj.weight", n * (3 + 2), 6), n)
            else:
                layer[s + "query.kernel"] = heads(source(a + "q_proj.weight", n * (3 + 2), 12), n)
            if "index_n_heads" in config:
                x, y = s + "indexer.", a + "indexer."
                layer[x + "k_norm.scale"] = source(y + "k_norm.weight", 3)
                layer[x + "k_norm.bias"] = source(y + "k_norm.bias", 3)
                layer[x + "weights_proj.kernel"] = source(y + "weights_proj.weight", 2, 12).T
                layer[x + "wk.kernel"] = source(y + "wk.weight", 3, 12).T
                layer[x + "wq_b.kernel"] = heads(source(y + "wq_b.weight", 2 * 3, 6), 2)
            if i < first:
                layer.update(mlp(source, p, 10))
            else:
                b = "DeepSeekMoeBlock_0."
                m = p + "mlp."
                layer.update(mlp(source, m, 2 * 8, "shared_experts", b + "shared_experts"))
                layer[b + "MoeBlock_0.gate.kernel"] = source(m + "gate.weight", e, 12).T
                for mine, theirs, shape in (("wi_0", "gate", (8, 12)), ("wi_1", "up", (8, 12)),
                                            ("wo", "down", (12, 8))):
                    layer[b + "MoeBlock_0." + mine] = stack(
                        [source(f"{m}experts.{j}.{theirs}_proj.weight", *shape).T
                         for j in range(e)], 0)
            kinds[i >= first].append(layer)
        return (globals_of(source, prefix + "model.", prefix + "lm_head.weight"), *kinds)

    CONFIG = {**GLOBALS, "num_hidden_layers": 3, "first_k_dense_replace": 1,
              "num_attention_heads": 2, "kv_lora_rank": 5, "qk_nope_head_dim": 3,
              "qk_rope_head_dim": 2, "v_head_dim": 4, "intermediate_size": 10,
              "moe_intermediate_size": 8, "n_shared_experts": 2, "n_routed_experts": 11}

    def both_deepseek(self, source, config, parts):
        folder = self.work / "source"
        source.write(folder, config)
        tree, first, rest = parts
        want = unscanned(named(tree), first, "decoder.dense_layers")
        want = unscanned(want, rest, "decoder.moe_layers")
        self.compare(folder, "maxtext-unscanned", want)
        self.way_back(source, config, want)
        want = scanned(named(tree), first, "decoder.dense_layers") if first else named(tree)
        want = scanned(want, rest, "decoder.moe_layers")
        self.compare(folder, "maxtext-scanned", want)
        self.way_back(source, config, want)

    def test_deepseek_v2_without_a_dense_layer(self):
        source = Source(5)
        config = {**self.CONFIG, "model_type": "deepseek_v2", "q_lora_rank": None,
                  "first_k_dense_replace": 0}
        self.both_deepseek(source, config, self.deepseek(source, config))

    def test_deepseek_v3_2(self):
        source = Source(6)
        config = {**self.CONFIG, "model_type": "deepseek_v32", "q_lora_rank": 6,
                  "index_n_heads": 2, "index_head_dim": 3}
        self.both_deepseek(source, config, self.deepseek(source, config))

    def test_kimi_k2_5_is_its_text(self):
        source = Source(7)
        text = {**self.CONFIG, "model_type": "kimi_k2", "q_lora_rank": 6}
        parts = self.deepseek(source, text, "language_model.")
        source("vision_tower.patch_embed.proj.weight", 3, 2)
        source("mm_projector.linear_1.weight", 3, 2)
        self.both_deepseek(source, {"model_type": "kimi_k25", "text_config": text}, parts)
        report = json.loads(ways.run("inspect", self.work / "source", "--view", "maxtext-scanned",
                                     "--json"))
        self.assertEqual(["vision_tower.patch_embed.proj.weight", "mm_projector.linear_1.weight"],
                         report["left_out"])


class Spellings(Views):
    """The same arrays for the same tensors under other names."""

    def check(self, case, rename, view="maxtext-scanned", edit=None, options=(), told=()):
        source, other = DATA / case / "source", self.work / "other"
        other.mkdir()
        tensors = {}
        for path in sorted(source.glob("*.safetensors")):
            tensors.update({rename(name): tensor for name, tensor in naive.read(path).items()})
        naive.write(other / "model.safetensors", {k: v for k, v in tensors.items() if k})
        config = json.loads((source / "config.json").read_text())
        (other / "config.json").write_text(json.dumps(edit(config) if edit else config))
        self.assertEqual(self.arrays(source, view, *told), self.arrays(other, view, *options))

    def test_gemma3_as_transformers_has_it(self):
        self.check("gemma3", lambda name: name.replace("language_model.model.",
                                                       "model.language_model."))

    def test_gemma3_text_alone(self):
        self.check("gemma3", lambda name: name.startswith("language_model.") and name.replace(
            "language_model.model.", "model."), edit=lambda config: config["text_config"])

    def test_a_family_of_a_file_has_the_bytes_of_the_built_in_one(self):
        for view in ("maxtext-unscanned", "maxtext-scanned@dtype=fp32"):
            with self.subTest(view):
                self.check("qwen3-dense", lambda name: name, view,
                           lambda config: {**config, "model_type": "own_dense",
                                           "architectures": []},
                           ("--recipe", RECIPES / "own_maxtext.json"))
                shutil.rmtree(self.work / "other")

    def test_family_says_what_config_json_does_not(self):
        self.check("llama31", lambda name: name, "maxtext-unscanned",
                   lambda config: {**config, "rope_scaling": {"low_freq_factor": 1.0}},
                   told=("--family", "llama3.1"))


class OtherNames(Views):
    """Models of golden cases under other names, which have the same trees."""

    def renamed(self, case, name, config):
        """The case's source with the tensors that `name` gives a name."""
        folder = self.work / "renamed"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        self.tensors = {name(old): tensor
                        for old, tensor in naive.read_all(DATA / case / "source").items()
                        if name(old)}
        naive.write(folder / "model.safetensors", self.tensors)
        text = json.loads((DATA / case / "source/config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config(text)))
        return folder

    def check(self, folder, view, case, expected):
        """The view is the golden one, and the way back from there has the folder's tensors."""
        arrays = self.arrays(folder, view)
        want = safetensors(DATA / case / f"expected/{expected}.safetensors")
        want.pop("step", None)
        self.assertEqual(sorted(want), sorted(arrays))
        for name, value in want.items():
            self.assertTrue(without_nan_bits(value) == without_nan_bits(arrays[name]), name)
        shutil.copy(DATA / case / f"expected/{expected}.safetensors", folder / "model.safetensors")
        out = self.work / "back"
        shutil.rmtree(out, ignore_errors=True)
        ways.run("export", folder, "bf16-safetensors", out)
        back = naive.read_all(out)
        self.assertEqual(sorted(self.tensors), sorted(back))
        for name, tensor in self.tensors.items():
            if tensor.dtype == "BF16" and "embed_tokens" not in name:  # Gemma's are rounded
                self.assertTrue(tensor.data == back[name].data, name)

    def test_weaver_is_a_qwen3_vl(self):
        words = {"q_proj": "to_q", "k_proj": "to_k", "v_proj": "to_v", "o_proj": "to_out",
                 "q_norm": "norm_q", "k_norm": "norm_k"}

        def name(old):
            new = re.sub(r"^model\.(language_model|visual)\.", "", old)
            return re.sub(r"(?<=self_attn\.)\w+", lambda word: words[word[0]], new)
        def config(text):
            return {**text, "model_type": "weaver_omni"}
        for view, expected in (("maxtext-unscanned@dtype=source,multimodal=1", "unscanned-mm"),
                               ("maxtext-scanned@dtype=source", "scanned")):
            with self.subTest(view):
                def there(old, towers=expected.endswith("-mm")):
                    return name(old) if towers or "visual" not in old else None
                self.check(self.renamed("qwen3-vl", there, config), view, "qwen3-vl", expected)

    def test_models_that_are_the_text_alone(self):
        def name(old):
            return old.replace("model.language_model.", "model.") \
                if re.match("model.language_model|lm_head", old) else None
        def config(text):
            return text["text_config"]
        for case, view, expected in (
                ("qwen3-vl", "maxtext-scanned@dtype=source", "scanned"),
                ("qwen3-vl-moe", "maxtext-unscanned@dtype=source", "unscanned"),
                ("qwen35", "maxtext-scanned", "scanned"),
                ("gemma4-dense", "maxtext-unscanned@dtype=source", "unscanned"),
                ("gemma4-moe", "maxtext-scanned@dtype=source", "scanned"),
                ("gemma4-e2b", "maxtext-unscanned@dtype=source", "unscanned")):
            with self.subTest(case=case, view=view):
                self.check(self.renamed(case, name, config), view, case, expected)

    def test_a_qwen3_5_with_a_matrix_for_each_expert(self):
        """As the models in FP8 are."""
        out = self.work / "linear"
        ways.run("export", DATA / "qwen35/source", "bf16-safetensors@experts=linear", out)
        self.assertTrue(any(".experts.0.gate_proj.weight" in name for name in naive.read_all(out)))
        arrays = self.arrays(out, "maxtext-scanned")
        want = safetensors(DATA / "qwen35/expected/scanned.safetensors")
        self.assertEqual(sorted({*want} - {"step"}), sorted(arrays))
        for name, value in arrays.items():
            self.assertTrue(without_nan_bits(value) == without_nan_bits(want[name]), name)


    def test_a_qwen3_5_in_fp8_is_the_model_that_its_codes_are(self):
        """Both made here, of one set of random codes and scales."""
        linear = self.work / "linear"
        ways.run("export", DATA / "qwen35/source", "bf16-safetensors@experts=linear", linear)
        plain = naive.read_all(linear)
        coded = re.compile(r"layers\.\d+\..*(self_attn\.[qkvo]_proj|in_proj_qkv|in_proj_z|out_proj|"
                           r"(gate|up|down)_proj)\.weight$")
        codes = {}
        numbers = random.Random(5)
        for name, tensor in [*plain.items()]:
            if not coded.search(name) or "visual" in name:
                continue
            rows, columns = tensor.shape
            data = bytes(code if code & 0x7F != 0x7F else 0
                         for code in numbers.randbytes(rows * columns))
            weight = naive.Tensor("F8_E4M3", tensor.shape, data)
            blocks = [-(-rows // 128), -(-columns // 128)]
            scales = [numbers.uniform(1e-3, 2) for _ in range(blocks[0] * blocks[1])]
            scale = naive.Tensor("F32", blocks, naive.encode(scales, "F32"))
            codes[name], codes[name + "_scale_inv"] = weight, scale
            values = naive.decoded(weight, scale, 128, 128)
            plain[name] = naive.Tensor("BF16", tensor.shape, naive.encode(values, "BF16"))
        self.assertGreater(len(codes), 40)
        config = json.loads((DATA / "qwen35/source/config.json").read_text())
        quantized = {"quantization_config": {"quant_method": "fp8", "fmt": "e4m3",
                                             "weight_block_size": [128, 128]}}
        trees = []
        for folder, tensors, more in (("plain", plain, {}), ("fp8", {**plain, **codes}, quantized)):
            (self.work / folder).mkdir()
            (self.work / folder / "config.json").write_text(json.dumps({**config, **more}))
            naive.write(self.work / folder / "model.safetensors", tensors)
            trees.append([self.arrays(self.work / folder, f"maxtext-{form}@multimodal=1")
                          for form in ("unscanned", "scanned")])
        # The other floats go through BF16, too: A_log and norms in F32.
        self.assertEqual(sorted(trees[0][0]), sorted(trees[1][0]))
        for there, coded_there in zip(*trees):
            for name, value in there.items():
                self.assertTrue(without_nan_bits(value) == without_nan_bits(coded_there[name]), name)


class MissingTensors(Views):
    """No tensor of a model can be missing, of its encoders neither."""

    def test_of_each_kind_one(self):
        for case, view in (("olmo3", "maxtext-unscanned"), ("qwen3-next", "maxtext-unscanned"),
                           ("qwen3-vl", "maxtext-unscanned@multimodal=1"),
                           ("qwen3-vl-moe", "maxtext-unscanned@multimodal=1"),
                           ("qwen35", "maxtext-unscanned@multimodal=1"),
                           ("gemma4-dense", "maxtext-unscanned@multimodal=1"),
                           ("gemma4-moe", "maxtext-unscanned@multimodal=1"),
                           ("gemma4-e2b", "maxtext-unscanned"),
                           ("qwen3-omni", "maxtext-unscanned@multimodal=1"),
                           ("gemma3", "maxtext-unscanned@multimodal=1"),
                           ("deepseek4", "maxtext-unscanned")):
            tensors = {name: tensor for name, tensor in naive.read_all(DATA / case / "source").items()
                       if not re.match(r"mtp\.|vision_tower\.head\.", name)}
            if "multimodal" not in view:
                tensors = {name: tensor for name, tensor in tensors.items()
                           if not re.search("vision", name)}
            folder = self.work / case
            folder.mkdir()
            shutil.copy(DATA / case / "source/config.json", folder)
            last = {re.sub(r"\d+", "0", name): name for name in tensors}
            self.assertGreater(len(last), 10)
            for name in last.values():
                with self.subTest(case=case, name=name):
                    naive.write(folder / "model.safetensors",
                                {other: tensor for other, tensor in tensors.items()
                                 if other != name})
                    done = subprocess.run([ways.CKFS, "ls", folder, view], text=True,
                                          capture_output=True)
                    self.assertEqual(1, done.returncode)
                    self.assertRegex(done.stderr, r"maxtext\w*\.json:\d+: ")


class Refusals(Views):
    """Sources that do not fit: no view, and which tensor and rule."""

    def refused(self, case, pattern, tensors=None, config=None, options=(), view=None):
        source = self.work / "source"
        shutil.rmtree(source, ignore_errors=True)
        source.mkdir()
        found = naive.read_all(DATA / case / "source")
        naive.write(source / "model.safetensors", tensors(found) if tensors else found)
        text = json.loads((DATA / case / "source/config.json").read_text())
        (source / "config.json").write_text(json.dumps(config(text) if config else text))
        for name in [view] if view else ["maxtext-unscanned", "maxtext-scanned"]:
            done = subprocess.run([ways.CKFS, "ls", source, name, *options], text=True,
                                  capture_output=True)
            self.assertEqual(1, done.returncode, done.stdout)
            self.assertRegex(done.stderr, rf"^ckfs: {name.split('@')[0]}: .*{pattern}.*\n$")
        if view or options:
            return
        views = ways.run("ls", source).decode().split()
        self.assertIn("bf16-safetensors/", views)
        self.assertNotIn("maxtext-unscanned/", views)
        self.assertNotIn("maxtext-scanned/", views)
        self.assertRegex(ways.run("inspect", "--all", source).decode(), pattern)

    def test_models_that_no_family_has(self):
        self.refused("qwen3-moe", r"no rules are known for this model \(model_type mamba; --family "
                     r"names another, --recipe adds rules: ckfs-recipe\(5\)\)",
                     config=lambda c: {**c, "model_type": "mamba", "architectures": ["Mamba"]})
        self.refused("qwen3-moe", "config.json has no model_type",
                     config=lambda c: {k: v for k, v in c.items()
                                       if k not in ("model_type", "architectures")})
        done = subprocess.run([ways.CKFS, "ls", DATA / "qwen3-moe/source", "--family", "mamba"],
                              text=True, capture_output=True)
        self.assertEqual((1, "ckfs: family: \"mamba\" is neither a model_type nor a model_name of "
                          "the recipes (ckfs-recipe(5))\n"), (done.returncode, done.stderr))

    def test_tensors_that_are_missing(self):
        def without(pattern):
            return lambda t: {k: v for k, v in t.items() if not re.search(pattern, k)}
        for pattern, message in (
                (r"layers\.1\.", r'maxtext.json:\d+: "params.params.decoder.layers_0[^"]*": i 1 is '
                 r"missing, of 3 tensors like this one"),
                (r"layers\.2\.", "i 2 is missing"),
                (r"layers\.1\.self_attn\.k_proj",
                 r'"params.params.decoder.layers_0.self_attention.key.kernel": i 1 is missing'),
                (r"experts\.3\.up_proj",
                 r'maxtext.json:\d+: "model.layers.0.mlp.wi_1": 3 values of e where '
                 r"there must be 4"),
                (r"layers\.1\.mlp\.experts\.2\.down_proj",
                 r'"model.layers.1.mlp.wo": e 2 is missing'),
                (r"norm\.weight$", "no tensor fits"),
                (r"lm_head", r'maxtext.json:\d+: no tensor fits "lm_head.weight"'),
                (r"", "no tensor fits")):
            with self.subTest(pattern):
                self.refused("qwen3-moe", message, without(pattern) if pattern else
                             lambda t: {"w": t["lm_head.weight"]})

    def test_tensors_that_nobody_knows(self):
        def with_more(name):
            return lambda t: {**t, name: t["model.norm.weight"]}
        for name in ("model.layers.0.self_attn.rotary.weight", "extra", "model.layers.0.mlp.bias",
                     "params.bias"):
            with self.subTest(name):
                self.refused("qwen3-moe", rf'maxtext.json:\d+: "[^"]*{name.split(".")[-1]}" is not '
                             "a tensor that the rules know", with_more(name))
        self.refused("qwen3-moe", "i is 7, of 3 ",
                     lambda t: {**t, **{k.replace("layers.2.", "layers.7."): v
                                        for k, v in t.items() if "layers.2." in k}})

    def test_configs_that_do_not_fit(self):
        for change, message in (
                ({"hidden_size": 41}, r'"model.layers.0.mlp.wi_0": has shape \[4, 12, 40\] where it '
                 r"must have \[4, 12, 41\]"),
                ({"num_attention_heads": 5}, r"has shape \[40, 40\] where it must have \[50, 40\]"),
                ({"num_key_value_heads": 4}, "where it must have"),
                ({"head_dim": 5}, "where it must have"),
                ({"vocab_size": 102}, r'embedding": has shape \[101, 40\]'),
                ({"num_local_experts": 5, "num_experts": 5}, "4 values of e where there must be 5"),
                ({"moe_intermediate_size": 13}, "where it must have"),
                ({"num_hidden_layers": 4}, "i 3 is missing, of 4"),
                ({"num_hidden_layers": 2}, "i is 2, of 2"),
                ({"num_hidden_layers": -1}, "count: -1"),
                ({"num_hidden_layers": 2.5}, "not a whole number"),
                ({"num_hidden_layers": 1e300}, "not a whole number"),
                ({"num_attention_heads": 0}, "where it must have"),
                ({"num_attention_heads": None}, "config.json: has no number num_attention_heads"),
                ({"hidden_size": "40"}, "config.json: has no number hidden_size"),
                ({"hidden_size": 2 ** 60}, "not a whole number"),
                ({"head_dim": 0, "num_attention_heads": 0}, "where it must have")):
            with self.subTest(change):
                self.refused("qwen3-moe", message, config=lambda c: {**c, **change})

    def test_layers_of_another_kind_than_config_json_says(self):
        def turned(config):
            types = config["text_config"]["layer_types"]
            types[3], types[4] = types[4], types[3]
            return config
        self.refused("gemma4-e2b", r'maxtext_gemma4_small.json:\d+: "decoder.layers_[34].self_attn'
                     r'.\w+.weight" fits .* and should not be there', config=turned,
                     view="maxtext-unscanned")
        for change, message in (
                ({"compress_ratios": [0, 0, 128, 4, 4, 128, 4]}, r"no tensor matches|where it must"),
                ({"compress_ratios": [0, 0, 4, 128, 4, 128]}, "has no number compress_ratios"),
                ({"compress_ratios": [0, 0, 4, 128, 4, 128, 0]},
                 r"is not a tensor that the rules|where it must have \[0, 8\]"),
                ({"compress_ratios": [4, 0, 4, 128, 4, 128, 4]}, "no tensor matches"),
                ({"num_hash_layers": 2}, 'no tensor matches ".*gate.(bias|tid2eid)" in this group'),
                ({"num_hash_layers": 4}, 'no tensor matches ".*gate.(bias|tid2eid)" in this group'),
                ({"o_groups": 4}, "where it must have"),
                ({"hc_mult": 2}, "where it must have")):
            with self.subTest(change):
                self.refused("deepseek4", rf"maxtext_deepseek4.json:\d+: .*{message}",
                             config=lambda c: {**c, **change})

    def test_parameters_that_do_not_fit(self):
        self.refused("qwen3-moe", r'"params.params.[^"]*": dimension \d of shape .* is not a '
                     "multiple of 7", view="maxtext-scanned@fsdp=7")
        self.refused("qwen3-moe", r"\(exp\) is not a multiple of 8",
                     view="maxtext-unscanned@ep=8,fsdp=1")
        self.refused("qwen3-moe", "mtp=1: maxtext_qwen3_moe.json has no rules for such layers",
                     view="maxtext-scanned@mtp=1")
        self.refused("deepseek3", r'maxtext_deepseek.json:\d+: no tensor fits '
                     r'"model.layers.\{i\}.eh_proj.weight"', view="maxtext-scanned@mtp=1")
        for bad in ("fsdp=0", "fsdp=x", "ep=-1", "tp=1048577", "step=1", "dtype=f32", "mtp=2"):
            done = subprocess.run([ways.CKFS, "ls", DATA / "qwen3-moe/source",
                                   f"maxtext-scanned@{bad}"], text=True, capture_output=True)
            self.assertEqual(1, done.returncode, bad)
            self.assertRegex(done.stderr, r"is not one of|is not a whole number from 1 to 1048576")


class Meshes(Views):
    def test_every_device_has_the_chunks_of_its_part(self):
        source = DATA / "deepseek3-reshard/source"
        report = json.loads(ways.run("inspect", source, "--json", "--view",
                                     "maxtext-unscanned@ep=2,fsdp=4"))
        chunks = {a["name"].split(".", 4)[-1]: (a["shape"], a["chunk"]) for a in report["arrays"]}
        b = "DeepSeekMoeBlock_0."
        for name, parts in (
                ("self_attention.wkv_a.kernel", [8, 1]),
                ("self_attention.wkv_b.kernel", [8, 1, 1]),
                ("self_attention.wq_b.kernel", [8, 1, 1]),
                ("self_attention.out.kernel", [1, 1, 8]),
                ("mlp.wi_0.kernel", [8, 1]),
                (b + "MoeBlock_0.wi_0", [2, 4, 1]),
                (b + "MoeBlock_0.wo", [2, 1, 4]),
                (b + "MoeBlock_0.gate.kernel", [4, 1])):
            with self.subTest(name):
                shape, chunk = chunks[name]
                for extent, part, size in zip(shape, parts, chunk):
                    self.assertEqual(0, extent // part % size, (shape, parts, chunk))


if __name__ == "__main__":
    unittest.main()
