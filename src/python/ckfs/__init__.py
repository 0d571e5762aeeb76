"""Model checkpoints in other forms: FP8 as BF16, shards as one file, Orbax as safetensors, and so on.
Bytes are computed when they are read; nothing is converted ahead, and nothing is written.

    >>> import ckfs
    >>> model = ckfs.open("DeepSeek-V3", "bf16-safetensors")
    >>> model["model.norm.weight"].torch()
    >>> model["model.embed_tokens.weight"][1000:1010].numpy()
    >>> model.load_into(module)

docs/PYTHON.md has the rest.
"""
from __future__ import annotations

import atexit
import os
from typing import Any, Callable, Optional, Union

from . import _native, errors
from ._model import Budget, Checkpoint, File, LoadResult, Model, Progress, Tensor, open
from ._mounted import mounted
from ._programs import program
from ._safe_open import safe_open
from .errors import (CorruptError, Error, InternalError, InvalidArgumentError, IoError, NotFoundError,
                     OutOfMemoryError, StaleError, StoppedError, TensorNotFoundError, UnsupportedError)

__version__ = _native.library.ckfs_version().decode()

__all__ = [
    "Budget", "Checkpoint", "CorruptError", "Error", "File", "InternalError", "InvalidArgumentError", "IoError",
    "LoadResult", "Model", "NotFoundError", "OutOfMemoryError", "StaleError", "StoppedError", "Tensor",
    "TensorNotFoundError", "UnsupportedError", "digest", "export", "mounted", "open", "program",
    "safe_open", "set_log", "verify",
]


def export(source: Union[str, os.PathLike], view: Optional[str], out: Union[str, os.PathLike], *, jobs: int = 0,
           force: bool = False, progress: Progress = None, **options: Any) -> dict:
    """Opens a view and writes its files to a directory: Model.export()."""
    with open(source, view, **options) as model:
        return model.export(out, jobs=jobs, force=force, progress=progress)


def verify(source: Union[str, os.PathLike], view: Optional[str], copy: Union[str, os.PathLike], *, jobs: int = 0,
           sample: float = 1, resume: Optional[str] = None, progress: Progress = None,
           **options: Any) -> dict:
    """Opens a view and compares a copy with it: Model.verify()."""
    with open(source, view, **options) as model:
        return model.verify(copy, jobs=jobs, sample=sample, resume=resume, progress=progress)


def digest(source: Union[str, os.PathLike], view: Optional[str], *algorithms: str, jobs: int = 0,
           progress: Progress = None, **options: Any) -> dict:
    """Opens a view and gives the digests of its files: Model.digest()."""
    with open(source, view, **options) as model:
        return model.digest(*algorithms, jobs=jobs, progress=progress)


_LEVELS = ("debug", "info", "warning", "error", "off")
_log: Any = None


def set_log(function: Optional[Callable[[str, str], None]] = None, level: str = "warning") -> None:
    """Sends lines of the log to `function(level, line)`, from any thread, one at a time; it must not
    call ckfs. Without one they go to standard error. Levels: debug, info, warning, error, off."""
    global _log
    import ctypes

    if level not in _LEVELS:
        raise InvalidArgumentError(f"level: {level!r} is not one of {', '.join(_LEVELS)}")
    before, taker = _log, _native.LOG()
    if function is not None:
        def take(context, number, line, size):
            function(_LEVELS[number], ctypes.string_at(line, size).decode(errors="replace"))

        taker = _native.LOG(take)
    _native.library.ckfs_set_log(taker, None, _LEVELS.index(level))
    _log = taker
    del before


@atexit.register
def _end_log() -> None:
    if _log:
        set_log(None)
