"""The golden cases of MaxText's converters: which view has the arrays of which file."""
import array
import json
import pathlib
import shutil
import struct

DATA = pathlib.Path(__file__).resolve().parents[1] / "data" / "maxtext"
CASES = json.loads((DATA / "cases.json").read_text())["cases"]
TREES = json.loads((DATA / "cases.json").read_text())["trees"]
DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "I32": "int32", "I64": "int64"}
# Array type code, exponent.
FLOATS = {"bfloat16": ("H", 0x7F80), "float16": ("H", 0x7C00), "float32": ("I", 0x7F800000)}


def source_of(case):
    return DATA / case["source"] / "source"


def tree_of(case, work):
    """A case's tree of arrays, and the options that say which model it is: the Orbax item that
    MaxText wrote, where there is one, else a directory `work` that is made."""
    config = source_of(case) / "config.json"
    item = DATA / case["source"] / "expected" / case["tree"] / "0/items"
    if item.is_dir():
        return item, ["--config", config]
    work.mkdir()
    shutil.copy(config, work)
    shutil.copy(DATA / case["source"] / "expected" / f"{case['tree']}.safetensors",
                work / "model.safetensors")
    return work, []


def options_of(case):
    return ["--family", case["family"]] if "family" in case else []


def safetensors(path):
    """{name: (dtype, shape, bytes)} of a file."""
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    found = {}
    for name, tensor in header.items():
        begin, end = (8 + size + at for at in tensor["data_offsets"])
        found[name] = (DTYPES[tensor["dtype"]], tensor["shape"], data[begin:end])
    return found


def without_nan_bits(value):
    """The same with one bit pattern for all NaN."""
    dtype, shape, data = value
    if dtype not in FLOATS:
        return value
    code, infinity = FLOATS[dtype]
    numbers = array.array(code, data)
    sign = 1 << (8 * numbers.itemsize - 1)
    for i, number in enumerate(numbers):
        if number & (sign - 1) > infinity:
            numbers[i] = infinity + 1
    return dtype, shape, numbers.tobytes()


def differences(case, arrays):
    """Lines that say where {name: (dtype, shape, bytes)} are not the case's; `step` apart, which
    MaxText has as a Python number."""
    want = safetensors(DATA / case["source"] / "expected" / f"{case['expected']}.safetensors")
    for name in sorted({*want, *arrays} - {"step"}):
        pair = [found.get(name) for found in (arrays, want)]
        if None in pair:
            yield f"{name}: missing on one side"
            continue
        if case.get("nan"):
            pair = [without_nan_bits(value) for value in pair]
        if pair[0] != pair[1]:
            yield f"{name}: {pair[0][:2]} is not {pair[1][:2]}, or its bytes"
