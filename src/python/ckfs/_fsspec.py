"""Views as a file system of fsspec: `ckfs://VIEW/PATH::SOURCE`.

    fsspec.open("ckfs://bf16-safetensors/config.json::DeepSeek-V3")
    fsspec.filesystem("ckfs", fo="DeepSeek-V3").ls("bf16-safetensors")
"""
from __future__ import annotations

import errno
import os
from typing import Any, Dict, Optional

from fsspec.spec import AbstractFileSystem

from . import errors
from ._model import Checkpoint, Model

# The schemes of locations, by fsspec's names for them.
_LOCAL = (None, "", "file", "local")
_SCHEMES = {"hf": "hf", "http": "http", "https": "https", "s3": "s3", "s3a": "s3", "gs": "gs",
            "gcs": "gs"}


class CkfsFileSystem(AbstractFileSystem):
    """The views of a checkpoint, read-only.

    fo: the source, as of ckfs.open(). target_protocol: its scheme, where a chained URL has one.
    options: those of ckfs.open(). A view appears in a listing of the root if it is available; others
    with parameters are found by their names.
    """

    protocol = "ckfs"
    root_marker = ""

    def __init__(self, fo: str = "", target_protocol: Optional[str] = None,
                 target_options: Optional[dict] = None, options: Optional[Dict[str, Any]] = None,
                 **rest: Any):
        super().__init__(**rest)
        if not fo:
            raise errors.InvalidArgumentError("ckfs: no source (ckfs://VIEW/PATH::SOURCE)")
        if target_options:
            raise errors.InvalidArgumentError(
                f"{fo}: options of {target_protocol} ({', '.join(map(str, target_options))}) do not "
                "reach ckfs (credentials come from the environment; ckfs={\"options\": {…}} has those "
                "of ckfs.open)")
        if target_protocol not in _LOCAL and "://" not in fo:
            scheme = _SCHEMES.get(target_protocol)
            if scheme is None:
                raise errors.InvalidArgumentError(
                    f"{target_protocol}://{fo}: not a source that ckfs reads (a path, "
                    f"{', '.join(f'{name}://' for name in dict.fromkeys(_SCHEMES.values()))})")
            fo = f"{scheme}://{fo}"
        self.checkpoint = Checkpoint(fo, **(options or {}))
        self._views: Dict[str, _View] = {}

    def _view(self, name: str) -> "_View":
        if name not in self._views:
            try:
                self._views[name] = _View(name, self.checkpoint.view(name))
            except errors.NotFoundError as error:
                raise FileNotFoundError(errno.ENOENT, error.message, name) from None
        return self._views[name]

    def ls(self, path: str, detail: bool = True, **rest: Any) -> list:
        path = self._strip_protocol(path)
        if not path:
            views = self.checkpoint.views().items()
            entries = [_directory(view) for view, available in views if available]
        else:
            view = self._view(path.partition("/")[0])
            entries = (list(view.directories[path].values()) if path in view.directories
                       else [view.find(path)])
        return entries if detail else [entry["name"] for entry in entries]

    def info(self, path: str, **rest: Any) -> dict:
        path = self._strip_protocol(path)
        return self._view(path.partition("/")[0]).find(path) if path else _directory(path)

    def _open(self, path: str, mode: str = "rb", block_size: Any = None, autocommit: bool = True,
              cache_options: Any = None, **rest: Any):
        if mode != "rb":
            raise OSError(errno.EROFS, "ckfs is read-only", path)
        return self._open_file(path, 1 << 20)

    def _open_file(self, path: str, buffering: int):
        path = self._strip_protocol(path)
        name, _, inner = path.partition("/")
        view = self._view(name)
        if view.find(path)["type"] == "directory":
            raise IsADirectoryError(errno.EISDIR, "a directory of the view", path)
        return view.model.open_file(inner, buffering)

    def cat_file(self, path: str, start: Optional[int] = None, end: Optional[int] = None,
                 **rest: Any) -> bytes:
        with self._open_file(path, 1) as file:  # no byte more than the range
            size = file.seek(0, os.SEEK_END)
            first, last, _ = slice(start, end).indices(size)
            file.seek(first)
            return file.read(max(0, last - first))


class _View:
    """The files of a view as a tree, made once: to look at one of 100,000 files lists no others."""

    def __init__(self, name: str, model: Model):
        self.model = model
        # Each directory by its path, with its entries by theirs.
        self.directories: Dict[str, Dict[str, dict]] = {name: {}}
        for file in model.files():
            path = f"{name}/{file.path}"
            entry = _file(path, file)
            while True:
                path = path.rpartition("/")[0]
                is_new = path not in self.directories
                self.directories.setdefault(path, {})[entry["name"]] = entry
                if not is_new or path == name:
                    break
                entry = _directory(path)

    def find(self, path: str) -> dict:
        if path in self.directories:
            return _directory(path)
        entry = self.directories.get(path.rpartition("/")[0], {}).get(path)
        if entry is None:
            raise FileNotFoundError(errno.ENOENT, "no such file of the view", path)
        return entry


def _directory(path: str) -> dict:
    return {"name": path, "size": 0, "type": "directory"}


def _file(path: str, file: Any) -> dict:
    return {"name": path, "size": file.size, "type": "file", "exactness": file.exactness}
