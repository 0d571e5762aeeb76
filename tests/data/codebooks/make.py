"""Picks what the kernels' unit tests need out of the fixture case `codebooks`.

usage: make.py FIXTURE_DIRECTORY OUTPUT_FILE

FIXTURE_DIRECTORY holds source/model.safetensors (all codes of the small floats, edge values of the
wide ones, edge scales) and expected/casts/model.safetensors (torch 2.13 on CPU: .to() and products).
The output is one safetensors file; source tensors keep their names, expected ones have theirs,
which begin with the source tensor's name and a dot.
"""

import json
import struct
import sys
from pathlib import Path

SOURCE = [
    "bf16", "f16", "f32_edges", "f32_random", "f64_edges", "e4m3fn", "e5m2", "e8m0_u8",
    "scales_f32", "scales_bf16", "scales_f16", "int4_values", "int8_values", "fp4_blocks",
    "fp4_scales", "nvfp4_packed", "nvfp4_scale", "nvfp4_globals", "nvfp4_scale_2",
]
EXPECTED = [
    "bf16.to_f16", "f16.to_bf16", "f16.to_f32",
    "f32_edges.to_bf16", "f32_edges.to_f16", "f32_random.to_bf16", "f32_random.to_f16",
    "f64_edges.to_f32", "f64_edges.to_bf16", "f64_edges.to_f16",
    "e4m3fn.to_f32", "e4m3fn.to_bf16", "e4m3fn.to_f16",
    "e5m2.to_f32", "e5m2.to_bf16", "e5m2.to_f16", "e8m0_u8.to_f32_torch",
    "e4m3fn_times_f32.in_scale_dtype", "e4m3fn_times_bf16.in_scale_dtype",
    "e4m3fn_times_f16.in_scale_dtype",
    "e4m3fn_times_f32.f32_to_bf16", "e4m3fn_times_f32.f32_to_f16",
    "e4m3fn_times_bf16.f32_to_bf16", "e4m3fn_times_bf16.f32_to_f16",
    "e4m3fn_times_f16.f32_to_bf16", "e4m3fn_times_f16.f32_to_f16",
    "fp4_blocks.ct_mxfp4_bf16", "fp4_blocks.gpt_oss_bf16", "fp4_blocks.gpt_oss_f32",
] + [
    f"nvfp4.{tool}_{i}_bf16" for tool in ("ct_global", "modelopt_scale2") for i in range(4)
] + [
    f"{codes}_times_{scale}.{operation}"
    for codes in ("int4", "int8") for scale in ("f32", "bf16", "f16")
    for operation in ("in_scale_dtype", "in_scale_dtype_to_bf16", "f32_to_bf16", "f32_to_f16")
]
ALL_CODES = ["bf16", "f16"]  # 0 to 65535 in order; the tests make them, the file need not hold them
CUT = {"f32_random": 4096}  # elements kept of long random tensors


def read(path):
    data = Path(path).read_bytes()
    (size,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        tensors[name] = (entry["dtype"], entry["shape"], data[8 + size + begin : 8 + size + end])
    return tensors


def cut(name, dtype, shape, payload):
    elements = CUT.get(name.split(".")[0])
    if elements is None:
        return dtype, shape, payload
    width = len(payload) // shape[0]
    return dtype, [elements], payload[: elements * width]


def main(fixture, output):
    source = read(Path(fixture, "source/model.safetensors"))
    expected = read(Path(fixture, "expected/casts/model.safetensors"))
    for name in ALL_CODES:
        if source[name][2] != struct.pack("<65536H", *range(65536)):
            sys.exit(f"{name}: codes are not in order")
    kept = {name: source[name] for name in SOURCE if name not in ALL_CODES}
    kept.update((name, expected[name]) for name in EXPECTED)
    header, payloads, offset = {}, [], 0
    for name in sorted(kept):
        dtype, shape, payload = cut(name, *kept[name])
        header[name] = {"dtype": dtype, "shape": shape,
                        "data_offsets": [offset, offset + len(payload)]}
        payloads.append(payload)
        offset += len(payload)
    text = json.dumps(header, separators=(",", ":")).encode()
    Path(output).write_bytes(struct.pack("<Q", len(text)) + text + b"".join(payloads))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
