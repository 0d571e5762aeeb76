"""Reads an Orbax item as the formats' descriptions say: OCDBT, zarr 3 and 2, _METADATA.

Shares nothing with ckfs, and needs nothing but Python. For uncompressed chunks; for small arrays.
"""

import itertools
import json
import struct
from pathlib import Path

MANIFEST, NODE = 0x0CDB3A2A, 0x0CDB20DE
TABLE = []
for _n in range(256):
    for _ in range(8):
        _n = (_n >> 1) ^ (0x82F63B78 if _n & 1 else 0)
    TABLE.append(_n)


def crc32c(data):
    """CRC-32C."""
    total = 0xFFFFFFFF
    for byte in data:
        total = TABLE[(total ^ byte) & 255] ^ (total >> 8)
    return total ^ 0xFFFFFFFF


class Reader:
    """Numbers out of bytes."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, count):
        part = self.data[self.at:self.at + count]
        assert len(part) == count, "cut short"
        self.at += count
        return part

    def varint(self):
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    def column(self, count):
        return [self.varint() for _ in range(count)]

    def strings(self, count, columns=0):
        """Texts that share a prefix with the one before; other `columns` precede their bytes."""
        shared = [0] + self.column(count - 1) if count else []
        rest = self.column(count)
        others = [self.column(count) for _ in range(columns)]
        texts = []
        for keep, size in zip(shared, rest):
            before = texts[-1] if texts else b""
            assert keep <= len(before)
            texts.append(before[:keep] + self.take(size))
        return texts, *others


def opened(magic, data):
    """The body of a manifest or node."""
    assert struct.unpack(">I", data[:4])[0] == magic, data[:4]
    assert struct.unpack("<Q", data[4:12])[0] == len(data), "another length"
    assert data[12:14] == b"\0\0", "another version, or compressed"
    assert struct.unpack("<I", data[-4:])[0] == crc32c(data[:-4]), "checksum"
    return Reader(data[14:-4])


def files(reader):
    """A table of data files; base paths are empty."""
    paths, bases = reader.strings(reader.varint(), 1)
    assert not any(bases)
    return [path.decode() for path in paths]


def database(root):
    """{key: bytes, or (file, offset, size)} of an OCDBT database."""
    reader = opened(MANIFEST, (root / "manifest.ocdbt").read_bytes())
    reader.take(16)
    assert reader.take(1) == b"\0"
    reader.column(2)
    assert reader.take(2) == b"\4\0"
    paths = files(reader)
    assert reader.column(2) == [1, 1]
    height = reader.take(1)[0]
    place = reader.column(3)
    totals = reader.column(3)
    reader.take(8)
    assert reader.varint() == 0 and reader.at == len(reader.data)
    entries = {}
    seen = walk(root, paths, place, height, b"", entries)
    assert list(seen) == totals, (seen, totals)
    assert list(entries) == sorted(entries)
    return entries


def walk(root, paths, place, height, least, entries):
    """Adds a node's entries; gives how many keys, bytes of nodes and of values there are."""
    file, offset, size = place
    with open(root / paths[file], "rb") as source:
        source.seek(offset)
        node = source.read(size)
    reader = opened(NODE, node)
    assert reader.take(1)[0] == height
    paths = files(reader)
    count = reader.varint()
    assert 1 <= count <= 4096, count
    if height:
        keys, stripped = reader.strings(count, 1)
        assert not any(stripped)
        columns = [reader.column(count) for _ in range(6)]
        total = [0, size, 0]
        for key, *rest in zip(keys, *columns):
            seen = walk(root, paths, rest[:3], height - 1, key, entries)
            assert list(seen) == rest[3:], (seen, rest)
            total = [a + b for a, b in zip(total, seen)]
    else:
        keys, = reader.strings(count)
        sizes, kinds = reader.column(count), reader.take(count)
        where = sum(kinds)
        places = list(zip(reader.column(where), reader.column(where)))
        values = []
        for length, kind in zip(sizes, kinds):
            values.append((*places.pop(0), length) if kind else reader.take(length))
        total = [count, size, sum(s for s, k in zip(sizes, kinds) if k)]
        for key, value in zip(keys, values):
            if isinstance(value, tuple):
                value = (paths[value[0]], *value[1:])
            entries[key.decode()] = value
    assert keys[0] >= least and reader.at == len(reader.data)
    return tuple(total)


def value_of(root, value):
    """The bytes of an entry."""
    if isinstance(value, bytes):
        return value
    file, offset, size = value
    with open(root / file, "rb") as source:
        source.seek(offset)
        data = source.read(size)
    assert len(data) == size, f"{file}: cut short"
    return data


def plain(root):
    """The same of plain zarr directories."""
    return {
        str(path.relative_to(root)): (str(path.relative_to(root)), 0, path.stat().st_size)
        for path in sorted(root.rglob("*")) if path.is_file() and path.parent != root
    }


ITEM = {"bool": 1, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "float16": 2, "bfloat16": 2,
        "int32": 4, "uint32": 4, "float32": 4, "int64": 8, "uint64": 8, "float64": 8,
        "complex64": 8, "complex128": 16, "float8_e4m3fn": 1, "float8_e5m2": 1,
        "float8_e8m0fnu": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1}
V2 = {"|b1": "bool", "|u1": "uint8", "|i1": "int8", "<u2": "uint16", "<i2": "int16",
      "<f2": "float16", "<i4": "int32", "<u4": "uint32", "<f4": "float32", "<i8": "int64",
      "<u8": "uint64", "<f8": "float64", "<c8": "complex64", "<c16": "complex128"}


class Array:
    """Metadata of an array, whichever version of zarr."""

    def __init__(self, name, text):
        meta = json.loads(text)
        self.name, self.shape, self.order = name, meta["shape"], None
        self.v3 = meta["zarr_format"] == 3
        if self.v3:
            self.dtype = meta["data_type"]
            self.chunk = meta["chunk_grid"]["configuration"]["chunk_shape"]
            *codecs, last = meta["codecs"]
            assert last["name"] == "bytes"
            for codec in codecs:
                assert codec["name"] == "transpose" and self.order is None
                self.order = codec["configuration"]["order"]
        else:
            self.dtype, self.chunk = V2.get(meta["dtype"], meta["dtype"]), meta["chunks"]
            assert meta["compressor"] is None and meta["filters"] is None
            if meta["order"] == "F":
                self.order = list(range(len(self.shape)))[::-1]
        self.width = ITEM[self.dtype]
        assert all(s % c == 0 for s, c in zip(self.shape, self.chunk)), "no partial chunk"

    def grid(self):
        return [s // c for s, c in zip(self.shape, self.chunk)]

    def key(self, index):
        if self.v3:
            return "/".join([self.name, "c", *map(str, index)])
        return f"{self.name}/{'.'.join(map(str, index)) or '0'}"

    def keys(self):
        return [(i, self.key(i)) for i in itertools.product(*map(range, self.grid()))]

    def metadata_key(self):
        return f"{self.name}/{'zarr.json' if self.v3 else '.zarray'}"

    def assemble(self, chunk_of):
        """The array's bytes in row-major order; chunk_of(key): those of a chunk."""
        strides = [self.width]
        for extent in self.shape[:0:-1]:
            strides.insert(0, strides[0] * extent)
        total = self.width
        for extent in self.shape:
            total *= extent
        out = bytearray(total)
        order = self.order or list(range(len(self.shape)))
        for index, key in self.keys():
            data, at = chunk_of(key), 0
            base = sum(i * c * s for i, c, s in zip(index, self.chunk, strides))
            inner = order[-1] if order else None
            run = self.width * (self.chunk[inner] if order else 1)
            for place in itertools.product(*(range(self.chunk[d]) for d in order[:-1])):
                to = base + sum(i * strides[d] for i, d in zip(place, order))
                if not order or strides[inner] == self.width:
                    out[to:to + run] = data[at:at + run]
                else:
                    for k in range(self.chunk[inner]):
                        here = to + k * strides[inner]
                        begin = at + k * self.width
                        out[here:here + self.width] = data[begin:begin + self.width]
                at += run
            assert at == len(data), f"{key}: {len(data)} bytes, not {at}"
        return bytes(out)


class Item:
    """An item: leaves(), arrays and their bytes."""

    def __init__(self, root):
        self.root = Path(root)
        self.metadata = json.loads((self.root / "_METADATA").read_text())
        ocdbt = (self.root / "manifest.ocdbt").exists()
        assert self.metadata["use_ocdbt"] == ocdbt
        self.entries = database(self.root) if ocdbt else plain(self.root)
        self.arrays = {}
        name_of = "zarr.json" if self.metadata["use_zarr3"] else ".zarray"
        for key in self.entries:
            if key.endswith("/" + name_of):
                name = key[:-len(name_of) - 1]
                self.arrays[name] = Array(name, self.read(key))
        keys = {key for a in self.arrays.values() for _, key in a.keys()}
        keys |= {a.metadata_key() for a in self.arrays.values()}
        assert keys == set(self.entries), "every chunk, and nothing else"
        kept = {n for n, kind in self.leaves().items() if kind != "Dict"}
        assert kept == set(self.arrays), kept ^ set(self.arrays)

    def read(self, key):
        return value_of(self.root, self.entries[key])

    def leaves(self):
        """{name: value_type}"""
        return {
            ".".join(k["key"] for k in leaf["key_metadata"]): leaf["value_metadata"]["value_type"]
            for leaf in self.metadata["tree_metadata"].values()
        }

    def value(self, name):
        """(dtype, shape, bytes) of an array."""
        array = self.arrays[name]
        return array.dtype, array.shape, array.assemble(self.read)
