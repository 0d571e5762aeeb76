"""What the loader tests share: a mount, the demo checkpoint, and a checkpoint's BF16 form as torch
makes it."""
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS / "golden"))
from ways import DATA, mounted, run  # noqa: E402,F401

import numpy  # noqa: E402
import torch  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

# The cases that are whole models.
CASES = ["deepseek-v3-fp8", "deepseek-v31-ue8m0", "llama-bf16", "qwen-fp8-bf16-scale"]
CASTS = {"bf16-safetensors": torch.bfloat16, "fp16-safetensors": torch.float16,
         "fp32-safetensors": torch.float32}


class WorkDirectory(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="ckfs-loaders-")
        self.addCleanup(temporary.cleanup)
        self.work = pathlib.Path(temporary.name)


def make_demo(out, *options):
    subprocess.run([sys.executable, TESTS / "tools" / "make_demo.py", out, *options], check=True,
                   stdout=subprocess.DEVNULL)
    return out


def load_all(directory):
    tensors = {}
    for path in sorted(directory.glob("*.safetensors")):
        tensors.update(load_file(path))
    return tensors


def same_bits(a, b):
    """Equal dtype, shape and bytes; NaN counts."""
    return (a.dtype == b.dtype and a.shape == b.shape
            and torch.equal(a.contiguous().reshape(-1).view(torch.uint8),
                            b.contiguous().reshape(-1).view(torch.uint8)))


def without_nan(source, out):
    """A copy of a checkpoint whose NaN, infinities and enormous values are replaced by small
    numbers in the files' bytes, so that a model made of it has finite logits."""
    shutil.copytree(source, out)
    for path in sorted(out.glob("*.safetensors")):
        data = bytearray(path.read_bytes())
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8:8 + length])
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            begin, end = (8 + length + offset for offset in entry["data_offsets"])
            view = memoryview(data)[begin:end]
            if entry["dtype"] == "F8_E4M3":
                codes = numpy.frombuffer(view, numpy.uint8)
                codes[codes & 0x7F == 0x7F] = 0x38  # 1.0
            elif entry["dtype"] == "BF16":
                codes = numpy.frombuffer(view, numpy.uint8).reshape(-1, 2)
                values = (codes.copy().view(numpy.uint16).astype(numpy.uint32) << 16).view(
                    numpy.float32)
                codes[~(numpy.abs(values.reshape(-1)) < 4)] = (0x80, 0x3F)  # 1.0
            elif entry["dtype"] == "F32":
                codes = numpy.frombuffer(view, numpy.uint8).reshape(-1, 4)
                values = codes.copy().view(numpy.float32).reshape(-1)
                codes[~(numpy.abs(values) < 4)] = numpy.frombuffer(
                    numpy.float32(0.5).tobytes(), numpy.uint8)
        path.chmod(0o644)
        path.write_bytes(data)
    return out


def dequantized(tensors, block):
    """{name: Tensor} of the BF16 form: DeepSeek-V3's weight_dequant, over whole tensors."""
    out = {}
    for name, tensor in tensors.items():
        if name.endswith("_scale_inv"):
            continue
        scale = tensors.get(name + "_scale_inv")
        if scale is not None:
            rows, columns = tensor.shape
            factor = scale.to(torch.float32).repeat_interleave(block[0], 0)[:rows]
            factor = factor.repeat_interleave(block[1], 1)[:, :columns]
            tensor = (tensor.to(torch.float32) * factor).to(torch.bfloat16)
        out[name] = tensor
    return out


def bf16_reference(source, out):
    """The directory a user would convert `source` to with torch."""
    config = json.loads((source / "config.json").read_text())
    block = config.pop("quantization_config", {}).get("weight_block_size")
    out.mkdir()
    (out / "config.json").write_text(json.dumps(config))
    tensors = dequantized(load_all(source), block)
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    return out
