"""Stands in for llama.cpp's converter: `convert_hf_to_gguf.py DIRECTORY --outfile F --outtype bf16`.

The converter itself is no package; `./dev test --all` runs it (tests/loaders/matrix.py, llama_cpp).
This one takes the same arguments, reads every tensor of the directory, and names the model after it.
"""
import argparse
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from complete_model import read_model  # noqa: E402

parser = argparse.ArgumentParser()
parser.add_argument("model", type=pathlib.Path)
parser.add_argument("--outfile", type=pathlib.Path, required=True)
parser.add_argument("--outtype", choices=["bf16"], required=True)
arguments = parser.parse_args()
tensors = read_model(arguments.model)
assert (arguments.model / "config.json").exists()
arguments.outfile.write_text(f"{arguments.model.name}: {len(tensors)} tensors\n")
