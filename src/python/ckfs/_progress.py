"""How far long work is: told to a function, or drawn on a terminal."""
from __future__ import annotations

import contextlib
import sys
import time


@contextlib.contextmanager
def follow(progress, verb: str):
    """A function of (done, total), or None. `progress` is None or False: nothing; True: a line on
    standard error where that is a terminal; or a function."""
    if progress is None or progress is False:
        yield None
    elif progress is not True:
        yield progress
    elif sys.stderr is None or not sys.stderr.isatty():
        yield None
    else:
        bar = _Bar(verb)
        try:
            yield bar
        finally:
            bar.end()


def size_text(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"


class _Bar:
    def __init__(self, verb: str):
        self.verb, self.begin, self.drawn = verb, time.monotonic(), False

    def __call__(self, done: int, total: int) -> None:
        passed = max(time.monotonic() - self.begin, 1e-9)
        width = 30 * done // total
        sys.stderr.write(f"\r{self.verb} {100 * done // total:3}% |{'#' * width}{' ' * (30 - width)}| "
                         f"{size_text(done)} of {size_text(total)}, {size_text(done / passed)}/s\x1b[K")
        sys.stderr.flush()
        self.drawn = True

    def end(self) -> None:
        if self.drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
