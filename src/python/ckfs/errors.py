"""The exceptions of ckfs. Each has `code` (a word that stays as it is) and `errno` (that of the system
call behind it; 0: there was none). The text is one line, `THING: FACT (LIMIT)`, and may change.
"""
from __future__ import annotations


class Error(Exception):
    """The base of all exceptions that ckfs raises."""

    code = "error"

    def __init__(self, message: str, errno: int = 0):
        super().__init__(message)
        self.message = message
        self.errno = errno

    def __str__(self) -> str:
        return self.message

    def __reduce__(self):
        return type(self), (self.message, self.errno)


class NotFoundError(Error, LookupError):
    """No such checkpoint, view or file."""

    code = "not_found"


class TensorNotFoundError(NotFoundError, KeyError):
    """No such tensor: what a Mapping raises."""

    __str__ = Error.__str__


class CorruptError(Error, ValueError):
    """The bytes of a file contradict its format."""

    code = "corrupt"


class UnsupportedError(Error, ValueError):
    """Well-formed, but not something that ckfs can serve."""

    code = "unsupported"


class InvalidArgumentError(Error, ValueError):
    """The request has no meaning."""

    code = "invalid_argument"


class IoError(Error, OSError):
    """The system failed."""

    code = "io"

    def __init__(self, message: str, errno: int = 0):
        OSError.__init__(self, errno, message)
        self.message = message
        self.errno = errno

    __str__ = Error.__str__


class StaleError(IoError):
    """A file of the source is no longer the one that was opened: open the source again."""

    code = "stale"


class OutOfMemoryError(Error, MemoryError):
    """More than `memory=` can give, or than the system has."""

    code = "out_of_memory"


class InternalError(Error, RuntimeError):
    """A bug in ckfs."""

    code = "internal"


class StoppedError(Error):
    """The work was ended before there was a result."""

    code = "stopped"


# By the numbers of ckfs/ckfs.h.
_BY_CODE = {1: NotFoundError, 2: CorruptError, 3: UnsupportedError, 4: InvalidArgumentError,
            5: IoError, 6: StaleError, 7: OutOfMemoryError, 8: InternalError, 9: StoppedError}


def make(code: int, errno: int, message: str) -> Error:
    return _BY_CODE.get(code, InternalError)(message, errno)
