#!/usr/bin/env python3
"""What CPython makes of the memo: python make_pickle_memo.py OUT (tests/data/format/pickle-memo.txt).

One line for each pickle: its bytes in hex, a space, and the integers that loads() gives, or "error".
Every pickle puts numbers at places of the memo in some order (PUT, BINPUT, LONG_BINPUT, MEMOIZE),
then gets some of them back as a tuple. Both of CPython's unpicklers must agree.
"""
import io
import pathlib
import pickle
import random
import struct
import sys


def put(index, way):
    if way == "text":
        return b"p%d\n" % index
    if way == "short" and index < 256:
        return b"q" + bytes([index])
    return b"r" + struct.pack("<I", index)


def get(index):
    return b"h" + bytes([index]) if index < 256 else b"j" + struct.pack("<I", index)


def make(steps, gets):
    """steps: an index to put the next number at, or None: MEMOIZE"""
    text = b"\x80\x04"
    for number, (index, way) in enumerate(steps):
        text += b"K" + bytes([number]) + (b"\x94" if index is None else put(index, way)) + b"0"
    return text + b"(" + b"".join(get(index) for index in gets) + b"t."


def loads(text):
    results = []
    for unpickler in (pickle._Unpickler, pickle.Unpickler):
        try:
            results.append(" ".join(map(str, unpickler(io.BytesIO(text)).load())) or "()")
        except (KeyError, pickle.UnpicklingError):
            results.append("error")
    assert results[0] == results[1], text
    return results[0]


def cases():
    hand = [
        ([1, 0, 1, None], range(3)),        # first sparse, then dense
        ([1, 0, None], range(3)),           # dense up to what was sparse
        ([2, None, None, None], range(4)),  # MEMOIZE reaches a sparse one and replaces it
        ([5, None, 0, None, None], (0, 1, 2, 3, 5)),
        ([300, 300, None], (1, 300)),
        ([], (0,)),
        ([3], (2,)),
    ]
    for steps, gets in hand:
        for way in ("text", "short", "long"):
            yield [(index, way) for index in steps], list(gets)
    chance = random.Random(7)
    for _ in range(400):
        width = chance.choice((3, 6, 12))
        steps = [(None if chance.random() < 0.4 else chance.randrange(width),
                  chance.choice(("text", "short", "long"))) for _ in range(chance.randrange(1, 14))]
        memo = {}
        for number, (index, _way) in enumerate(steps):
            memo[len(memo) if index is None else index] = number
        gets = sorted(memo)
        if chance.random() < 0.1:
            gets.append(chance.randrange(2 * width))
        yield steps, gets


def main():
    lines = []
    for steps, gets in cases():
        text = make(steps, gets)
        lines.append(f"{text.hex()} {loads(text)}\n")
    pathlib.Path(sys.argv[1]).write_text("".join(lines))


if __name__ == "__main__":
    main()
