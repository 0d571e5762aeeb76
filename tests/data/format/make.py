"""Writes the files of this folder with the real libraries (safetensors 0.8, torch, json).

    python make.py

every_dtype.safetensors: names that need escapes, ranks 0 to 3, zero-size tensors, all dtypes torch
has. index.json: an index as json.dumps writes it, with names outside ASCII.
"""

import json
import pathlib

import torch
from safetensors.torch import save_file

here = pathlib.Path(__file__).parent
dtypes = [
    "bool", "uint8", "int8", "float8_e5m2", "float8_e4m3fn", "float8_e8m0fnu", "float8_e4m3fnuz",
    "float8_e5m2fnuz", "int16", "uint16", "float16", "bfloat16", "int32", "uint32", "float32",
    "complex64", "float64", "int64", "uint64",
]
tensors = {}
for number, name in enumerate(dtypes):
    raw = torch.arange(number, number + 48, dtype=torch.uint8)
    if name == "bool":
        raw = raw & 1
    tensors[f"layers.{number}.weight"] = raw.view(getattr(torch, name)).reshape(2, -1).contiguous()
tensors["zero"] = torch.zeros((3, 0), dtype=torch.float32)
tensors["scalar"] = torch.tensor(2.5, dtype=torch.float64)
tensors["cube"] = torch.arange(24, dtype=torch.int16).reshape(2, 3, 4)
tensors[""] = torch.tensor([1], dtype=torch.uint8)
tensors['quote " back \\ tab \t newline \n bell \x07 rubout \x7f'] = torch.tensor([2], dtype=torch.uint8)
tensors["größe.重み.🙂"] = torch.tensor([3], dtype=torch.uint8)
save_file(tensors, here / "every_dtype.safetensors", metadata={"format": "pt"})

names = sorted(["a.weight", "größe.重み.🙂", 'quote " back \\ tab \t rubout \x7f', "b.weight"])
index = {
    "metadata": {"total_size": 12345678901234},
    "weight_map": {name: f"model-0000{i}-of-00004.safetensors" for i, name in enumerate(names)},
}
(here / "index.json").write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")
