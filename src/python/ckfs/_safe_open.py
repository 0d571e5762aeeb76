"""safetensors' safe_open() on a view: for loaders that open shard after shard."""
from __future__ import annotations

import collections
import json
import os
import struct
import threading
from typing import Any, Dict, List, Optional

from . import errors
from ._model import Model, Tensor, open as open_model

# Loaders open each shard of a model by itself. The last models stay open, so its headers are read once.
_KEPT = 2
_models: "collections.OrderedDict[tuple, Model]" = collections.OrderedDict()
_lock = threading.Lock()


def _forget() -> None:
    global _lock
    _models.clear()
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget)


def _stamp(path: str) -> tuple:
    status = os.stat(path)
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size


def _model_of(source: str, stamp: Any, view: Optional[str], options: Dict[str, Any]) -> Model:
    key = (source, stamp, view, repr(sorted(options.items())))
    with _lock:
        if key in _models:
            _models.move_to_end(key)
            return _models[key]
    model = open_model(source, view, **options)
    with _lock:
        _models[key] = model
        while len(_models) > _KEPT:
            _models.popitem(last=False)
    return model


class safe_open:  # noqa: N801: the name is safetensors'
    """`safetensors.safe_open` with the tensors of a view.

    filename: a shard of a checkpoint, whose tensors in the view's file of that name are shown; or a
        checkpoint (a directory, a location), all of whose tensors are shown.
    framework: "pt", "np" or "jax" (and safetensors' other spellings of these).
    device: of torch tensors.
    backend: how safetensors reads; ckfs has its own way.
    view, options: as of ckfs.open(). By default tensors have the dtypes of the files, and quantized
        ones are BF16.

    A shard has the same tensors as in the source, where the view mirrors the source's shards (as
    bf16-safetensors does without max_shard). Otherwise open the directory.
    """

    def __init__(self, filename: Any, framework: str = "pt", device: Any = "cpu", *,
                 backend: Any = None, view: Optional[str] = None, **options: Any):
        kinds = {"pt": "pt", "torch": "pt", "pytorch": "pt", "np": "np", "numpy": "np", "jax": "jax",
                 "flax": "jax"}
        if framework not in kinds:
            raise errors.InvalidArgumentError(
                f"framework: {framework!r} is not one of {', '.join(kinds)}")
        self._kind, self._device = kinds[framework], device
        path = os.fspath(filename)
        self._file: Optional[str] = None
        if os.path.isfile(path):
            directory, name = os.path.split(os.path.abspath(path))
            self._model = _model_of(directory, (_stamp(directory), _stamp(path)), view, options)
            files = [file.path for file in self._model.files()]
            if name not in files:
                raise errors.NotFoundError(
                    f"{path}: the view {self._model.view} has no file {name} "
                    f"(its files: {', '.join(files[:3])}{', …' if len(files) > 3 else ''}; open the "
                    "directory to see all tensors)")
            self._file = name
        else:
            stamp = _stamp(path) if os.path.isdir(path) else None
            self._model = _model_of(path, stamp, view, options)
        self._names: Optional[Dict[str, Tensor]] = None

    def _tensors(self) -> Dict[str, Tensor]:
        if self._names is None:
            wanted = self._file
            self._names = {name: tensor for name, tensor in self._model.items()
                           if wanted is None or tensor.file == wanted}
        return self._names

    def _tensor(self, name: str) -> Tensor:
        found = self._model[name]
        if self._file is not None and found.file != self._file:
            raise errors.TensorNotFoundError(f"{self._file}: no tensor \"{name}\"")
        return found

    def keys(self) -> List[str]:
        """Names in order, as safetensors sorts them."""
        return sorted(self._tensors())

    def offset_keys(self) -> List[str]:
        """Names in the order of the file."""
        return list(self._tensors())

    def metadata(self) -> Optional[Dict[str, str]]:
        """`__metadata__` of the file, or of the view's first file with tensors."""
        path = self._file or next((file.path for file in self._model.files() if file.tensors), None)
        if path is None:
            return None
        with self._model.open_file(path) as file:
            size, = struct.unpack("<Q", file.read(8))
            return json.loads(file.read(size)).get("__metadata__")

    def _give(self, tensor: Tensor) -> Any:
        if self._kind == "pt":
            out = tensor.torch()
            return out if str(self._device) == "cpu" else out.to(self._device)
        return tensor.numpy() if self._kind == "np" else tensor.jax()

    def get_tensor(self, name: str) -> Any:
        return self._give(self._tensor(name))

    def get_tensors(self, names: List[str]) -> Dict[str, Any]:
        return {name: self.get_tensor(name) for name in names}

    def get_slice(self, name: str) -> "_Slice":
        return _Slice(self, self._tensor(name))

    def __enter__(self) -> "safe_open":
        return self

    def __exit__(self, *error: Any) -> None:
        pass


class _Slice:
    """Of the first dimension only the rows that are asked for are read."""

    def __init__(self, opened: safe_open, tensor: Tensor):
        self._opened, self._tensor = opened, tensor

    def get_shape(self) -> List[int]:
        return list(self._tensor.shape)

    def get_dtype(self) -> str:
        return self._tensor.dtype

    def __getitem__(self, key: Any) -> Any:
        key = key if isinstance(key, tuple) else (key,)
        tensor = self._tensor
        if key and tensor.shape and isinstance(key[0], slice):
            first, last, step = key[0].indices(tensor.shape[0])
            if step > 0:
                rows = self._opened._give(tensor[first:max(first, last)])
                return rows[(slice(None, None, step), *key[1:])]
        elif key and tensor.shape and isinstance(key[0], int):
            return self._opened._give(tensor[key[0]])[key[1:] or ...]
        return self._opened._give(tensor)[key]
