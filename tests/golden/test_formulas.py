#!/usr/bin/env python3
"""Quantizations of which no tool that writes them runs here: sources are made from random codes, and
views compared with the formula that each format's description gives, one element at a time. Also
configurations in files of their own, and codes of every width."""
import json
import pathlib
import random
import struct
import sys
import tempfile
import unittest

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1] / "tools"),
                str(pathlib.Path(__file__).resolve().parent)]
import digest  # noqa: E402
import naive  # noqa: E402
import ways  # noqa: E402

VIEWS = {"bf16-safetensors": "BF16", "fp16-safetensors": "F16", "fp32-safetensors": "F32"}
Tensor = naive.Tensor


class Source:
    """A checkpoint that is made of random codes, and what its views must hold."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.tensors = {"norm.weight": Tensor("BF16", [8], struct.pack("<8H", *range(0x3F80, 0x3F88)))}
        self.files = {}  # beside the weights: {name: JSON}
        self.weights = {}  # {name: (shape, values)}

    def bytes(self, dtype, shape, values=range(256)):
        """A tensor of bytes, each one of `values`."""
        count = 1
        for extent in shape:
            count *= extent
        return Tensor(dtype, shape, bytes(self.random.choices(values, k=count)))

    def floats(self, dtype, shape):
        count = 1
        for extent in shape:
            count *= extent
        numbers = [self.random.uniform(0.5, 2) * 2.0 ** self.random.randint(-12, 2)
                   for _ in range(count)]
        return Tensor(dtype, shape, naive.encode(numbers, dtype))

    def write(self, directory, name="model.safetensors"):
        directory.mkdir()
        naive.write(directory / name, self.tensors)
        for file, text in self.files.items():
            (directory / file).write_text(json.dumps(text))


def i32(source, shape):
    tensor = source.bytes("U8", [*shape[:-1], shape[-1] * 4])
    return Tensor("I32", shape, tensor.data)


def scaled(codes, columns, scales, block_rows, block_columns):
    """f32(code * scale) of a matrix in blocks"""
    across = -(-columns // block_columns)
    return [naive.to_f32(code * scales[i // columns // block_rows * across +
                                       i % columns // block_columns])
            for i, code in enumerate(codes)]


def e4m3(tensor):
    return [naive.E4M3[code] for code in tensor.data]


def powers(tensor, last=float("nan")):
    """Bytes as powers of two; 255 is `last`."""
    return [last if code == 255 else 2.0 ** (code - 127) for code in tensor.data]


EXPONENTS = [0, 1, 2, 254, 255, *range(107, 147)]


def deepseek_v4():
    """Dense weights in blocks with powers of two, experts of E2M1 codes with one for 32."""
    source = Source(1)
    source.files["config.json"] = {"model_type": "deepseek_v4", "torch_dtype": "bfloat16",
                                   "quantization_config": {
                                       "quant_method": "fp8", "fmt": "e4m3", "scale_fmt": "ue8m0",
                                       "weight_block_size": [128, 128]}}
    module = "layers.0.attn.wq_a"
    weight = source.tensors[module + ".weight"] = source.bytes("F8_E4M3", [160, 200])
    scale = source.tensors[module + ".scale"] = source.bytes("F8_E8M0", [2, 2], EXPONENTS)
    source.weights[module + ".weight"] = [160, 200], scaled(e4m3(weight), 200, powers(scale), 128,
                                                            128)
    for expert in range(3):
        module = f"layers.0.ffn.experts.{expert}.w1"
        weight = source.tensors[module + ".weight"] = source.bytes("I8", [24, 48])
        scale = source.tensors[module + ".scale"] = source.bytes("F8_E8M0", [24, 3], EXPONENTS)
        codes = [naive.E2M1[code] for code in naive.nibbles(weight.data)]
        source.weights[module + ".weight"] = [24, 96], scaled(codes, 96, powers(scale), 1, 32)
    return source


def mistral():
    """Mistral's own names, one scale for a tensor, and no config.json."""
    source = Source(2)
    for name in ("wq", "wo"):
        module = f"layers.0.attention.{name}"
        weight = source.tensors[module + ".weight"] = source.bytes("F8_E4M3", [40, 24])
        scale = source.tensors[module + ".qscale_weight"] = source.floats("F32", [])
        source.tensors[module + ".qscale_act"] = source.floats("F32", [])
        source.weights[module + ".weight"] = [40, 24], scaled(e4m3(weight), 24,
                                                              naive.values(scale), 40, 24)
    return source


def auto_fp8():
    """AutoFP8: one scale for a tensor, of rank 0 or 1, and static scales of activations."""
    source = Source(3)
    source.files["config.json"] = {"torch_dtype": "bfloat16", "quantization_config": {
        "quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]}}
    for name, shape in (("q_proj", []), ("k_proj", [1])):
        module = f"model.layers.0.self_attn.{name}"
        weight = source.tensors[module + ".weight"] = source.bytes("F8_E4M3", [40, 24])
        scale = source.tensors[module + ".weight_scale"] = source.floats("F32", shape)
        source.tensors[module + ".input_scale"] = source.floats("F32", shape)
        source.weights[module + ".weight"] = [40, 24], scaled(e4m3(weight), 24,
                                                              naive.values(scale), 40, 24)
    return source


def fp8_of_tensors():
    """transformers' fp8 without blocks (Ministral-3): a scalar for a tensor."""
    source = Source(8)
    source.files["config.json"] = {"torch_dtype": "bfloat16", "quantization_config": {
        "quant_method": "fp8", "activation_scheme": "static", "weight_block_size": None}}
    name = "model.layers.0.mlp.up_proj"
    weight = source.tensors[name + ".weight"] = source.bytes("F8_E4M3", [140, 200])
    scale = source.tensors[name + ".weight_scale_inv"] = source.floats("BF16", [])
    source.tensors[name + ".activation_scale"] = source.floats("BF16", [])
    source.weights[name + ".weight"] = [140, 200], scaled(e4m3(weight), 200, naive.values(scale),
                                                          140, 200)
    return source


def fbgemm():
    """One scale for each row, and a bound for activations."""
    source = Source(4)
    source.files["config.json"] = {"torch_dtype": "bfloat16", "quantization_config": {
        "quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}}
    module = "model.layers.0.mlp.up_proj"
    weight = source.tensors[module + ".weight"] = source.bytes("F8_E4M3", [40, 24])
    scale = source.tensors[module + ".weight_scale"] = source.floats("F32", [40, 1])
    source.tensors[module + ".input_scale_ub"] = source.floats("F32", [])
    source.weights[module + ".weight"] = [40, 24], scaled(e4m3(weight), 24, naive.values(scale), 1,
                                                          24)
    return source


def modelopt_mx():
    """ModelOpt's MXFP8 and MXFP4: a power of two for 32 elements of a row; in a file of its own."""
    source = Source(5)
    source.files["config.json"] = {"torch_dtype": "bfloat16"}
    source.files["hf_quant_config.json"] = {"producer": {"name": "modelopt"}, "quantization": {
        "quant_algo": "MIXED_PRECISION", "exclude_modules": ["lm_head"]}}
    module = "model.layers.0.mlp.up_proj"
    weight = source.tensors[module + ".weight"] = source.bytes("F8_E4M3", [24, 96])
    scale = source.tensors[module + ".weight_scale"] = source.bytes("U8", [24, 3], EXPONENTS)
    source.weights[module + ".weight"] = [24, 96], scaled(e4m3(weight), 96,
                                                          powers(scale, float("inf")), 1, 32)
    module = "model.layers.0.mlp.down_proj"
    weight = source.tensors[module + ".weight"] = source.bytes("U8", [24, 48])
    scale = source.tensors[module + ".weight_scale"] = source.bytes("U8", [24, 3], EXPONENTS)
    codes = [naive.E2M1[code] for code in naive.nibbles(weight.data)]
    source.weights[module + ".weight"] = [24, 96], scaled(codes, 96, powers(scale, float("inf")), 1,
                                                          32)
    return source


def mxfp8():
    """transformers' mxfp8: a power of two for 32 elements of a row."""
    source = Source(6)
    source.files["config.json"] = {"torch_dtype": "bfloat16", "quantization_config": {
        "quant_method": "mxfp8"}}
    name = "model.layers.0.mlp.up_proj.weight"
    weight = source.tensors[name] = source.bytes("F8_E4M3", [24, 96])
    scale = source.tensors[name + "_scale_inv"] = source.bytes("U8", [24, 3], EXPONENTS)
    source.weights[name] = [24, 96], scaled(e4m3(weight), 96, powers(scale, float("inf")), 1, 32)
    return source


def fused_fp8():
    """Experts of DeepSeek's kind, stacked: each matrix has a grid of its own, with a partial edge."""
    source = Source(7)
    source.files["config.json"] = {"torch_dtype": "bfloat16", "quantization_config": {
        "quant_method": "fp8", "weight_block_size": [16, 32]}}
    name = "model.layers.0.mlp.experts.down_proj"
    weight = source.tensors[name] = source.bytes("F8_E4M3", [3, 40, 72])
    scale = source.tensors[name + "_scale_inv"] = source.floats("F32", [3, 3, 3])
    scales, codes, numbers = naive.values(scale), e4m3(weight), []
    for expert in range(3):
        numbers += scaled(codes[expert * 2880:(expert + 1) * 2880], 72,
                          scales[expert * 9:(expert + 1) * 9], 16, 32)
    source.weights[name] = [3, 40, 72], numbers
    return source


FORMULAS = (deepseek_v4, mistral, auto_fp8, fp8_of_tensors, fbgemm, modelopt_mx, mxfp8, fused_fp8)


def fields(stream, bits, first, count):
    """`count` codes of a list of words, dense, low bits first"""
    whole = sum(word << 32 * i for i, word in enumerate(stream))
    return [whole >> bits * (first + k) & (1 << bits) - 1 for k in range(count)]


def in_words(stream, bits, count):
    """The same where no code lies in two words"""
    per_word = 32 // bits
    return [stream[k // per_word] >> k % per_word * bits & (1 << bits) - 1 for k in range(count)]


def pack_quantized(bits, zeros, old, rows=24, columns=96, group=32):
    """compressed-tensors' packed integers of one width."""
    source = Source(100 * bits + 10 * zeros + old)
    weights = {"num_bits": bits, "type": "int", "symmetric": not zeros, "strategy": "group",
               "group_size": group}
    source.files["config.json"] = {"torch_dtype": "bfloat16", "quantization_config": {
        "quant_method": "compressed-tensors", "format": "pack-quantized",
        "version": "0.12.2" if old else "0.20.0",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}}}
    module, per_word = "model.layers.0.mlp.up_proj", 32 // bits

    def width(count):
        return -(-count // per_word) if old else -(-count * bits // 32)

    def codes(words, count):
        return in_words(words, bits, count) if old else fields(words, bits, 0, count)

    packed = source.tensors[module + ".weight_packed"] = i32(source, [rows, width(columns)])
    scale = source.tensors[module + ".weight_scale"] = source.floats("BF16", [rows,
                                                                             columns // group])
    source.tensors[module + ".weight_shape"] = Tensor("I64", [2], struct.pack("<2q", rows, columns))
    groups, half = columns // group, 1 << bits - 1
    zero = [[0] * rows for _ in range(groups)]
    if zeros:
        points = source.tensors[module + ".weight_zero_point"] = i32(source, [width(rows), groups])
        stored = naive.words(points)
        zero = [[code - half for code in codes(stored[g::groups], rows)] for g in range(groups)]
    stream, scales, numbers = naive.words(packed), naive.values(scale), []
    for row in range(rows):
        line = stream[row * width(columns):(row + 1) * width(columns)]
        numbers += [(code - half - zero[i // group][row]) * scales[row * groups + i // group]
                    for i, code in enumerate(codes(line, columns))]
    rounded = naive.values(Tensor("BF16", [], naive.encode(numbers, "BF16")))
    source.weights[module + ".weight"] = [rows, columns], rounded
    return source


# What wrote a file of GPTQ, and the zero point that a stored one of all ones then means.
GPTQ_WRITERS = {"autogptq": None, "gptqmodel:7.7.0": "wraps", "gptqmodel:2.0.0": "carries"}


def gptq(bits, writer, inputs=64, outputs=32, group=32, own_file=None):
    """GPTQ of one width whose zero points are any, those with all bits set among them."""
    source = Source(bits)
    quantization = {"bits": bits, "group_size": group, "desc_act": False, "sym": False}
    if GPTQ_WRITERS[writer]:
        quantization |= {"checkpoint_format": "gptq", "meta": {"quantizer": [writer]}}
    if own_file is None:
        source.files["config.json"] = {"torch_dtype": "bfloat16", "quantization_config":
                                       quantization | {"quant_method": "gptq"}}
    else:
        source.files["config.json"] = {"torch_dtype": "bfloat16"}
        source.files[own_file] = quantization
    module, groups, mask = "model.layers.0.mlp.up_proj", inputs // group, (1 << bits) - 1
    codes = source.tensors[module + ".qweight"] = i32(source, [inputs * bits // 32, outputs])
    zeros = i32(source, [groups, outputs * bits // 32])
    zeros.data = zeros.data[:2] + b"\xff\xff\xff\xff\xff\xff" + zeros.data[8:]
    source.tensors[module + ".qzeros"] = zeros
    scale = source.tensors[module + ".scales"] = source.floats("F16", [groups, outputs])
    columns = [fields(naive.words(codes)[c::outputs], bits, 0, inputs) for c in range(outputs)]
    line, scales, numbers = outputs * bits // 32, naive.values(scale), []
    one = sum(1 << at for at in range(0, 32, bits)) if 32 % bits == 0 else 0
    points = []
    for g in range(groups):
        words = naive.words(zeros)[g * line:(g + 1) * line]
        if GPTQ_WRITERS[writer] == "carries" and one:
            points.append(fields([word + one & 0xFFFFFFFF for word in words], bits, 0, outputs))
            continue
        points.append([code + 1 & mask if GPTQ_WRITERS[writer] else code + 1
                       for code in fields(words, bits, 0, outputs)])
    for c in range(outputs):
        numbers += [naive.to_f32((columns[c][i] - points[i // group][c]) *
                                 scales[i // group * outputs + c]) for i in range(inputs)]
    source.weights[module + ".weight"] = [outputs, inputs], numbers
    return source


class Views(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="ckfs-formulas-")
        self.addCleanup(temporary.cleanup)
        self.work = pathlib.Path(temporary.name)

    def check(self, source, views=VIEWS, how=("export",), engine=(), file="model.safetensors"):
        directory = self.work / f"source{len(list(self.work.iterdir()))}"
        source.write(directory, file)
        for view in views:
            dtype = VIEWS[view]
            for way in how:
                out = self.work / f"out{len(list(self.work.iterdir()))}"
                out.mkdir()
                ways.WAYS[way](directory, view, out, self.work, list(engine))
                got = naive.read_all(out)
                self.assertEqual(sorted([*source.weights, "norm.weight"]), sorted(got))
                for name, (shape, numbers) in source.weights.items():
                    self.assertEqual((dtype, shape), (got[name].dtype, got[name].shape), name)
                    self.assertTrue(naive.encode(numbers, dtype) ==
                                    digest.canonical_nan(dtype, got[name].data),
                                    f"{name} in {view} by {way}")


class Formula(Views):
    def test_of_formats_without_a_writer_here(self):
        for make in FORMULAS:
            with self.subTest(make.__name__):
                file = "consolidated.safetensors" if make is mistral else "model.safetensors"
                self.check(make(), file=file)
                self.check(make(), ["bf16-safetensors"], ways.WAYS, ["--tile-bytes", "4096"], file)

    def test_of_integers_of_every_width(self):
        for bits in range(1, 9):
            for zeros in (False, True):
                for old in (False, True):
                    with self.subTest(bits=bits, zeros=zeros, old=old):
                        self.check(pack_quantized(bits, zeros, old), ["bf16-safetensors"])

    def test_of_long_rows_that_end_within_a_word(self):
        for bits in (3, 5, 6, 7):
            with self.subTest(bits=bits):
                source = pack_quantized(bits, False, False, 3, 2056, 8)
                self.check(source, ["bf16-safetensors"], ways.WAYS, ["--tile-bytes", "4096"])

    def test_of_gptq_of_every_width_and_writer(self):
        for bits in (2, 3, 4, 8):
            for writer in GPTQ_WRITERS:
                with self.subTest(bits=bits, writer=writer):
                    self.check(gptq(bits, writer), ["bf16-safetensors"])


class OwnFile(Views):
    """A configuration that stands in a file of its own, as before config.json had it."""

    def test_of_gptq(self):
        for writer in GPTQ_WRITERS:
            source = gptq(4, writer, own_file="quantize_config.json")
            self.check(source, ["bf16-safetensors"])

    def test_decides_as_config_json_does(self):
        source = gptq(4, "autogptq", own_file="quantize_config.json")
        source.files["quantize_config.json"]["group_size"] = 16
        source.write(self.work / "source")
        with self.assertRaisesRegex(AssertionError, "groups of 16 of 64 inputs are 4"):
            ways.run("ls", self.work / "source", "bf16-safetensors")
        # But config.json has the last word.
        source.files["config.json"] = gptq(4, "autogptq").files["config.json"]
        self.check(source, ["bf16-safetensors"])

    def test_of_awq(self):
        case = ways.DATA / "awq-int4"
        source = self.work / "source"
        source.mkdir()
        config = json.loads((case / "source" / "config.json").read_text())
        quantization = config.pop("quantization_config")
        own = {"w_bit": quantization["bits"], "q_group_size": quantization["group_size"],
               "zero_point": quantization["zero_point"], "version": "GEMM"}
        for path in (case / "source").iterdir():
            if path.name != "config.json":
                (source / path.name).symlink_to(path)
        (source / "config.json").write_text(json.dumps(config))
        (source / "quant_config.json").write_text(json.dumps(own))
        out = self.work / "out"
        ways.run("export", source, "bf16-safetensors", out)
        expected = json.loads((case / "expected.json").read_text())["bf16-safetensors"]
        self.assertEqual([], list(digest.differences(expected, str(out))))
        self.assertFalse((out / "quant_config.json").exists())


if __name__ == "__main__":
    unittest.main()
