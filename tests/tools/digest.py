#!/usr/bin/env python3
"""SHA-256 of each tensor of a safetensors checkpoint, with NaN made canonical.

    digest.py SOURCE TARGET            print {tensor: {dtype, shape, computed, sha256}} as JSON
    digest.py --check EXPECTED.json VIEW TARGET [VIEW TARGET]...
                                       compare each TARGET with what EXPECTED.json says of its VIEW;
                                       exit 1 and one line for each difference

A tensor of TARGET is *computed* when SOURCE holds it with another dtype; otherwise it was moved.
Tools and machines differ in the NaN that they compute, so every NaN of a computed tensor is
replaced by the positive quiet NaN before the digest is taken; a moved tensor is digested as it is.

Needs nothing but Python's standard library: it shares no code with what it checks.
"""
import array
import hashlib
import json
import os
import re
import struct
import sys

# dtype -> (array type code, exponent mask, mantissa mask, positive quiet NaN)
FLOATS = {
    "BF16": ("H", 0x7F80, 0x007F, 0x7FC0),
    "F16": ("H", 0x7C00, 0x03FF, 0x7E00),
    "F32": ("I", 0x7F800000, 0x007FFFFF, 0x7FC00000),
    "F64": ("Q", 0x7FF0000000000000, 0x000FFFFFFFFFFFFF, 0x7FF8000000000000),
}


def shards(path):
    """The safetensors files of a checkpoint: a file, or all of a directory."""
    if os.path.isfile(path):
        return [path]
    return sorted(os.path.join(path, n) for n in os.listdir(path) if n.endswith(".safetensors"))


def header(path):
    """({tensor: description}, position of the data)"""
    with open(path, "rb") as f:
        (length,) = struct.unpack("<Q", f.read(8))
        tensors = json.loads(f.read(length))
    tensors.pop("__metadata__", None)
    return tensors, 8 + length


def dtypes(path):
    """{tensor: dtype} of a checkpoint"""
    return {name: t["dtype"] for file in shards(path) for name, t in header(file)[0].items()}


def canonical_nan(dtype, data):
    if dtype not in FLOATS:
        return data
    code, exponent, mantissa, quiet = FLOATS[dtype]
    values = array.array(code, data)
    size = values.itemsize
    # Few values have the exponent of a NaN: look for its bits in the highest bytes alone.
    high = exponent >> (8 * size - 8)
    candidates = bytes(b for b in range(256) if b & high == high)
    for match in re.finditer(b"[" + re.escape(candidates) + b"]", data[size - 1 :: size]):
        value = values[match.start()]
        if value & exponent == exponent and value & mantissa:
            values[match.start()] = quiet
    return values.tobytes()


def digest(path, computed):
    """{tensor: {...}}; `computed(name, dtype)` tells whether NaN must be made canonical"""
    result = {}
    for file in shards(path):
        tensors, base = header(file)
        with open(file, "rb") as f:
            for name, t in tensors.items():
                begin, end = t["data_offsets"]
                f.seek(base + begin)
                data = f.read(end - begin)
                if len(data) != end - begin:
                    raise SystemExit(f"{file}: {name}: data ends before offset {end}")
                if name in result:
                    raise SystemExit(f"{file}: {name}: in two files")
                is_computed = computed(name, t["dtype"])
                if is_computed:
                    data = canonical_nan(t["dtype"], data)
                result[name] = {
                    "dtype": t["dtype"],
                    "shape": t["shape"],
                    "computed": is_computed,
                    "sha256": hashlib.sha256(data).hexdigest(),
                }
    return dict(sorted(result.items()))


def digest_against_source(source, target):
    stored = dtypes(source)
    return digest(target, lambda name, dtype: stored.get(name) != dtype)


def differences(expected, target):
    """Lines that say where TARGET is not what `expected` ({tensor: {...}}) says."""
    got = digest(target, lambda name, _: expected.get(name, {}).get("computed", False))
    for name in sorted(expected.keys() | got.keys()):
        if name not in got:
            yield f"{name}: missing"
        elif name not in expected:
            yield f"{name}: not expected"
        else:
            for key in ("dtype", "shape", "sha256"):
                if got[name][key] != expected[name][key]:
                    yield f"{name}: {key} {got[name][key]} != {expected[name][key]}"


def main(arguments):
    if len(arguments) >= 4 and len(arguments) % 2 == 0 and arguments[0] == "--check":
        with open(arguments[1]) as f:
            expected = json.load(f)
        different = False
        for view, target in zip(arguments[2::2], arguments[3::2]):
            lines = [f"{target}: {line}" for line in differences(expected[view], target)]
            print(*(lines or [f"{target}: {len(expected[view])} tensors equal"]), sep="\n")
            different = different or bool(lines)
        return 1 if different else 0
    if len(arguments) == 2 and not arguments[0].startswith("-"):
        json.dump(digest_against_source(*arguments), sys.stdout, indent=1)
        print()
        return 0
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
