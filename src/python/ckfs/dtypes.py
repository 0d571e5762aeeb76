"""The dtypes of safetensors' names in numpy, torch and DLPack. No library is imported before it is asked
for.
"""
from __future__ import annotations

from . import errors

# name: (bits, numpy's or ml_dtypes' name, torch's name, DLPack's code)
INT, UINT, FLOAT, BFLOAT, COMPLEX, BOOL = 0, 1, 2, 4, 5, 6
_TABLE = {
    "BOOL": (8, "bool", "bool", BOOL),
    "U8": (8, "uint8", "uint8", UINT),
    "U16": (16, "uint16", "uint16", UINT),
    "U32": (32, "uint32", "uint32", UINT),
    "U64": (64, "uint64", "uint64", UINT),
    "I8": (8, "int8", "int8", INT),
    "I16": (16, "int16", "int16", INT),
    "I32": (32, "int32", "int32", INT),
    "I64": (64, "int64", "int64", INT),
    "F16": (16, "float16", "float16", FLOAT),
    "F32": (32, "float32", "float32", FLOAT),
    "F64": (64, "float64", "float64", FLOAT),
    "C64": (64, "complex64", "complex64", COMPLEX),
    "C128": (128, "complex128", "complex128", COMPLEX),
    "BF16": (16, "ml:bfloat16", "bfloat16", BFLOAT),
    "F8_E4M3": (8, "ml:float8_e4m3fn", "float8_e4m3fn", 10),
    "F8_E4M3FNUZ": (8, "ml:float8_e4m3fnuz", "float8_e4m3fnuz", 11),
    "F8_E5M2": (8, "ml:float8_e5m2", "float8_e5m2", 12),
    "F8_E5M2FNUZ": (8, "ml:float8_e5m2fnuz", "float8_e5m2fnuz", 13),
    "F8_E8M0": (8, "ml:float8_e8m0fnu", "float8_e8m0fnu", 14),
    "F4": (4, None, "float4_e2m1fn_x2", None),
    "F6_E2M3": (6, None, None, None),
    "F6_E3M2": (6, None, None, None),
}


def bits(name: str) -> int:
    return _TABLE[name][0]


def numpy_dtype(name: str, codes: bool):
    """The dtype of an array; with `codes` unsigned integers where numpy has no such dtype itself."""
    import numpy

    word = _TABLE[name][1]
    if word is not None and not word.startswith("ml:"):
        return numpy.dtype(word)
    if codes and _TABLE[name][0] in (8, 16):
        return numpy.dtype(f"uint{_TABLE[name][0]}")
    if word is None:
        raise errors.UnsupportedError(f"{name}: numpy has no dtype for it (into() gives the bytes)")
    try:
        import ml_dtypes
    except ImportError:
        raise errors.UnsupportedError(f"{name}: numpy has no such dtype (pip install ml_dtypes, or "
                                      "numpy(codes=True) for its codes as unsigned integers)") from None
    return numpy.dtype(getattr(ml_dtypes, word[3:]))


def torch_dtype(name: str):
    import torch

    word = _TABLE[name][2]
    found = getattr(torch, word, None) if word else None
    if found is None:
        raise errors.UnsupportedError(f"{name}: this torch has no dtype for it (into() gives the bytes)")
    return found


def torch_shape(name: str, shape):
    """The shape of the torch tensor: of F4 one element holds two values."""
    if name != "F4":
        return shape
    if not shape or shape[-1] % 2:
        raise errors.UnsupportedError("F4: torch holds pairs of values, and the last dimension is odd")
    return (*shape[:-1], shape[-1] // 2)


def dlpack_code(name: str) -> int:
    code = _TABLE[name][3]
    if code is None:
        raise errors.UnsupportedError(f"{name}: DLPack has no type of whole bytes for it")
    return code
