"""Views as a file system of fsspec: `ckfs://VIEW/PATH::SOURCE`.

    fsspec.open("ckfs://bf16-safetensors/config.json::DeepSeek-V3")
    fsspec.filesystem("ckfs", fo="DeepSeek-V3").ls("bf16-safetensors")
"""
from __future__ import annotations

import os
from typing import Any, Dict, List, Optional

from fsspec.spec import AbstractFileSystem

from . import errors
from ._model import Checkpoint, Model

_SHOWN = ("hf", "http", "https", "s3", "gs")


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
        if target_protocol in _SHOWN and "://" not in fo:
            fo = f"{target_protocol}://{fo}"
        self.checkpoint = Checkpoint(fo, **(options or {}))
        self._views: Dict[str, Model] = {}

    def _view(self, name: str) -> Model:
        if name not in self._views:
            try:
                self._views[name] = self.checkpoint.view(name)
            except errors.NotFoundError as error:
                raise FileNotFoundError(error.errno, error.message, name) from None
        return self._views[name]

    def _entries(self, path: str) -> List[dict]:
        """What a directory has; of a file itself."""
        name, _, inner = path.partition("/")
        if not name:
            return [_directory(view) for view, available in self.checkpoint.views().items() if available]
        found: Dict[str, dict] = {}
        for file in self._view(name).files():
            if file.path == inner:
                return [_file(path, file)]
            if inner and not file.path.startswith(inner + "/"):
                continue
            head, slash, _ = file.path[len(inner) + 1 if inner else 0:].partition("/")
            entry = f"{path}/{head}"
            found[entry] = _directory(entry) if slash else _file(entry, file)
        if inner and not found:
            raise FileNotFoundError(2, "no such file of the view", path)
        return list(found.values())

    def ls(self, path: str, detail: bool = True, **rest: Any) -> list:
        entries = self._entries(self._strip_protocol(path))
        return entries if detail else [entry["name"] for entry in entries]

    def info(self, path: str, **rest: Any) -> dict:
        path = self._strip_protocol(path)
        entries = self._entries(path)
        if len(entries) == 1 and entries[0]["name"] == path:
            return entries[0]
        return _directory(path)

    def _open(self, path: str, mode: str = "rb", block_size: Any = None, autocommit: bool = True,
              cache_options: Any = None, **rest: Any):
        if mode != "rb":
            raise OSError(30, "ckfs is read-only", path)
        name, _, inner = self._strip_protocol(path).partition("/")
        try:
            return self._view(name).open_file(inner)
        except errors.NotFoundError as error:
            raise FileNotFoundError(2, error.message, path) from None

    def cat_file(self, path: str, start: Optional[int] = None, end: Optional[int] = None,
                 **rest: Any) -> bytes:
        with self._open(path) as file:
            size = file.seek(0, os.SEEK_END)
            first, last, _ = slice(start, end).indices(size)
            file.seek(first)
            return file.read(max(0, last - first))


def _directory(path: str) -> dict:
    return {"name": path, "size": 0, "type": "directory"}


def _file(path: str, file: Any) -> dict:
    return {"name": path, "size": file.size, "type": "file", "exactness": file.exactness}
