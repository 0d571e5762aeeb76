"""libckfs.so by ctypes, and nothing else: no object of this module knows what a tensor is.

Every call releases the GIL while the library works. Where the main thread of the interpreter makes a
call, another thread carries it out and the main one waits: only so a signal (Ctrl-C) is heard before
the call ends.
"""
from __future__ import annotations

import collections
import ctypes
import os
import pathlib
import queue
import threading

from . import errors

HERE = pathlib.Path(__file__).resolve().parent
c_u64 = ctypes.c_uint64
c_i64 = ctypes.c_int64
void_p = ctypes.c_void_p


class ErrorStruct(ctypes.Structure):
    _fields_ = [("code", ctypes.c_int32), ("system_error", ctypes.c_int32),
                ("message", ctypes.c_char_p)]


class Text(ctypes.Structure):
    _fields_ = [("data", void_p), ("size", c_u64)]

    def __str__(self):
        return ctypes.string_at(self.data, self.size).decode(errors="surrogateescape")


class Buffer(ctypes.Structure):
    _fields_ = [("data", void_p), ("size", c_u64), ("owner", void_p)]


class ViewInfo(ctypes.Structure):
    _fields_ = [("name", Text), ("files", c_u64), ("tensors", c_u64)]


class FileInfo(ctypes.Structure):
    _fields_ = [("path", Text), ("size", c_u64), ("tensors", c_u64),
                ("exactness", ctypes.c_int32), ("reserved", ctypes.c_int32)]


class TensorInfo(ctypes.Structure):
    _fields_ = [("name", Text), ("folder", Text), ("dtype", Text), ("shape", ctypes.POINTER(c_i64)),
                ("dimensions", c_u64), ("size", c_u64), ("file", c_u64),
                ("exactness", ctypes.c_int32), ("reserved", ctypes.c_int32)]


class TensorRead(ctypes.Structure):
    _fields_ = [("tensor", c_u64), ("first_row", c_i64), ("rows", c_i64), ("out", void_p),
                ("size", c_u64)]


ALL_ROWS = -1
EXACTNESS = ("bit-exact", "exact", "lossy")
LOG = ctypes.CFUNCTYPE(None, void_p, ctypes.c_int32, void_p, c_u64)
Error_p = ctypes.POINTER(ErrorStruct)
Options = ctypes.POINTER(ctypes.c_char_p)

# What each function takes. Those of FREES give nothing, the others an error or NULL.
FUNCTIONS = {
    "ckfs_task_new": [ctypes.POINTER(void_p)],
    "ckfs_open": [ctypes.c_char_p, Options, void_p, ctypes.POINTER(void_p)],
    "ckfs_budget_new": [Options, ctypes.POINTER(void_p)],
    "ckfs_open_with": [void_p, ctypes.c_char_p, Options, void_p, ctypes.POINTER(void_p)],
    "ckfs_report": [void_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.POINTER(Buffer)],
    "ckfs_view_open": [void_p, ctypes.c_char_p, void_p, ctypes.POINTER(void_p)],
    "ckfs_view_describe": [void_p, ctypes.POINTER(ViewInfo)],
    "ckfs_file_describe": [void_p, c_u64, ctypes.POINTER(FileInfo)],
    "ckfs_tensor_describe": [void_p, c_u64, ctypes.POINTER(TensorInfo)],
    "ckfs_find_tensor": [void_p, ctypes.c_char_p, c_u64, ctypes.POINTER(c_u64)],
    "ckfs_find_file": [void_p, ctypes.c_char_p, c_u64, ctypes.POINTER(c_u64)],
    "ckfs_read_tensors": [void_p, ctypes.POINTER(TensorRead), c_u64, ctypes.c_uint32, void_p],
    "ckfs_file_open": [void_p, c_u64, ctypes.POINTER(void_p)],
    "ckfs_file_read": [void_p, c_u64, void_p, c_u64, void_p, ctypes.POINTER(c_u64)],
    "ckfs_export": [void_p, ctypes.c_char_p, Options, void_p, ctypes.POINTER(Buffer)],
    "ckfs_verify": [void_p, ctypes.c_char_p, Options, void_p, ctypes.POINTER(Buffer)],
    "ckfs_digest": [void_p, Options, void_p, ctypes.POINTER(Buffer)],
}
FREES = {
    "ckfs_error_free": [Error_p],
    "ckfs_buffer_release": [ctypes.POINTER(Buffer)],
    "ckfs_set_log": [LOG, void_p, ctypes.c_int32],
    "ckfs_task_stop": [void_p],
    "ckfs_task_progress": [void_p, ctypes.POINTER(c_u64), ctypes.POINTER(c_u64)],
    "ckfs_task_free": [void_p],
    "ckfs_budget_held": [void_p, ctypes.POINTER(c_u64), ctypes.POINTER(c_u64)],
    "ckfs_budget_free": [void_p],
    "ckfs_close": [void_p],
    "ckfs_view_close": [void_p],
    "ckfs_file_close": [void_p],
}


def _load():
    named = os.environ.get("CKFS_LIBRARY")
    names = [named] if named else [str(HERE / "libckfs.so.1"), "libckfs.so.1"]
    refusals = []
    for name in names:
        try:
            library = ctypes.CDLL(name)
            break
        except OSError as error:
            refusals.append(str(error))
    else:
        raise ImportError(f"libckfs.so.1 cannot be loaded: {'; '.join(refusals)} (it comes with the "
                          "wheel; CKFS_LIBRARY names one elsewhere)")
    for name, arguments in FUNCTIONS.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, Error_p
    for name, arguments in FREES.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, None
    library.ckfs_version.argtypes, library.ckfs_version.restype = [], ctypes.c_char_p
    return library


library = _load()


def check(error):
    """Raises what a function of the library gave, if it is an error."""
    if not error:
        return
    code, number = error.contents.code, error.contents.system_error
    message = error.contents.message.decode(errors="replace")
    library.ckfs_error_free(error)
    raise errors.make(code, number, message)


class Handle:
    """An object of the library, closed when nothing uses it any more."""

    def __init__(self, close):
        self.pointer = void_p()
        self._close = getattr(library, close)

    def __del__(self):
        if self.pointer:
            self._close(self.pointer)


def options(words):
    """`{"memory": "4GiB", "jobs": None}` as the library takes it; None is left out."""
    texts = []
    for name, value in words.items():
        for each in value if isinstance(value, (list, tuple)) else [value]:
            if each is None:
                continue
            if isinstance(each, bool):
                each = int(each)
            texts.append(os.fsencode(f"{name}={os.fspath(each) if hasattr(each, '__fspath__') else each}"))
    return (ctypes.c_char_p * (len(texts) + 1))(*texts, None)


def take_json(buffer):
    import json

    try:
        return json.loads(ctypes.string_at(buffer.data, buffer.size))
    finally:
        library.ckfs_buffer_release(buffer)


class _Worker:
    """A thread that carries out the calls of another one."""

    def __init__(self):
        self.calls = queue.SimpleQueue()
        threading.Thread(target=self._run, name="ckfs", daemon=True).start()

    def _run(self):
        while True:
            call, ended, result = self.calls.get()
            try:
                result.append(call())
            except BaseException as error:  # given to the thread that waits
                result.append(error)
            ended.release()
            del call, ended, result


# Of one thread that waits there is mostly one; a handler of a signal that calls ckfs needs another.
_idle = collections.deque()
os.register_at_fork(after_in_child=_idle.clear)


def new_task():
    """What another thread can stop a call by: ckfs_task_stop(task.pointer)."""
    task = Handle("ckfs_task_free")
    check(library.ckfs_task_new(ctypes.byref(task.pointer)))
    return task


def call(name, *arguments, progress=None, task=None):
    """Calls a function whose argument TASK is a task; raises its error, and KeyboardInterrupt.

    `progress(done, total)` is called by this thread, in bytes, some times a second. With a `task` of
    the caller's, this thread makes the call, and hears no signal before it ends.
    """
    function = getattr(library, name)
    if task is not None:
        check(function(*(task.pointer if each is TASK else each for each in arguments)))
        return
    if threading.current_thread() is not threading.main_thread() and progress is None:
        check(function(*(None if each is TASK else each for each in arguments)))
        return
    task = new_task()
    words = [task.pointer if each is TASK else each for each in arguments]
    _wait(lambda: function(*words), task, progress)


TASK = object()


def _wait(work, task, progress):
    try:
        worker = _idle.pop()
    except IndexError:
        worker = _Worker()
    ended = threading.Lock()
    ended.acquire()
    result = []
    worker.calls.put((work, ended, result))
    try:
        if progress is None:
            ended.acquire()
        else:
            while not ended.acquire(timeout=0.1):
                _tell(task, progress)
            _tell(task, progress)
    except BaseException:
        library.ckfs_task_stop(task.pointer)
        # The places of results are the caller's: they may go only when the library is done with them.
        while not result:
            try:
                ended.acquire()
            except KeyboardInterrupt:  # once is enough
                pass
        _idle.append(worker)
        raise
    _idle.append(worker)
    if isinstance(result[0], BaseException):
        raise result[0]
    check(result[0])


def _tell(task, progress):
    done, total = c_u64(), c_u64()
    library.ckfs_task_progress(task.pointer, ctypes.byref(done), ctypes.byref(total))
    if total.value:
        progress(done.value, total.value)
