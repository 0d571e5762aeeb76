"""A mount for as long as a program needs one."""
from __future__ import annotations

import contextlib
import os
import pathlib
import subprocess
import tempfile
from typing import Any, Iterator, List, Union

from . import errors
from ._programs import program


@contextlib.contextmanager
def mounted(source: Union[str, os.PathLike], mountpoint: Union[None, str, os.PathLike] = None,
            **options: Any) -> Iterator[pathlib.Path]:
    """Mounts the views of a checkpoint, gives the directory that they are in, and unmounts.

    Needs /dev/fuse, and the package fuse3 for users other than root. `mountpoint` is by default a new
    temporary directory. `options` are those of `ckfs mount -o`: memory="4GiB", direct=True, …
    Raises IoError with what the program says.
    """
    words: List[str] = []
    for name, value in options.items():
        if value is None or value is False:
            continue
        for each in value if isinstance(value, (list, tuple)) else [value]:
            words += ["-o", name if each is True else f"{name}={each}"]
    command = program()
    own = tempfile.mkdtemp(prefix="ckfs-") if mountpoint is None else None
    at = os.fspath(own or mountpoint)  # type: ignore[arg-type]
    try:
        _run(command, "mount", *words, "--", os.fspath(source), at)
        try:
            yield pathlib.Path(at)
        finally:
            _run(command, "umount", "--", at)
    finally:
        if own is not None:
            with contextlib.suppress(OSError):
                os.rmdir(own)


def _run(*command: str) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                          stderr=subprocess.PIPE)
    if done.returncode != 0:
        text = done.stderr.decode(errors="replace").strip()
        raise errors.IoError(text.rpartition("\n")[2] or f"{command[0]}: exit {done.returncode}")
