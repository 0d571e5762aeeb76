#!/usr/bin/env python3
"""Orbax restores an item, or only looks at what it holds; prints the seconds it took.

    restore_item.py arrays|metadata ITEM [DROP...]

The time of importing JAX is not in it. The page cache forgets the files beneath each DROP just
before the restore begins: of memory that is free for longer, the host of a virtual machine takes
back much, and to get it again costs more than to read a disk.
"""
import os
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "orbax"))
import support  # noqa: E402


def drop(top):
    for directory, _, names in os.walk(top):
        for name in names:
            descriptor = os.open(os.path.join(directory, name), os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def main():
    what, item, *dropped = sys.argv[1:]
    for top in dropped:
        drop(top)
    begin = time.perf_counter()
    found = support.tree_of(item) if what == "metadata" else support.by_pytree(os.path.abspath(item))
    seconds = time.perf_counter() - begin
    if not found:
        raise SystemExit(f"{item}: nothing in it")
    print(seconds)


main()
