"""Pieces of hostile checkpoints: pickles assembled instruction by instruction, zips, safetensors.

A pickle is bytes: each function gives the instructions that leave one object on the stack.
"""
import io
import json
import struct
import warnings
import zipfile


def text(value):
    raw = value.encode() if isinstance(value, str) else value
    return b"X" + struct.pack("<I", len(raw)) + raw


def integer(value):
    if 0 <= value < 256:
        return b"K" + bytes([value])
    if -(1 << 31) <= value < 1 << 31:
        return b"J" + struct.pack("<i", value)
    return b"\x8a\x08" + struct.pack("<q", value)


def put(number):
    return b"r" + struct.pack("<I", number)


def get(number):
    return b"h" + bytes([number]) if number < 256 else b"j" + struct.pack("<I", number)


def name_of(module, name):
    return f"c{module}\n{name}\n".encode()


def items(*parts):
    return b"(" + b"".join(parts) + b"t"


def sequence(*parts):
    return b"](" + b"".join(parts) + b"e"


def mapping(*pairs):
    return b"}(" + b"".join(key + value for key, value in pairs) + b"u"


def integers(values):
    return items(*map(integer, values))


def thing(module, name, state):
    """An object of a class with a state: what dataclasses are."""
    return name_of(module, name) + b")\x81" + state + b"b"


def storage(key="0", numel=16, kind="Float"):
    key = key if isinstance(key, bytes) else text(key)
    return (b"(" + text("storage") + name_of("torch", kind + "Storage") + key + text("cpu")
            + integer(numel) + b"tQ")


def tensor(shape=(16,), stride=None, key="0", numel=16, offset=0, hooks=b"}", metadata=b"",
           function="_rebuild_tensor_v2", kind="Float"):
    """`shape` and `stride`: numbers, or instructions."""
    if stride is None:
        stride, step = [], 1
        for length in reversed(shape if not isinstance(shape, bytes) else ()):
            stride.insert(0, step)
            step *= length
    as_code = lambda value: value if isinstance(value, bytes) else integers(value)
    return (name_of("torch._utils", function) + b"(" + storage(key, numel, kind) + integer(offset)
            + as_code(shape) + as_code(stride) + b"\x89" + hooks + metadata + b"tR")


def size(shape):
    return name_of("torch", "Size") + (shape if isinstance(shape, bytes) else integers(shape)) + b"\x85R"


def pickle(code):
    return b"\x80\x02" + code + b"."


def zipped(code, storages=None, extra=()):
    """A file of torch.save with this object."""
    out = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(out, "w") as archive:
        warnings.simplefilter("ignore")  # members of one name are wanted
        members = [("data.pkl", pickle(code)), ("byteorder", b"little"), ("version", b"3\n"), *extra]
        members += [(f"data/{key}", value) for key, value in (storages or {"0": bytes(64)}).items()]
        for name, content in members:
            archive.writestr(zipfile.ZipInfo("a/" + name), content)
    return out.getvalue()


def stream(code, keys=("0",), storages=(bytes(64),), preamble=None):
    """The same as torch before 1.6 wrote it."""
    out = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19." + pickle(integer(1001))
    out += pickle(mapping((text("protocol_version"), integer(1001)), (text("little_endian"), b"\x88")))
    out += pickle(code) + pickle(sequence(*map(text, keys)))
    for content in storages:
        out += struct.pack("<q", len(content) // 4) + content
    return out


def safetensors(header, data=b""):
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + data
