#!/usr/bin/env python3
"""A checkpoint on a network mount that streams (rclone, WebDAV): a view that is read in order asks the
server in order, for each byte about once. Needs root or fusermount3, and rclone."""

import contextlib
import hashlib
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "support")]
import rclone  # noqa: E402

CKFS = os.environ["CKFS_BIN"]
ROWS, COLUMNS, TENSORS = 2048, 7168, 6  # as an expert of DeepSeek-V3: 14.7 MB of FP8
NAME = "model.safetensors"
VIEW = "bf16-safetensors"


def checkpoint(directory):
    """Weights in FP8, each before its scales: bytes without pattern, and no NaN."""
    header, at = {}, 0
    for k in range(TENSORS):
        tensor = f"model.layers.{k}.mlp.down_proj.weight"
        for suffix, dtype, shape, size in (
                ("", "F8_E4M3", [ROWS, COLUMNS], ROWS * COLUMNS),
                ("_scale_inv", "F32", [ROWS // 128, COLUMNS // 128], ROWS * COLUMNS // 4096)):
            header[tensor + suffix] = {"dtype": dtype, "shape": shape,
                                       "data_offsets": [at, at + size]}
            at += size
    raw = json.dumps(header, separators=(",", ":")).encode()
    table = bytes(b ^ 1 if b & 0x7F == 0x7F else b for b in range(256))
    with open(directory / NAME, "wb") as file:
        file.write(struct.pack("<Q", len(raw)) + raw)
        for entry in header.values():
            size = entry["data_offsets"][1] - entry["data_offsets"][0]
            if entry["dtype"] == "F32":
                file.write(struct.pack("<f", 0.0078125) * (size // 4))
            else:
                file.write(os.urandom(size).translate(table))
    (directory / "config.json").write_text(json.dumps(
        {"model_type": "deepseek_v3", "torch_dtype": "bfloat16",
         "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}))


def digest(path):
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while part := file.read(1 << 20):
            digest.update(part)
    return digest.hexdigest()


class Rclone(unittest.TestCase):
    def setUp(self):
        self.stack = contextlib.ExitStack()
        self.addCleanup(self.stack.close)
        self.work = pathlib.Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        self.source = self.work / "source"
        self.source.mkdir()
        checkpoint(self.source)

    @contextlib.contextmanager
    def view(self, source, name):
        target = self.work / name
        target.mkdir()
        subprocess.run([CKFS, "mount", str(source), str(target)], check=True)
        try:
            yield target / VIEW / NAME
        finally:
            subprocess.run([CKFS, "umount", str(target)], check=True)

    def test_a_view_in_order_is_a_source_in_order(self):
        with self.view(self.source, "local") as path:
            expected = digest(path)
        server = self.stack.enter_context(rclone.served(self.source, self.work / "log"))
        size = (self.source / NAME).stat().st_size
        with rclone.mounted(server.url, self.work / "network") as network:
            with self.view(network, "view") as path:
                requests, read = server.requests(), server.bytes_read()
                self.assertEqual(digest(path), expected)
                requests, read = server.requests() - requests, server.bytes_read() - read
        print(f"requests {requests}, bytes of each byte {read / size:.2f}", file=sys.stderr)
        # A stream and a few starts; when each tensor's scales were fetched alone it was some 80
        # requests for six tensors, and 20 bytes for each byte.
        self.assertLessEqual(requests, 10)
        self.assertLess(read, 2 * size)


if __name__ == "__main__":
    unittest.main()
