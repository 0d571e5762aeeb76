"""A reader of torch's zip files in the dullest way, for what ckfs writes.

It shares no code with ckfs and none with torch. Python's zipfile cannot be used: it checks the
CRC fields, which are zero in these files. Whatever differs from what torch's own writer does is an
error, so that a file which this reads is laid out as torch would have laid it out.
"""
import collections
import io
import pickle
import struct

# storage class -> (safetensors' name of the dtype, bytes of an element)
STORAGES = {
    "DoubleStorage": ("F64", 8), "FloatStorage": ("F32", 4), "HalfStorage": ("F16", 2),
    "BFloat16Storage": ("BF16", 2), "LongStorage": ("I64", 8), "IntStorage": ("I32", 4),
    "ShortStorage": ("I16", 2), "CharStorage": ("I8", 1), "ByteStorage": ("U8", 1),
    "BoolStorage": ("BOOL", 1), "ComplexFloatStorage": ("C64", 8),
    "UntypedStorage": (None, 1),
}
DTYPES = {
    "uint16": ("U16", 2), "uint32": ("U32", 4), "uint64": ("U64", 8),
    "float8_e4m3fn": ("F8_E4M3", 1), "float8_e5m2": ("F8_E5M2", 1),
    "float8_e4m3fnuz": ("F8_E4M3FNUZ", 1), "float8_e5m2fnuz": ("F8_E5M2FNUZ", 1),
    "float8_e8m0fnu": ("F8_E8M0", 1),
}


class Bad(Exception):
    pass


Member = collections.namedtuple("Member", "name offset size crc")
Tensor = collections.namedtuple("Tensor", "dtype shape data storage")
Storage = collections.namedtuple("Storage", "kind key numel")


def expect(condition, message):
    if not condition:
        raise Bad(message)


def members(data):
    """(root, [Member]) of the archive, in the order of its directory"""
    end = len(data) - 22
    expect(end > 76 and data[end:end + 4] == b"PK\5\6", "no end record in the last 22 bytes")
    _, disk, start_disk, here, count, size, offset, comment = struct.unpack_from("<4s4H2IH", data, end)
    expect((disk, start_disk, comment) == (0, 0, 0) and here == count, "end record")
    locator = end - 20
    signature, _, end64, disks = struct.unpack_from("<4sIQI", data, locator)
    expect(signature == b"PK\6\7" and disks == 1 and end64 == locator - 56, "zip64 locator")
    record = struct.unpack_from("<4sQ2H2I4Q", data, end64)
    expect(record[:2] == (b"PK\6\6", 44), "zip64 end record")
    count64, size64, offset64 = record[7:]
    expect((count, size, offset) == (min(count64, 0xFFFF), min(size64, 0xFFFFFFFF),
                                     min(offset64, 0xFFFFFFFF)), "the two end records differ")
    expect(record[6] == count64 and offset64 + size64 == end64, "directory's place")

    found, at, root = [], offset64, None
    for _ in range(count64):
        (signature, made, needed, flags, method, time, date, crc, packed, unpacked, name_length,
         extra_length, comment, disk, internal, external, local) = struct.unpack_from(
             "<4s6H3I5H2I", data, at)
        expect(signature == b"PK\1\2", f"directory entry at {at}")
        name = data[at + 46:at + 46 + name_length].decode()
        extra = data[at + 46 + name_length:at + 46 + name_length + extra_length]
        at += 46 + name_length + extra_length + comment
        if extra:
            wide = list(struct.unpack_from(f"<{(len(extra) - 4) // 8}Q", extra, 4))
            expect(struct.unpack_from("<HH", extra) == (1, len(extra) - 4), f"{name}: extra field")
            unpacked = wide.pop(0) if unpacked == 0xFFFFFFFF else unpacked
            packed = wide.pop(0) if packed == 0xFFFFFFFF else packed
            local = wide.pop(0) if local == 0xFFFFFFFF else local
            expect(not wide, f"{name}: extra field is too long")
        expect((method, time, date, made, needed, comment, disk, internal, external) == (0,) * 9
               and packed == unpacked, f"{name}: directory entry")
        begin, path = name.split("/", 1)
        expect(root in (None, begin), f"{name}: a second root")
        root = begin
        found.append((path, local, packed, crc, flags))
    expect(at == end64, "directory's length")

    result, position = [], 0
    for name, local, size, crc, flags in found:
        expect(local == position, f"{name}: begins at {local}, not at {position}")
        header = struct.unpack_from("<4s5H3I2H", data, local)
        expect(header[:2] == (b"PK\3\4", 0) and header[3:6] == (0, 0, 0), f"{name}: local header")
        expect(header[2] == flags == (0x0808 if size else 0x0800), f"{name}: flags")
        full = f"{root}/{name}".encode()
        expect(header[9] == len(full) and data[local + 30:local + 30 + len(full)] == full,
               f"{name}: name of the local header")
        begin = local + 30 + len(full) + header[10]
        expect(begin % 64 == 0, f"{name}: data begins at {begin}")
        position = begin + size
        if size:
            signature, again, packed, unpacked = struct.unpack_from("<4s3I", data, position)
            expect((signature, again, packed, unpacked) == (b"PK\7\x08", crc, size, size),
                   f"{name}: data descriptor")
            position += 16
        result.append(Member(name, begin, size, crc))
    expect(position == offset64, "bytes between the members and the directory")
    return root, result


class Unpickler(pickle.Unpickler):
    """Makes what it must of the few globals that a state dict needs; no other is accepted."""

    def find_class(self, module, name):
        if (module, name) == ("collections", "OrderedDict"):
            return collections.OrderedDict
        if module == "torch._utils" and name in ("_rebuild_tensor_v2", "_rebuild_tensor_v3"):
            return lambda *arguments: (name, arguments)
        if module in ("torch", "torch.storage") and name in STORAGES:
            return STORAGES[name]
        if module == "torch" and name in DTYPES:
            return DTYPES[name]
        raise Bad(f"global {module}.{name}")

    def persistent_load(self, identity):
        tag, kind, key, location, numel = identity
        expect(tag == "storage" and location == "cpu", f"storage {key}: {identity}")
        return Storage(kind, key, numel)


def read(path):
    """{name: Tensor}, in the order of the file's dictionary"""
    state, held, content = contents(path.read_bytes(), path.stem)
    tensors = {name: tensor_of(name, made, held, content) for name, made in state.items()}
    expect_all_used(tensors.values(), held)
    return tensors


def read_one(data):
    """The Tensor of a file of one tensor by itself, as it lies in a stream"""
    made, held, content = contents(data, "archive")
    tensor = tensor_of("tensor", made, held, content)
    expect_all_used([tensor], held)
    return tensor


def read_plain(data):
    """What a file without a tensor has, under the name common.pt"""
    return contents(data, "common")[0]


def contents(data, want_root):
    """(what the pickle has, {name: Member}, {name: bytes}) of an archive"""
    root, listed = members(data)
    expect(root == want_root, f"root {root}, not {want_root}")
    held = {member.name: member for member in listed}
    expect(len(held) == len(listed), "two members of a name")
    content = {name: data[m.offset:m.offset + m.size] for name, m in held.items()}
    storages = [name for name in held if name.startswith("data/")]
    expect(list(held) == ["data.pkl", ".format_version", ".storage_alignment", "byteorder",
                          *[f"data/{k}" for k in range(len(storages))], "version",
                          ".data/serialization_id"], f"members {list(held)}")
    expect([content[n] for n in (".format_version", ".storage_alignment", "byteorder", "version")]
           == [b"1", b"64", b"little", b"3\n"], "small members")
    identity = content[".data/serialization_id"]
    expect(len(identity) == 40 and identity.isdigit(), f"serialization id {identity}")
    return Unpickler(io.BytesIO(content["data.pkl"])).load(), held, content


def tensor_of(name, made, held, content):
    function, arguments = made
    storage, offset, shape, stride, _, hooks = arguments[:6]
    dtype, width = storage.kind
    if function.endswith("v3"):
        dtype, width = arguments[6]
    numel, dense = 1, []
    for length in reversed(shape):
        dense.append(numel)
        numel *= max(length, 1)
    size = width
    for length in shape:
        size *= length
    expect(offset == 0 and list(stride) == dense[::-1] and hooks == {}, f"{name}: {arguments}")
    member = held[f"data/{storage.key}"]
    expect(member.size == size and storage.numel * storage.kind[1] == size,
           f"{name}: {size} bytes, its storage has {member.size}")
    return Tensor(dtype, list(shape), content[member.name], storage.key)


def expect_all_used(tensors, held):
    used = {f"data/{tensor.storage}" for tensor in tensors}
    expect(used == {name for name in held if name.startswith("data/")},
           "storages that no tensor uses")
