"""The programs that the wheel installs beside the package."""
from __future__ import annotations

import os
import shutil
import sysconfig
from typing import Optional

from . import errors


def _of_wheel(name: str) -> Optional[str]:
    """Where the installer has put a program: it wrote so into the list of the package's files."""
    import importlib.metadata

    try:
        files = importlib.metadata.files("ckfs") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    return next((str(file.locate()) for file in files if file.name == name), None)


def _find(variable: str, name: str) -> Optional[str]:
    for candidate in (os.environ.get(variable), _of_wheel(name),
                      os.path.join(sysconfig.get_path("scripts"), name), shutil.which(name)):
        if candidate and os.access(candidate, os.X_OK):
            return candidate
    return None


def program() -> str:
    """The program `ckfs`: that of the wheel, else the one in PATH. Raises NotFoundError."""
    found = _find("CKFS_BIN", "ckfs")
    if found is None:
        raise errors.NotFoundError("the program ckfs is not installed (it comes with the wheel; "
                                   "CKFS_BIN names one elsewhere)")
    return found


def show_fetcher() -> None:
    """Lets the library find ckfs-fetcher, which it looks for beside the running program: here that is
    Python's."""
    if "CKFS_FETCHER" in os.environ:
        return
    found = _find("CKFS_FETCHER", "ckfs-fetcher")
    if found is not None:
        os.environ["CKFS_FETCHER"] = found
