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


E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]


def nibbles(data):
    """Codes of 4 bits, the low bits of a byte first."""
    return [code for byte in data for code in (byte & 15, byte >> 4)]


def words(tensor):
    return struct.unpack(f"<{len(tensor.data) // 4}I", tensor.data)


def integers(tensor):
    return struct.unpack(f"<{len(tensor.data) // 8}q" if tensor.dtype == "I64" else
                         f"<{len(tensor.data) // 4}i", tensor.data)


def unpacked(row, bits, count, in_words):
    """`count` codes of `bits` bits from the 32-bit words of a row, each less its offset."""
    stream = sum(word << 32 * i for i, word in enumerate(row))
    per_word = 32 // bits
    at = (lambda k: k // per_word * 32 + k % per_word * bits) if in_words else (lambda k: k * bits)
    return [(stream >> at(k) & (1 << bits) - 1) - (1 << bits - 1) for k in range(count)]


def packed(stored, module, config):
    """Shape and values of a pack-quantized weight, rounded to the scale's dtype."""
    part = {key: stored.get(f"{module}.weight_{key}")
            for key in ("packed", "scale", "shape", "zero_point", "g_idx")}
    rows, columns = integers(part["shape"])
    (group,) = config["config_groups"].values()
    bits = group["weights"]["num_bits"]
    width = part["packed"].shape[1]
    dense, in_words = -(-columns * bits // 32), -(-columns // (32 // bits))
    old = width == in_words if dense != in_words else config.get("version", "") < "0.18"
    grid = part["scale"].shape[1]
    scales, stream = values(part["scale"]), words(part["packed"])
    groups = [column * grid // columns for column in range(columns)]
    if part["g_idx"] and -1 not in integers(part["g_idx"]):
        groups = integers(part["g_idx"])
    zeros = [0] * (rows * grid)
    if part["zero_point"]:
        stored_zeros = words(part["zero_point"])
        for column in range(grid):
            zeros[column::grid] = unpacked(stored_zeros[column::grid], bits, rows, old)
    out = []
    for row in range(rows):
        codes = unpacked(stream[row * width:(row + 1) * width], bits, columns, old)
        for code, at in zip(codes, groups):
            out.append((code - zeros[row * grid + at]) * scales[row * grid + at])
    return [rows, columns], values(Tensor(part["scale"].dtype, [], encode(out, part["scale"].dtype)))


def float4(codes, scales, group, table=E2M1):
    """F32 values of E2M1 codes with one scale for each `group`."""
    return [to_f32(table[code] * scales[i // group])
            for i, code in enumerate(nibbles(codes.data))]


def powers(scale):
    return [2.0 ** (code - 127) for code in scale.data]


def quantized(stored, name, config):
    """(name, shape, values) of the weight whose codes are tensor `name`; None: it is no such."""
    module, _, last = name.rpartition(".")
    tensor, scale = stored[name], stored.get(f"{module}.weight_scale")
    if last == "weight_packed" and tensor.dtype == "I32":
        return module + ".weight", *packed(stored, module, config)
    if last == "weight_packed":
        shape = [tensor.shape[0], tensor.shape[1] * 2]
        divisor = stored.get(f"{module}.weight_global_scale")
        if divisor is None:
            return module + ".weight", shape, float4(tensor, powers(scale), 32)
        (divisor,) = values(divisor)
        effective = [to_f32(value / divisor) for value in values(scale)]
        return module + ".weight", shape, float4(tensor, effective, 16)
    if name.endswith("_blocks"):
        experts, rows, blocks, _ = tensor.shape
        columns = blocks * 32
        # A power by itself may be too large for F32 where the product is not.
        flat = float4(tensor, powers(stored[name[:-6] + "scales"]), 32)
        turned = [flat[(e * rows + r) * columns + c]
                  for e in range(experts) for c in range(columns) for r in range(rows)]
        return name[:-7], [experts, columns, rows], turned
    if name + "_scale_2" in stored:
        (factor,) = values(stored[name + "_scale_2"])
        effective = [to_f32(value * factor) for value in values(scale)]
        shape = [tensor.shape[0], tensor.shape[1] * 2]
        no_minus_zero = [value + 0.0 for value in E2M1]
        return name, shape, float4(tensor, effective, 16, no_minus_zero)
    if name + "_scale_inv" in stored:
        return name, tensor.shape, decoded(tensor, stored[name + "_scale_inv"],
                                           *config["weight_block_size"])
    if last != "weight" or scale is None:
        return None
    rows, columns = tensor.shape
    if scale.dtype == "U8":
        scale = Tensor("F32", scale.shape, struct.pack(f"<{len(scale.data)}f", *powers(scale)))
    block = [rows, columns]
    if math.prod(scale.shape) > 1:
        (group,) = config["config_groups"].values()
        block = group["weights"].get("block_structure") or [1, columns // scale.shape[-1]]
    codes = tensor
    if tensor.dtype == "I8":
        codes = struct.unpack(f"{rows * columns}b", tensor.data)
        scales = values(scale)
        out = [code * scales[i // columns] for i, code in enumerate(codes)]
    else:
        out = decoded(codes, scale, *block)
    if scale.dtype == "BF16":
        out = values(Tensor("BF16", [], encode(out, "BF16")))
    return name, tensor.shape, out


AUXILIARY = (".weight_scale", ".weight_scale_inv", ".weight_scale_2", ".weight_shape",
             ".weight_zero_point", ".weight_g_idx", ".weight_global_scale", ".input_scale",
             ".input_global_scale", ".k_scale", ".v_scale", "_scales")


def view(source, dtype):
    """{name: Tensor} of a directory in a view that casts every float to `dtype`."""
    stored = read_all(source)
    config = {}
    if (source / "config.json").exists():
        config = json.loads((source / "config.json").read_text())
    config = config.get("quantization_config", {})
    packed, parts = naive_packed.weights(stored, config)
    tensors = {name: Tensor(dtype, shape, encode(numbers, dtype))
               for name, (shape, numbers) in packed.items()}
    for name, tensor in stored.items():
        if name in parts or name.endswith(AUXILIARY):
            continue
        weight = quantized(stored, name, config)
        if weight is not None:
            shown, shape, numbers = weight
            tensors[shown] = Tensor(dtype, shape, encode(numbers, dtype))
            continue
        if tensor.dtype in ELEMENT and tensor.dtype != dtype:
            numbers = values(tensor)
            if tensor.dtype == "F64":  # by way of F32, as torch
                numbers = [to_f32(number) for number in numbers]
            tensors[name] = Tensor(dtype, tensor.shape, encode(numbers, dtype))
        else:
            tensors[name] = tensor
    return tensors
