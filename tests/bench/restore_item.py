#!/usr/bin/env python3
"""Orbax restores an item, or only looks at what it holds; prints the seconds it took.

    restore_item.py arrays|metadata ITEM

The time of importing JAX is not in it.
"""
import os
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "orbax"))
import support  # noqa: E402


def main():
    what, item = sys.argv[1:]
    begin = time.perf_counter()
    found = support.tree_of(item) if what == "metadata" else support.by_pytree(os.path.abspath(item))
    seconds = time.perf_counter() - begin
    if not found:
        raise SystemExit(f"{item}: nothing in it")
    print(seconds)


main()
