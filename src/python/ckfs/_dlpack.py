"""DLPack without a library: one block of malloc holds what the protocol wants, the shape and the data.
So the function that deletes it is free() itself, which needs no interpreter: arrays of other libraries
may outlive it.
"""
from __future__ import annotations

import ctypes

from . import dtypes, errors

c_void_p = ctypes.c_void_p


class _Managed(ctypes.Structure):  # DLManagedTensor of dlpack.h
    _fields_ = [("data", c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16), ("shape", c_void_p), ("strides", c_void_p),
                ("byte_offset", ctypes.c_uint64), ("manager_ctx", c_void_p), ("deleter", c_void_p)]


_libc = ctypes.CDLL(None)
_libc.posix_memalign.argtypes = [ctypes.POINTER(c_void_p), ctypes.c_size_t, ctypes.c_size_t]
_libc.free.argtypes, _libc.free.restype = [c_void_p], None
_FREE = ctypes.cast(_libc.free, c_void_p).value
_new = ctypes.pythonapi.PyCapsule_New
_new.argtypes, _new.restype = [c_void_p, ctypes.c_char_p, c_void_p], ctypes.py_object
_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.argtypes, _is_valid.restype = [c_void_p, ctypes.c_char_p], ctypes.c_int
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.argtypes, _pointer.restype = [c_void_p, ctypes.c_char_p], c_void_p
_NAME = b"dltensor"  # a consumer renames the capsule: then the block is its own
_ALIGNED = 256


@ctypes.PYFUNCTYPE(None, c_void_p)
def _drop(capsule):
    if _is_valid(capsule, _NAME):
        _libc.free(_pointer(capsule, _NAME))


def capsule(tensor):
    """Reads `tensor` into a new capsule."""
    code, bits = dtypes.dlpack_code(tensor.dtype), dtypes.bits(tensor.dtype)
    ndim = len(tensor.shape)
    head = ctypes.sizeof(_Managed) + 16 * ndim
    head = (head + _ALIGNED - 1) // _ALIGNED * _ALIGNED
    block = c_void_p()
    if _libc.posix_memalign(ctypes.byref(block), _ALIGNED, head + max(tensor.nbytes, 1)):
        raise errors.OutOfMemoryError(f"{tensor.name}: no {tensor.nbytes} bytes of memory")
    try:
        numbers = block.value + ctypes.sizeof(_Managed)
        strides, step = [], 1
        for size in reversed(tensor.shape):
            strides.insert(0, step)
            step *= size
        (ctypes.c_int64 * (2 * ndim)).from_address(numbers)[:] = [*tensor.shape, *strides]
        managed = _Managed.from_address(block.value)
        managed.data = block.value + head
        managed.device_type, managed.device_id, managed.ndim = 1, 0, ndim
        managed.code, managed.bits, managed.lanes = code, bits, 1
        managed.shape, managed.strides = numbers, numbers + 8 * ndim
        managed.byte_offset, managed.manager_ctx, managed.deleter = 0, None, _FREE
        tensor._model._read([(tensor, managed.data, tensor.nbytes)])
        return _new(block, _NAME, ctypes.cast(_drop, c_void_p))
    except BaseException:
        _libc.free(block)
        raise
