"""A checkpoint's tensors and their casts in the dullest way: one element at a time, in Python.

It shares no code with ckfs and none with torch: the definitions of the dtypes, and arithmetic in
double precision, which holds every product here exactly, followed by one rounding to F32 and one to
the view's dtype.
"""
import json
import math
import struct

import naive_packed

ELEMENT = {"F64": "d", "F32": "f", "F16": "e", "BF16": None}


class Tensor:
    def __init__(self, dtype, shape, data):
        self.dtype, self.shape, self.data = dtype, shape, data


def read(path):
    """{name: Tensor} of one safetensors file"""
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        tensors[name] = Tensor(entry["dtype"], entry["shape"],
                               data[8 + length + begin:8 + length + end])
    return tensors


def write(path, tensors):
    """{name: Tensor} as one safetensors file, in the order of the dictionary"""
    header, body = {}, b""
    for name, tensor in tensors.items():
        header[name] = {"dtype": tensor.dtype, "shape": tensor.shape,
                        "data_offsets": [len(body), len(body) + len(tensor.data)]}
        body += tensor.data
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def read_all(directory):
    tensors = {}
    for path in sorted(directory.glob("*.safetensors")):
        tensors.update(read(path))
    return tensors


def e4m3(code):
    """The value of an F8_E4M3 code (the variant without infinities)."""
    sign = -1.0 if code & 0x80 else 1.0
    exponent, mantissa = code >> 3 & 15, code & 7
    if exponent == 15 and mantissa == 7:
        return math.nan
    if exponent == 0:
        return sign * mantissa * 2.0 ** -9
    return sign * (1 + mantissa / 8) * 2.0 ** (exponent - 7)


E4M3 = [e4m3(code) for code in range(256)]


def values(tensor):
    """Its elements as Python floats."""
    if tensor.dtype == "BF16":
        codes = struct.unpack(f"<{len(tensor.data) // 2}H", tensor.data)
        return [struct.unpack("<f", struct.pack("<I", code << 16))[0] for code in codes]
    if tensor.dtype == "F8_E4M3":
        return [E4M3[code] for code in tensor.data]
    letter = ELEMENT[tensor.dtype]
    return list(struct.unpack(f"<{len(tensor.data) // struct.calcsize(letter)}{letter}",
                              tensor.data))


def rounded(letter, value):
    """`value` in the struct format `letter` ('f' or 'e'), to nearest even, as torch: overflow is
    infinity, which struct refuses to make by itself."""
    try:
        return struct.pack("<" + letter, value)
    except OverflowError:
        return struct.pack("<" + letter, math.copysign(math.inf, value))


def to_f32(value):
    return struct.unpack("<f", rounded("f", value))[0]


def encode(numbers, dtype):
    """Bytes of `dtype`; every NaN becomes the positive quiet NaN."""
    out = bytearray()
    for number in numbers:
        if dtype == "BF16":
            if math.isnan(number):
                out += b"\xc0\x7f"
                continue
            (bits,) = struct.unpack("<I", rounded("f", number))
            if bits & 0x7F800000 != 0x7F800000:
                bits += 0x7FFF + (bits >> 16 & 1)
            out += struct.pack("<H", bits >> 16)
        elif math.isnan(number):
            out += {"F32": b"\0\0\xc0\x7f", "F16": b"\0\x7e"}[dtype]
        else:
            out += rounded(ELEMENT[dtype], number)
    return bytes(out)


def decoded(weight, scale, block_rows, block_columns):
    """F32 values of an FP8 weight with one scale for each block."""
    rows, columns = weight.shape
    scales = values(scale)
    per_row = -(-columns // block_columns)
    out = []
    for row in range(rows):
        for column in range(columns):
            factor = scales[row // block_rows * per_row + column // block_columns]
            out.append(to_f32(E4M3[weight.data[row * columns + column]] * factor))
    return out


def view(source, dtype):
    """{name: Tensor} of a directory in a view that casts every float to `dtype`."""
    stored = read_all(source)
    config = {}
    if (source / "config.json").exists():
        config = json.loads((source / "config.json").read_text())
    quantization = config.get("quantization_config", {})
    block = quantization.get("weight_block_size")
    packed, parts = naive_packed.weights(stored, quantization)
    tensors = {name: Tensor(dtype, shape, encode(numbers, dtype))
               for name, (shape, numbers) in packed.items()}
    for name, tensor in stored.items():
        if name in parts or name.endswith(".weight_scale_inv"):
            continue
        scale = stored.get(name + "_scale_inv")
        if scale is not None:
            numbers = decoded(tensor, scale, *block)
        elif tensor.dtype in ELEMENT and tensor.dtype != dtype:
            numbers = values(tensor)
            if tensor.dtype == "F64":  # by way of F32, as torch
                numbers = [to_f32(number) for number in numbers]
        else:
            tensors[name] = tensor
            continue
        tensors[name] = Tensor(dtype, tensor.shape, encode(numbers, dtype))
    return tensors
