#!/usr/bin/env python3
"""F8 of a quantized checkpoint that has no scale: no view shows it by a guess, and each does what
`unscaled` says. Also the codes of quanto, ComfyUI and of ModelOpt's fused experts, whose values are
computed here, one at a time."""
import json
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1] / "tools"),
                str(pathlib.Path(__file__).resolve().parent)]
import naive  # noqa: E402
import ways  # noqa: E402

VIEWS = {"bf16-safetensors": "BF16", "fp16-safetensors": "F16", "fp32-safetensors": "F32",
         "fp32-consolidated": "F32"}
Tensor = naive.Tensor
FINITE = bytes(code for code in range(256) if code & 0x7F != 0x7F)


def source(directory, tensors, config=None):
    directory.mkdir()
    naive.write(directory / "model.safetensors", tensors)
    if config is not None:
        (directory / "config.json").write_text(json.dumps(config))
    return directory


def shown(directory, view):
    with tempfile.TemporaryDirectory() as work:
        ways.run("export", directory, view, pathlib.Path(work) / "out")
        return naive.read_all(pathlib.Path(work) / "out")


def labels(directory, view):
    listed = json.loads(ways.run("ls", "--json", directory, view))["entries"]
    return {entry["path"]: entry["exactness"] for entry in listed}


class Unscaled(unittest.TestCase):
    def setUp(self):
        self.work = tempfile.TemporaryDirectory()
        self.addCleanup(self.work.cleanup)
        self.tensors = {
            "a.weight": Tensor("F8_E4M3", [2, 127], FINITE),
            "a.weight_scale": Tensor("F32", [1], struct.pack("<f", 0.5)),
            "b.weight": Tensor("F8_E4M3", [127, 2], FINITE[::-1])}
        self.source = source(pathlib.Path(self.work.name) / "in", self.tensors,
                             {"quantization_config": {"quant_method": "fp8"}})

    def test_nothing_is_shown_where_nobody_says(self):
        for view in VIEWS:
            done = subprocess.run([ways.CKFS, "ls", self.source, view], capture_output=True, text=True)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn('"b.weight": F8_E4M3 without a scale', done.stderr)
            self.assertIn("unscaled=one", done.stderr)

    def test_each_view_does_what_is_said(self):
        stored = self.tensors["b.weight"]
        for view, dtype in VIEWS.items():
            scaled = naive.encode([value / 2 for value in naive.values(self.tensors["a.weight"])],
                                  dtype)
            one = shown(self.source, f"{view}@unscaled=one")
            self.assertEqual((one["b.weight"].dtype, one["b.weight"].shape), (dtype, [127, 2]))
            self.assertEqual(one["b.weight"].data, naive.encode(naive.values(stored), dtype))
            keep = shown(self.source, f"{view}@unscaled=keep")
            self.assertEqual((keep["b.weight"].dtype, keep["b.weight"].data),
                             ("F8_E4M3", stored.data))
            drop = shown(self.source, f"{view}@unscaled=drop")
            self.assertEqual(set(drop), {"a.weight"})
            for made in (one, keep, drop):
                self.assertEqual(made["a.weight"].data, scaled)
        self.assertEqual(labels(self.source, "bf16-safetensors@unscaled=one")["model.safetensors"],
                         "exact")
        self.assertEqual(labels(self.source, "bf16-safetensors@unscaled=keep")["model.safetensors"],
                         "bit-exact")

    def test_a_model_of_nothing_but_F8_is_widened_where_somebody_says_so(self):
        plain = source(pathlib.Path(self.work.name) / "plain", {"b.weight": self.tensors["b.weight"]})
        self.assertEqual(shown(plain, "bf16-safetensors")["b.weight"].dtype, "F8_E4M3")
        self.assertEqual(shown(plain, "bf16-safetensors@unscaled=one")["b.weight"].data,
                         naive.encode(naive.values(self.tensors["b.weight"]), "BF16"))


class NewSpellings(unittest.TestCase):
    def check(self, tensors, expected, config=None):
        with tempfile.TemporaryDirectory() as work:
            made = source(pathlib.Path(work) / "in", tensors, config)
            for view, dtype in VIEWS.items():
                found = shown(made, view)
                self.assertEqual({name: (t.dtype, t.shape) for name, t in found.items()},
                                 {name: (dtype, shape) for name, (shape, _) in expected.items()})
                for name, (_, values) in expected.items():
                    self.assertEqual(found[name].data, naive.encode(values, dtype), (view, name))

    def test_quanto(self):
        scales = naive.encode([0.37, 0.0123], "BF16")
        by_row = naive.values(Tensor("BF16", [2], scales))
        codes = bytes(range(256))
        signed = struct.unpack("<256b", codes)
        rounded = [naive.values(Tensor("BF16", [1], naive.encode([code * by_row[i // 128]], "BF16")))[0]
                   for i, code in enumerate(signed)]
        self.check({"m.weight._data": Tensor("I8", [2, 4, 32], codes),
                    "m.weight._scale": Tensor("BF16", [2, 1, 1], scales),
                    "m.input_scale": Tensor("BF16", [], scales[:2])},
                   {"m.weight": ([2, 4, 32], rounded)})

    def test_comfyui(self):
        scale = naive.encode([0.0031], "F32")
        factor = naive.values(Tensor("F32", [1], scale))[0]
        self.check({"m.weight": Tensor("F8_E4M3", [2, 127], FINITE),
                    "m.scale_weight": Tensor("F32", [], scale),
                    "m.scale_input": Tensor("F32", [], scale),
                    "scaled_fp8": Tensor("F8_E4M3", [2], b"\0\0")},
                   {"m.weight": ([2, 127], [naive.to_f32(naive.E4M3[c] * factor) for c in FINITE])})

    def test_fused_experts_of_modelopt(self):
        codes = bytes(range(64)) * 2
        scales = bytes([0x38, 0x41, 0x2C, 0x50]) * 4
        whole = naive.values(Tensor("F32", [2], struct.pack("<2f", 0.011, 0.3)))
        values = []
        for i, code in enumerate(code for byte in codes for code in (byte & 15, byte >> 4)):
            scale = naive.to_f32(naive.E4M3[scales[i // 16]] * whole[i // 128])
            values.append(naive.to_f32(naive.E2M1[code] * scale) + 0.0)  # this tool has no -0
        self.check({"e.up": Tensor("U8", [2, 4, 16], codes),
                    "e.up_weight_scale": Tensor("F8_E4M3", [2, 4, 2], scales),
                    "e.up_weight_scale_2": Tensor("F32", [2], struct.pack("<2f", *whole)),
                    "e.up_input_scale": Tensor("F32", [2], struct.pack("<2f", 1, 1))},
                   {"e.up": ([2, 4, 32], values)},
                   {"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}})



class FormatsInTheHeader(unittest.TestCase):
    """ComfyUI names the format of each layer in the header, where no `.comfy_quant` is."""

    def test_only_floats_of_eight_bits_are_decoded(self):
        with tempfile.TemporaryDirectory() as work:
            file = pathlib.Path(work) / "model.safetensors"
            for name, decoded in (("float8_e4m3fn", True), ("nvfp4", False), ("mxfp8", False)):
                layers = {"layers": {"m": {"format": name}}}
                header = json.dumps({
                    "__metadata__": {"_quantization_metadata": json.dumps(layers)},
                    "m.weight": {"dtype": "F8_E4M3", "shape": [2, 2], "data_offsets": [0, 4]},
                    "m.weight_scale": {"dtype": "F32", "shape": [], "data_offsets": [4, 8]},
                }).encode()
                file.write_bytes(struct.pack("<Q", len(header)) + header + bytes([0x38, 0x40, 0, 0xB8])
                                 + struct.pack("<f", 0.5))
                with self.subTest(name):
                    if decoded:
                        self.assertEqual(shown(file, "fp32-safetensors")["m.weight"].data,
                                         struct.pack("<4f", 0.5, 1, 0, -0.5))
                        continue
                    done = subprocess.run([ways.CKFS, "ls", file, "fp32-safetensors"],
                                          capture_output=True, text=True)
                    self.assertEqual(done.returncode, 1)
                    self.assertIn(f'layer "m" is "{name}"', done.stderr)


if __name__ == "__main__":
    unittest.main()
