"""What the tests of the Python package begin with: the package of this tree over the library of the build
(or, with CKFS_WHEEL, the one that is installed), and small checkpoints."""
import json
import os
import pathlib
import struct
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("CKFS_BUILD", ROOT / "build/release")).resolve()
DATA = ROOT / "tests/data/hf"
if "CKFS_WHEEL" not in os.environ:
    sys.path.insert(0, str(ROOT / "src/python"))
    os.environ["CKFS_LIBRARY"] = str(BUILD / "libckfs.so.1")
    os.environ.setdefault("CKFS_BIN", str(BUILD / "ckfs"))
    # Children that tests start import the same.
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path[:1])

FP8 = DATA / "deepseek-v3-fp8/source"
PLAIN = DATA / "llama-bf16/source"


def safetensors_file(tensors):
    """{name: (dtype, shape, bytes)} as the bytes of a file."""
    header, data = {}, b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape,
                        "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def read_safetensors(path):
    """{name: (dtype, shape, bytes)} of a file, by no library."""
    data = pathlib.Path(path).read_bytes()
    size, = struct.unpack("<Q", data[:8])
    tensors = {}
    for name, entry in json.loads(data[8:8 + size]).items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            tensors[name] = (entry["dtype"], tuple(entry["shape"]),
                             data[8 + size + begin:8 + size + end])
    return tensors


class TestCase(unittest.TestCase):
    def work(self):
        """A new directory."""
        directory = tempfile.TemporaryDirectory(prefix="ckfs-python-")
        self.addCleanup(directory.cleanup)
        return pathlib.Path(directory.name)

    def source(self, **tensors):
        """A checkpoint of one file."""
        path = self.work()
        (path / "model.safetensors").write_bytes(safetensors_file(tensors))
        return path
