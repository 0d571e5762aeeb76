"""Writes torch's zip files without torch: sparse ones of any size, with real pickles and directories.

    pickler = Pickler()
    pickler.tensor(numel) or pickler.tensor(numel, shape)     a tensor with a storage of its own
    write(path, pickler, value, fill)

The layout is that of torch 2.13: members aligned to 64 bytes, descriptors, zip64 where a size or a
position needs it. Checksums of storages are zero, as torch writes them with compute_crc32 = False.
Needs nothing but Python's standard library.
"""
import io
import pickle
import struct
import sys
import types
import zlib

NEEDS_ZIP64 = 0xFFFFFFFF


def global_of(module, name, bases=(), **attributes):
    """A class that pickles as `module.name`, whether or not there is such a module."""
    parts = module.split(".")
    for end in range(1, len(parts) + 1):  # pickle imports what it names, parents first
        sys.modules.setdefault(".".join(parts[:end]), types.ModuleType(".".join(parts[:end])))
    made = type(name, bases, {"__module__": module, **attributes})
    setattr(sys.modules[module], name, made)
    return made


RebuildTensor = global_of("torch._utils", "_rebuild_tensor_v2")
RebuildFromType = global_of("torch._tensor", "_rebuild_from_type_v2")
TorchTensor = global_of("torch", "Tensor")
ZeroStage = global_of("deepspeed.runtime.zero.config", "ZeroStageEnum")
STORAGES = {name: global_of("torch", f"{name}Storage") for name in ("Float", "BFloat16", "Long")}
WIDTH = {"Float": 4, "BFloat16": 2, "Long": 8}


class Size(global_of("torch", "Size")):
    """torch.Size"""

    def __init__(self, shape):
        self.shape = tuple(shape)

    def __reduce__(self):
        return sys.modules["torch"].Size, (self.shape,)


class Stage:
    def __init__(self, number):
        self.number = number

    def __reduce__(self):
        return ZeroStage, (self.number,)


class Storage:
    def __init__(self, kind, key, numel):
        self.kind, self.key, self.numel = kind, key, numel


class Tensor:
    def __init__(self, storage, shape, attributes):
        self.storage, self.shape, self.attributes = storage, tuple(shape), attributes

    def __reduce__(self):
        from collections import OrderedDict
        stride, step = [], 1
        for length in reversed(self.shape):
            stride.insert(0, step)
            step *= length
        arguments = (self.storage, 0, self.shape, tuple(stride), False, OrderedDict())
        if self.attributes is None:
            return RebuildTensor, arguments
        return RebuildFromType, (RebuildTensor, TorchTensor, arguments, self.attributes)


class Pickler:
    def __init__(self):
        self.storages = []  # (name, bytes)

    def tensor(self, shape, kind="Float", name=None, attributes=None):
        numel = 1
        for length in shape:
            numel *= length
        self.storages.append((name, numel * WIDTH[kind]))
        return Tensor(Storage(kind, str(len(self.storages) - 1), numel), shape, attributes)

    def dump(self, value):
        out = io.BytesIO()

        class WithStorages(pickle.Pickler):
            def persistent_id(self, thing):
                if isinstance(thing, Storage):
                    return "storage", STORAGES[thing.kind], thing.key, "cpu", thing.numel
                return None

        WithStorages(out, protocol=2).dump(value)
        return out.getvalue()


def write(path, pickler, value, fill=None):
    """`fill(file, name, size)` writes the bytes of the storages that have a name; the others are
    holes."""
    root = path.stem
    members = [("data.pkl", pickler.dump(value)), (".format_version", b"1"),
               (".storage_alignment", b"64"), ("byteorder", b"little")]
    members += [(f"data/{k}", entry) for k, entry in enumerate(pickler.storages)]
    members += [("version", b"3\n"), (".data/serialization_id", b"0" * 40)]
    directory = []
    with open(path, "wb") as f:
        for name, content in members:
            position = f.tell()
            path_in_zip = f"{root}/{name}".encode()
            is_storage = isinstance(content, tuple)
            size = content[1] if is_storage else len(content)
            crc = 0 if is_storage else zlib.crc32(content)
            wide = size >= NEEDS_ZIP64 or position >= NEEDS_ZIP64
            extra = b""
            if wide:
                fields = [0, 0] if size >= NEEDS_ZIP64 else []
                fields += [position] if position >= NEEDS_ZIP64 else []
                extra = struct.pack(f"<HH{len(fields)}Q", 1, 8 * len(fields), *fields)
            begin = position + 30 + len(path_in_zip) + len(extra) + 4
            padding = -begin % 64
            extra += b"FB" + struct.pack("<H", padding) + b"Z" * padding
            flags = 0x0808 if size else 0x0800
            f.write(struct.pack("<4s5H3I2H", b"PK\3\4", 0, flags, 0, 0, 0, 0, 0, 0,
                                len(path_in_zip), len(extra)) + path_in_zip + extra)
            if not is_storage:
                f.write(content)
            elif content[0] is not None and fill is not None:
                fill(f, content[0], size)
            else:
                f.seek(size, io.SEEK_CUR)
            if size:
                f.write(struct.pack("<4sI2Q" if wide else "<4s3I", b"PK\7\x08", crc, size, size))
            directory.append((path_in_zip, flags, crc, size, position))
        start = f.tell()
        for name, flags, crc, size, position in directory:
            fields = [size, size] if size >= NEEDS_ZIP64 else []
            fields += [position] if position >= NEEDS_ZIP64 else []
            extra = struct.pack(f"<HH{len(fields)}Q", 1, 8 * len(fields), *fields) if fields else b""
            size = min(size, NEEDS_ZIP64)
            f.write(struct.pack("<4s6H3I5H2I", b"PK\1\2", 0, 0, flags, 0, 0, 0, crc, size, size,
                                len(name), len(extra), 0, 0, 0, 0, min(position, NEEDS_ZIP64))
                    + name + extra)
        end, count = f.tell(), len(directory)
        f.write(struct.pack("<4sQ2H2I4Q", b"PK\6\6", 44, 0x031E, 45, 0, 0, count, count,
                            end - start, start))
        f.write(struct.pack("<4sIQI", b"PK\6\7", 0, end, 1))
        f.write(struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, min(count, 0xFFFF), min(count, 0xFFFF),
                            min(end - start, NEEDS_ZIP64), min(start, NEEDS_ZIP64), 0))
