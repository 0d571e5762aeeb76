#!/usr/bin/env python3
"""A sparse Orbax item of DeepSeek-V3's unscanned shape: 1,025 arrays, a chunk for each expert.

    make_orbax_scale.py DIR        prints how many arrays and chunks it has

The database is written by the format's description (raw nodes, one version); its data files are
holes.
"""
import itertools
import json
import os
import pathlib
import struct
import sys

TABLE = []
for _n in range(256):
    for _ in range(8):
        _n = (_n >> 1) ^ (0x82F63B78 if _n & 1 else 0)
    TABLE.append(_n)
KEYS_OF_A_LEAF = 8192
FILE_BYTES = 2 << 30


def crc32c(data):
    total = 0xFFFFFFFF
    for byte in data:
        total = TABLE[(total ^ byte) & 255] ^ (total >> 8)
    return total ^ 0xFFFFFFFF


def varint(number):
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes(out) + bytes([number])


def column(numbers):
    return b"".join(map(varint, numbers))


def enveloped(magic, body):
    text = struct.pack(">I", magic) + struct.pack("<Q", 18 + len(body)) + b"\0\0" + body
    return text + struct.pack("<I", crc32c(text))


def shared(names):
    """How many bytes each has of the one before."""
    return [0] + [len(os.path.commonprefix(pair)) for pair in zip(names, names[1:])]


def texts(names, *columns):
    prefix = shared(names)
    return (column(prefix[1:]) + column(len(n) - p for n, p in zip(names, prefix))
            + b"".join(columns) + b"".join(n[p:] for n, p in zip(names, prefix)))


def files(names):
    return varint(len(names)) + texts(names, bytes(len(names)))


def leaf(entries):
    """A node of [(key, bytes, or (file, offset, size))]."""
    keys, values = zip(*entries)
    places = [value for value in values if isinstance(value, tuple)]
    names = sorted({file for file, _, _ in places})
    number = {name: i for i, name in enumerate(names)}
    return enveloped(0x0CDB20DE, b"\0" + files(names) + varint(len(keys)) + texts(keys)
                     + column(v[2] if isinstance(v, tuple) else len(v) for v in values)
                     + bytes(isinstance(v, tuple) for v in values)
                     + column(number[p[0]] for p in places) + column(p[1] for p in places)
                     + b"".join(v for v in values if isinstance(v, bytes)))


def write_database(root, entries):
    entries = sorted(entries.items())
    nodes, children = b"", []
    for begin in range(0, len(entries), KEYS_OF_A_LEAF):
        node = leaf(entries[begin:begin + KEYS_OF_A_LEAF])
        children.append((entries[begin][0], len(nodes), len(node)))
        nodes += node
    keys, offsets, sizes = zip(*children)
    zeros = bytes(len(children))
    top = enveloped(0x0CDB20DE, b"\1" + files([b"d/nodes"]) + varint(len(keys)) + texts(keys, zeros)
                    + zeros + column(offsets) + column(sizes) + zeros * 3)
    (root / "d" / "nodes").write_bytes(nodes + top)
    config = bytes(16) + b"\0" + varint(1024) + varint(100_000_000) + b"\4\0"
    version = column([1, 1]) + b"\1" + column([0, len(nodes), len(top), 0, 0, 0]) + bytes(8)
    (root / "manifest.ocdbt").write_bytes(
        enveloped(0x0CDB3A2A, config + files([b"d/nodes"]) + version + b"\0"))


def arrays():
    """(name, shape, chunk) of all parameters."""
    def one(name, *shape):
        return name, shape, shape

    yield one("token_embedder.embedding", 129280, 7168)
    yield one("decoder.logits_dense.kernel", 7168, 129280)
    yield one("decoder.decoder_norm.scale", 7168)
    for layer in range(61):
        kind = "dense_layers" if layer < 3 else "moe_layers"
        base = f"decoder.{kind}_{layer if layer < 3 else layer - 3}"
        attention = f"{base}.self_attention"
        yield one(f"{base}.pre_self_attention_layer_norm.scale", 7168)
        yield one(f"{base}.post_self_attention_layer_norm.scale", 7168)
        yield one(f"{attention}.wq_a.kernel", 7168, 1536)
        yield one(f"{attention}.wq_b.kernel", 1536, 128, 192)
        yield one(f"{attention}.q_norm.scale", 1536)
        yield one(f"{attention}.wkv_a.kernel", 7168, 576)
        yield one(f"{attention}.wkv_b.kernel", 512, 128, 256)
        yield one(f"{attention}.kv_norm.scale", 512)
        yield one(f"{attention}.out.kernel", 128, 128, 7168)
        if layer < 3:
            yield one(f"{base}.mlp.wi_0.kernel", 7168, 18432)
            yield one(f"{base}.mlp.wi_1.kernel", 7168, 18432)
            yield one(f"{base}.mlp.wo.kernel", 18432, 7168)
            continue
        moe = f"{base}.DeepSeekMoeBlock_0"
        yield one(f"{moe}.shared_experts.wi_0.kernel", 7168, 2048)
        yield one(f"{moe}.shared_experts.wi_1.kernel", 7168, 2048)
        yield one(f"{moe}.shared_experts.wo.kernel", 2048, 7168)
        yield one(f"{moe}.MoeBlock_0.gate.kernel", 7168, 256)
        yield one(f"{moe}.MoeBlock_0.gate.bias", 256)
        for name, rows, columns in (("wi_0", 7168, 2048), ("wi_1", 7168, 2048), ("wo", 2048, 7168)):
            yield f"{moe}.MoeBlock_0.{name}", (256, rows, columns), (1, rows, columns)


def write(root):
    """The item in the new directory `root`; how many arrays and chunks it has."""
    (root / "d").mkdir(parents=True)
    entries, tree, chunks, end = {}, {}, 0, 0
    for name, shape, chunk in arrays():
        path = ("params", "params", *name.split("."))
        tree[str(path)] = {
            "key_metadata": [{"key": key, "key_type": 2} for key in path],
            "value_metadata": {"value_type": "jax.Array", "skip_deserialize": False}}
        prefix = ".".join(path).encode()
        entries[prefix + b"/zarr.json"] = json.dumps({
            "zarr_format": 3, "node_type": "array", "shape": shape, "data_type": "bfloat16",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk}},
            "chunk_key_encoding": {"name": "default"}, "fill_value": 0.0,
            "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}]}).encode()
        size = 2
        for extent in chunk:
            size *= extent
        for index in itertools.product(*(range(s // c) for s, c in zip(shape, chunk))):
            if end % FILE_BYTES + size > FILE_BYTES:
                end += FILE_BYTES - end % FILE_BYTES
            key = prefix + b"/c" + "".join(f"/{i}" for i in index).encode()
            entries[key] = (b"d/%05d" % (end // FILE_BYTES), end % FILE_BYTES, size)
            end += size
            chunks += 1
    for number in range(end // FILE_BYTES + 1):
        with open(root / "d" / f"{number:05}", "wb") as data:
            data.truncate(FILE_BYTES)
    write_database(root, entries)
    (root / "_METADATA").write_text(json.dumps({
        "tree_metadata": tree, "use_ocdbt": True, "use_zarr3": True,
        "store_array_data_equal_to_fill_value": True, "custom_metadata": None}))
    return len(tree), chunks


if __name__ == "__main__":
    print(*write(pathlib.Path(sys.argv[1])))
