"""The golden Orbax checkpoints (tests/data/orbax): what to open, and which arrays are in it."""
import json
import pathlib
import struct

DATA = pathlib.Path(__file__).resolve().parents[1] / "data" / "orbax"

# What is opened for an expected directory other than that of the default.
OPTIONS = {
    ("trainstate_manager", "params"): ["--key", "params"],
    ("trainstate_manager", "step0"): ["--step", "0"],
    ("manager_composite", "extra"): ["--item", "extra"],
    ("v1_checkpointables", "other"): ["--item", "other"],
    ("maxtext_items", "params"): ["--key", "params"],
}

CASES = sorted((path.parts[-3], path.parts[-1]) for path in DATA.glob("*/expected/*"))

# numpy's names, and those of safetensors.
DTYPES = {
    "bool": "BOOL", "int8": "I8", "uint8": "U8", "int16": "I16", "uint16": "U16", "int32": "I32",
    "uint32": "U32", "int64": "I64", "uint64": "U64", "float16": "F16", "bfloat16": "BF16",
    "float32": "F32", "float64": "F64", "complex64": "C64", "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0", "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
}


def source_of(case):
    return DATA / case[0] / "source"


def options_of(case):
    return OPTIONS.get(case, [])


def tree_of(case):
    return json.loads((DATA / case[0] / "expected" / case[1] / "tree.json").read_text())


def safetensors(path):
    """{name: (dtype, shape, bytes)} of a file."""
    data = path.read_bytes()
    size, = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    begin = 8 + size
    return {name: (tensor["dtype"], tensor["shape"],
                   data[begin + tensor["data_offsets"][0]:begin + tensor["data_offsets"][1]])
            for name, tensor in header.items()}


def expected(case):
    """{name: (numpy's name of the dtype, shape, bytes)} of all arrays of a case."""
    stored = safetensors(DATA / case[0] / "expected" / case[1] / "arrays.safetensors")
    arrays = {}
    for leaf in tree_of(case):
        if leaf["kind"] in ("array", "scalar"):
            arrays[leaf["name"]] = (leaf["dtype"], leaf["shape"], stored[leaf["name"]][2])
    assert set(arrays) == set(stored)
    return arrays


def expected_in_safetensors(case):
    """The same as a safetensors file has them: without those for which it has no dtype."""
    return {name: (DTYPES[dtype], shape, data)
            for name, (dtype, shape, data) in expected(case).items() if dtype in DTYPES}
