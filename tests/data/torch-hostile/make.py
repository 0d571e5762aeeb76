"""Writes the hostile torch files that are ours, and what is expected of all of them.

    python make.py            # rewrites zip/ (but the files of GIVEN), pickle/ and cases.json

The files of GIVEN came with the golden data; each has a payload that would create the file named by
the environment variable CKFS_HOSTILE_MARKER. Of every case cases.json says whether the honest
tensor `w` (F32, 5 x 3, 0 to 14) is served, or which text the error has. pickle/ has the bare
pickles of all files, as seeds of the fuzz target. Standard library only; nothing is unpickled here.
"""

import json
import pathlib
import struct

HERE = pathlib.Path(__file__).parent
DATA = struct.pack("<15f", *range(15))
SERVED = None  # the expectation: `w`, byte for byte

GIVEN = {
    "append-method": SERVED,
    "billion-laughs": SERVED,
    "binunicode-length": "opcode 0x58 needs 4294967285 bytes",
    "build-setstate": SERVED,
    "cycle": SERVED,
    "deep-nesting": SERVED,
    "exec-source": SERVED,
    "frame-length": "a frame of 4611686018427387904 bytes",
    "getattr-import-chain": SERVED,
    "inst-os-system": "opcode 'i' of protocols 0 and 1",
    "legacy-numel-negative": 'storage "0" has -15 elements, the pickle has 15',
    "legacy-payload": SERVED,
    "load-from-bytes-nested": SERVED,
    "long4-negative": "opcode 0x8b needs 4294967296 bytes",
    "mark-missing": "no mark on the stack",
    "memo-index-huge": SERVED,
    "newobj-tuple-of-map": SERVED,
    "obj-os-system": "opcode 'o' of protocols 0 and 1",
    "offset-past-end": 'offset 14, shape [5, 3] and stride [3, 1] reach beyond storage "0"',
    "payload-before-state": SERVED,
    "payload-in-size": "its shape is not a list of integers",
    "pid-not-tuple": "its persistent id names no storage",
    "pid-numel-negative": "its storage has no key or no size",
    "pid-numel-too-large": "has 60 bytes, the pickle needs 4398046511104",
    "rebuild-from-type-calls": SERVED,
    "reduce-os-system": SERVED,
    "reduce-posix-system": SERVED,
    "shape-overflow": "has no possible number of elements",
    "size-of-map": SERVED,
    "stack-global-os-system": SERVED,
    "stack-underflow": "the stack is empty",
    "storage-key-path": "no zip member",
    "storage-missing": "no zip member",
    "stride-past-end": "reach beyond storage",
    "tensor-is-payload": "not a tensor",
    "truncated-pickle": "bytes (limit",
    "zip-bomb": '"archive/data.pkl" is compressed',
    "zip-cd-outside": "reaches beyond",
    "zip-overlapping-entries": SERVED,
    "zip-path-traversal": SERVED,
    "zip-truncated": "the file is incomplete",
    "zip-two-data-pkl": '"archive/data.pkl" twice',
    "zip64-entry-count": "1099511627776 zip members do not fit",
    "zip64-size-lie": "reach into the directory",
}

# ---- pickles ----

MARK, TUPLE, REDUCE, BUILD, PID, NONE, FALSE, STOP = b"(", b"t", b"R", b"b", b"Q", b"N", b"\x89", b"."


def text(value):
    value = value.encode()
    return b"X" + struct.pack("<I", len(value)) + value


def integer(value):
    size = value.bit_length() // 8 + 1
    return b"\x8a" + bytes([size]) + value.to_bytes(size, "little", signed=True)


def put(value):
    """A value as pickle text; bytes are that already."""
    if isinstance(value, bytes):
        return value
    return text(value) if isinstance(value, str) else integer(value)


def tuple_of(*values):
    return MARK + b"".join(map(put, values)) + TUPLE


def name_of(module, name):
    return f"c{module}\n{name}\n".encode()


def call(function, *arguments):
    return function + tuple_of(*arguments) + REDUCE


FLOATS = name_of("torch", "FloatStorage")
UNTYPED = name_of("torch.storage", "UntypedStorage")
HOOKS = call(name_of("collections", "OrderedDict"))


def storage(kind=FLOATS, key="0", place="cpu", numel=15, more=()):
    return tuple_of("storage", kind, key, place, numel, *more) + PID


def tensor(where=None, offset=0, shape=(5, 3), stride=(3, 1), more=(), function="_rebuild_tensor_v2"):
    shape = shape if isinstance(shape, bytes) else tuple_of(*shape)
    stride = stride if isinstance(stride, bytes) else tuple_of(*stride)
    return call(name_of("torch._utils", function), storage() if where is None else where, offset,
                shape, stride, FALSE, HOOKS, *more)


def pickle_of(w=None, x=None, after=b""):
    """{"w": the honest tensor, "x": whatever}"""
    pairs = text("w") + (tensor() if w is None else w) + (text("x") + x if x is not None else b"")
    return b"\x80\x02}" + MARK + pairs + b"u" + after + STOP


# ---- zip archives ----


def member(name, data, **lies):
    return {"name": name, "data": data, **lies}


def archive(members, end=None, end64=None, with64=True, junk=b""):
    """An archive in torch's layout. What a member, the end record or the zip64 end record is given
    besides replaces the truth."""
    out, directory = bytearray(), bytearray()
    for m in members:
        name = (m["root"] if "root" in m else "archive/") + m["name"]
        name = name.encode()
        local_name = m.get("local_name", name)
        begin, size = len(out), len(m["data"])
        pad = -(begin + 30 + len(local_name) + 4) % 64
        extra = b"FB" + struct.pack("<H", pad) + b"Z" * pad
        flags = 0x0808 | m.get("flags", 0)
        out += struct.pack("<4sHHHHHIIIHH", m.get("local_signature", b"PK\3\4"), 0, flags, 0, 0, 0, 0, 0, 0,
                           len(local_name), m.get("local_extra", len(extra))) + local_name + extra
        out += m["data"] + struct.pack("<4sIII", b"PK\7\x08", 0, size, size)
        field = m.get("zip64", b"")
        directory += struct.pack("<4sHHHHHHIIIHHHHHII", m.get("signature", b"PK\1\2"), 0, 0, flags,
                                 m.get("method", 0), 0, 0, 0, m.get("packed", size), m.get("size", size),
                                 m.get("name_size", len(name)), len(field), 0, m.get("disk", 0), 0, 0,
                                 m.get("begin", begin)) + name + field
    begin = len(out)
    out += directory + junk
    truth = {"count": len(members), "size": len(directory) + len(junk), "begin": begin, "disk": 0}
    e, e64 = {**truth, **(end or {})}, {**truth, **(end64 or {})}
    if with64:
        at = e64.get("at", len(out))
        out += struct.pack("<4sQHHIIQQQQ", b"PK\6\6", 44, 0x031E, 45, e64["disk"], 0, e64["count"],
                           e64["count"], e64["size"], e64["begin"])
        out += struct.pack("<4sIQI", b"PK\6\7", e64.get("locator_disk", 0), at, 1)
    out += struct.pack("<4sHHHHIIH", b"PK\5\6", e["disk"], 0, e["count"], e["count"], e["size"], e["begin"], 0)
    return bytes(out)


def torch_zip(pickle=None, data=DATA, more=(), drop=(), change=None, **ends):
    members = [member("data.pkl", pickle_of() if pickle is None else pickle), member("byteorder", b"little"),
               member("data/0", data), *more, member("version", b"3\n")]
    members = [dict(m, **(change or {}).get(m["name"], {})) for m in members if m["name"] not in drop]
    return archive(members, **ends)


# ---- the stream before torch 1.6 ----

MAGIC = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."


def stream(state=None, protocol=1001, little=b"\x88", keys=("0",), storages=struct.pack("<q", 15) + DATA):
    system = b"\x80\x02}" + MARK + text("little_endian") + little + b"u" + STOP
    names = keys if isinstance(keys, bytes) else b"\x80\x02](" + b"".join(map(put, keys)) + b"e" + STOP
    state = pickle_of(tensor(storage(more=(NONE,)))) if state is None else state
    return MAGIC + b"\x80\x02" + integer(protocol) + STOP + system + state + names + storages


def stream_view(view, where=None, count=15, **options):
    pair = tuple_of("7", *view)
    return stream(pickle_of(tensor(storage(more=(pair,), **(where or {})), **options)),
                  storages=struct.pack("<q", count) + DATA)


def cases():
    yield "honest", SERVED, torch_zip()
    yield "honest-stream", SERVED, stream()
    yield "honest-without-zip64", SERVED, torch_zip(with64=False)
    yield "stream-view-honest", SERVED, stream_view((0, 15))

    # zip
    yield "zip-many-disks", "a zip archive of several disks", torch_zip(with64=False, end={"disk": 1})
    yield "zip64-many-disks", "a zip archive of several disks", torch_zip(end64={"disk": 7})
    yield "zip64-locator-disk", "a zip archive of several disks", torch_zip(end64={"locator_disk": 3})
    yield "zip-member-of-another-disk", "a zip archive of several disks", torch_zip(change={"data/0": {"disk": 2}})
    yield "zip64-end-outside", "beyond its locator", torch_zip(end64={"at": 2**63})
    yield "zip64-end-elsewhere", "no zip64 end record at 0", torch_zip(end64={"at": 0})
    yield "zip-two-directories", "contradict each other", torch_zip(end={"begin": 64})
    yield "zip-directory-garbage", "zip directory has no entry 2 of 4", torch_zip(change={"data/0": {"signature": b"PK\1\3"}})
    yield "zip-name-length", "reaches beyond its end", torch_zip(change={"version": {"name_size": 60000}})
    yield "zip64-field-missing", "its zip64 field is too short", torch_zip(change={"data/0": {"size": 0xFFFFFFFF}})
    yield "zip64-field-of-zeros", "stored, but 60 bytes became 0", torch_zip(change={"data/0": {
        "packed": 0xFFFFFFFF, "zip64": struct.pack("<HHQ", 1, 8, 0)}})
    yield "zip64-extra-runs-over", "its zip64 field is too short", torch_zip(change={"data/0": {
        "begin": 0xFFFFFFFF, "zip64": struct.pack("<HHI", 9, 65535, 0)}})
    yield "zip-sizes-differ", "stored, but 61 bytes became 60", torch_zip(change={"data/0": {"size": 61}})
    yield "zip-more-in-directory", "3 bytes after the last entry", torch_zip(junk=b"PK\1")
    yield "zip-encrypted", '"archive/data.pkl" is encrypted', torch_zip(change={"data.pkl": {"flags": 1}})
    yield "zip-other-local-name", 'member "archive/data/0": its local header', torch_zip(
        change={"data/0": {"local_name": b"archive/data/1"}})
    yield "zip-no-local-header", "does not match it", torch_zip(change={"data/0": {"local_signature": b"PK\3\3"}})
    yield "zip-header-elsewhere", "does not match it", torch_zip(change={"data/0": {"begin": 0}})
    yield "zip-local-extra", "reach into the directory", torch_zip(change={"data/0": {"local_extra": 65535}})
    yield "zip-prefix", "not a torch file", b"#!/bin/sh\n" + torch_zip()
    yield "zip-prefix-like-a-zip", "beyond its locator", b"PK\3\4" * 20 + torch_zip(end64={"at": 2**20})
    yield "zip-shifted", "zip directory has no entry 0 of 4", b"PK\3\4" + torch_zip(with64=False)
    yield "zip-name-in-other-case", SERVED, torch_zip(more=[member("DATA.PKL", pickle_of(x=NONE))])
    yield "zip-nul-in-name", SERVED, torch_zip(more=[member("data.pkl\0", pickle_of(x=NONE))])
    yield "zip-long-byteorder", '"archive/byteorder" has 100 bytes (limit 64)', torch_zip(
        change={"byteorder": {"data": b"l" * 100}})
    yield "zip-big-endian", 'byte order "big"', torch_zip(change={"byteorder": {"data": b"big"}})
    yield "zip-no-version", "a torch file without its version", torch_zip(drop=["version"])
    yield "zip-version-99", 'torch file version "99"', torch_zip(drop=["version"], more=[member(".data/version", b"99\n")])
    yield "zip-torchscript", "a TorchScript program", torch_zip(more=[member("constants.pkl", b"\x80\x02).")])
    yield "zip-without-pickle", "not written by torch.save", torch_zip(drop=["data.pkl"])
    yield "zip-without-members", "a zip archive without members", b"PK\3\4" + archive([], with64=False)
    yield "not-a-torch-file", "not a torch file", b"version https://git-lfs.github.com/spec/v1\n"
    yield "empty", "not a torch file", b""
    yield "zip-magic-only", "the file is incomplete", b"PK\3\4"

    # pickle
    honest = pickle_of()
    x = lambda value: torch_zip(pickle_of(x=value))
    yield "pickle-without-stop", "ends without STOP", torch_zip(honest[:-1])
    yield "pickle-empty", "ends without STOP", torch_zip(b"")
    yield "pickle-unknown-opcode", "no opcode 0xff", x(b"\xff")
    yield "pickle-protocol-9", "protocol 9 (limit 5)", torch_zip(b"\x80\x09" + honest[2:])
    yield "pickle-key-without-value", "a key without a value", x(b"}" + MARK + text("k") + b"u")
    yield "pickle-dict-without-value", "a key without a value", x(MARK + text("k") + b"d")
    yield "pickle-append-to-tuple", "on a value that is neither a container", x(b")Na")
    yield "pickle-set-on-string", "on a value that is neither a container", x(text("s") + b"NNs")
    yield "pickle-elements-and-pairs", "an object with both elements and pairs", x(HOOKS + b"NaNNs")
    yield "pickle-global-of-numbers", "a global whose name is not a string", x(b"K\1K\2\x93")
    yield "pickle-memo-empty", "nothing at 77 of the memo", x(b"h\x4d")
    yield "pickle-memo-text", "a memo index that is not a number", x(b"Np0x1\n")
    yield "pickle-extension", "an extension code", x(b"\x82\1")
    yield "pickle-buffer", "an out-of-band buffer", x(b"\x97")
    yield "pickle-pop-below-mark", "the stack is empty", x(MARK + b"R1")
    yield "pickle-huge-line", "bytes (limit", x(b"c" + b"a" * 500)
    yield "pickle-unicode8-length", "needs 18446744073709551615 bytes", x(b"\x8d" + b"\xff" * 8)
    yield "pickle-mark-tower", SERVED, x(MARK * 5000 + TUPLE * 5000)
    yield "pickle-memo-sparse", SERVED, x(b"N" + b"".join(b"r" + struct.pack("<I", i * 1000003 % 2**32) for i in range(9999)))
    loop = name_of("torch._utils", "_rebuild_parameter") + b"]q\x05(h\x05e0" + b"h\x05" + REDUCE + b"q\x06" + b"h\x05h\x06a0"
    wrapped = tensor()
    for _ in range(20):
        wrapped = call(name_of("torch._utils", "_rebuild_parameter"), wrapped, FALSE, HOOKS)
    yield "parameter-in-many-wrappings", "not a tensor", torch_zip(pickle_of(w=wrapped))
    yield "parameter-of-itself", "not a tensor", torch_zip(pickle_of(w=loop))

    # tensors
    w = lambda *args, **options: torch_zip(pickle_of(w=tensor(*args, **options)))
    yield "tensor-sparse", "a sparse tensor (_rebuild_sparse_tensor)", w(function="_rebuild_sparse_tensor")
    yield "tensor-quantized", "a quantized tensor", w(function="_rebuild_qtensor")
    yield "tensor-few-arguments", "_rebuild_tensor_v2 with 2 arguments", torch_zip(
        pickle_of(w=call(name_of("torch._utils", "_rebuild_tensor_v2"), storage(), 0)))
    yield "tensor-without-storage", "it has no storage", w(name_of("torch", "FloatStorage"))
    yield "tensor-offset-negative", "its offset is not a number of elements", w(offset=-1)
    yield "tensor-offset-huge", "its offset is not a number of elements", w(offset=2**64)
    yield "tensor-stride-of-text", "its stride is not a list of integers", w(stride=tuple_of("3", "1"))
    yield "tensor-stride-negative", "stride [3, -1]", w(offset=2, stride=(3, -1))
    yield "tensor-stride-missing", "1 strides for 2 dimensions", w(stride=(1,))
    yield "tensor-shape-negative", "shape [-5, -3] has no possible number of elements", w(shape=(-5, -3))
    yield "tensor-rank-65", "65 dimensions (limit 64)", w(shape=(1,) * 65, stride=(1,) * 65)
    yield "tensor-of-stride-0", "has no possible number of bytes", w(shape=(2**61,), stride=(0,))
    yield "tensor-stride-overflow", "reach beyond storage", w(shape=(3, 3), stride=(2**62, 2**62))
    yield "tensor-conjugated", "a conjugated or negated view", w(more=(b"}" + text("conj") + b"\x88s",))
    yield "tensor-of-unknown-dtype", 'dtype "torch"."complex32"', w(
        storage(UNTYPED, numel=60), function="_rebuild_tensor_v3", more=(name_of("torch", "complex32"),))
    yield "tensor-dtype-of-os", 'dtype "os"."float32"', w(
        storage(UNTYPED, numel=60), function="_rebuild_tensor_v3", more=(name_of("os", "float32"),))
    yield "tensor-on-meta", "on the meta device", w(storage(place="meta"))
    yield "storage-quantized", 'storage type "torch"."QInt8Storage"', w(storage(name_of("torch", "QInt8Storage")))
    yield "storage-of-another-module", 'storage type "os"."FloatStorage"', w(storage(name_of("os", "FloatStorage")))
    yield "storage-numel-overflow", 'storage "0" of 4611686018427387904 elements', w(storage(numel=2**62))
    yield "storage-of-two-sizes", "is named with two different sizes", torch_zip(
        pickle_of(x=tensor(storage(numel=16))))
    yield "storage-longer-than-entry", "has 60 bytes, the pickle needs 64", w(storage(numel=16))
    yield "storage-bad-elsewhere", SERVED, x(tensor(storage(key="1", numel=-1)))

    # streams
    yield "stream-truncated", "ends inside a pickle", stream()[:200]
    yield "stream-cut-in-a-string", "bytes (limit", stream(keys=b"\x80\x02](X\xff\xff\xff\x7f0", storages=b"")
    yield "stream-unknown-opcode", "no pickle opcode 0xfe", stream(state=b"\xfe")
    yield "stream-protocol", "not torch's stream protocol 1001", stream(protocol=1002)
    yield "stream-big-endian", "byte order big or unknown", stream(little=FALSE)
    yield "stream-keys-not-a-list", "the list of its storages is not a list", stream(keys=b"\x80\x02N.")
    yield "stream-key-of-nothing", 'lists storage "9", which nothing in it names', stream(keys=("9", "0"))
    yield "stream-key-twice", 'storage "0" twice', stream(keys=("0", "0"), storages=2 * (struct.pack("<q", 15) + DATA))
    yield "stream-key-missing", 'no storage "0" in its list', stream(keys=())
    yield "stream-data-cut", "reaches beyond the file", stream(storages=struct.pack("<q", 15) + DATA[:-1])
    yield "stream-view-outside", "a view that is not inside its 15 elements", stream_view((10, 6))
    yield "stream-view-too-short", "of 14 elements", stream_view((1, 14))
    yield "stream-view-between-elements", "its view at 1 is not one of F32", stream_view(
        (1, 56), where={"kind": UNTYPED, "numel": 60}, count=60, function="_rebuild_tensor_v3",
        more=(name_of("torch", "float32"),))
    yield "stream-view-overflow", "of a view at 1", stream_view((1, 14), offset=2**63 - 1, shape=(0,), stride=(1,))


def bare_pickle(file):
    """The pickle of a case, wherever it stands (the seeds need not be exact)."""
    if file[:2] == b"PK":
        begin = file.find(b"\x80", 30)
        end = file.find(b"PK\7\x08", begin)
        return file[begin:end] if 0 <= begin < end else None
    return file if len(file) < 4096 else None


def main():
    for name in ("zip", "pickle"):
        (HERE / name).mkdir(exist_ok=True)
        for path in (HERE / name).iterdir():
            if name == "pickle" or path.stem not in GIVEN:
                path.unlink()
    table = {name: expect for name, expect in GIVEN.items()}
    for name, expect, content in cases():
        assert name not in table, name
        (HERE / "zip" / f"{name}.pt").write_bytes(content)
        table[name] = expect
    seeds = set()
    for name in table:
        pickle = bare_pickle((HERE / "zip" / f"{name}.pt").read_bytes())
        if pickle and len(pickle) < 2048 and pickle not in seeds:
            seeds.add(pickle)
            (HERE / "pickle" / f"{name}.pkl").write_bytes(pickle)
    lines = [json.dumps({"name": name, "error": table[name]}) for name in sorted(table)]
    (HERE / "cases.json").write_text("[\n" + ",\n".join(lines) + "\n]\n")


main()
