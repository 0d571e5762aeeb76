"""Hostile checkpoints, made from a seed: what a parser meets when a stranger wrote the file.

    make(seed, number) -> Case

A case is a name, the files of a directory (path -> bytes), links (path -> target), and which of it
is opened. Every kind of source that ckfs reads is in it: half of the cases are shapes of sharing and
of size that ask for more than they have, the others are honest checkpoints that were broken at
places where a number, a name or a reference stands.
"""
import dataclasses
import json
import random
import struct

import hostile_more
from hostile_parts import (get, integer, integers, items, mapping, name_of, pickle, put, safetensors,
                           sequence, size, storage, stream, tensor, text, thing, zipped)

METADATA = "torch.distributed.checkpoint.metadata"
DTYPES = ["F32", "BF16", "F16", "U8", "I64", "F8_E4M3", "BOOL", "F64", "F4", "", "f32", "X" * 300]
SIZES = [0, 1, 2, 7, 255, 65535, 1 << 31, (1 << 31) - 1, 1 << 32, 1 << 53, (1 << 63) - 1, -1, -(1 << 63)]
NAMES = ["w", "model.layers.0.w", "", ".", "..", "a/b", "../x", "\x1b[31m", "\u202ex", "x" * 5000, "\u0080",
         "a\nb", "__metadata__", "0", "model", "state_dict", "optimizer"]


@dataclasses.dataclass
class Case:
    name: str
    files: dict
    links: dict = dataclasses.field(default_factory=dict)
    open: str = ""

    def size(self):
        return sum(map(len, self.files.values()))


def keep(code, number):
    return code + put(number) + b"0"


def broken(raw, rng, count=None):
    """Bytes with some of them changed, cut, doubled or filled with a number at its limits."""
    raw = bytearray(raw)
    for _ in range(count or rng.randint(1, 4)):
        if not raw:
            break
        at = rng.randrange(len(raw))
        kind = rng.randrange(6)
        if kind == 0:
            raw[at] = rng.randrange(256)
        elif kind == 1:
            del raw[at:]
        elif kind == 2:
            raw[at:at + 8] = struct.pack("<q", rng.choice(SIZES))[:max(0, min(8, len(raw) - at))]
        elif kind == 3:
            raw[at:at] = raw[at:at + rng.randint(1, 200)]
        elif kind == 4:
            del raw[at:at + rng.randint(1, 40)]
        else:
            raw[at:at + 4] = b"\xff" * min(4, len(raw) - at)
    return bytes(raw)


# ---- safetensors and indexes

def header(rng):
    def entry():
        shape = [rng.choice([1, 2, 4, 16, *SIZES]) for _ in range(rng.choice([0, 1, 2, 3, 70]))]
        return {"dtype": rng.choice(DTYPES), "shape": shape,
                "data_offsets": [rng.choice([0, 4, *SIZES]), rng.choice([4, 8, 64, *SIZES])]}
    found = {rng.choice(NAMES) + str(i): entry() for i in range(rng.randint(0, 6))}
    if rng.random() < 0.2:
        found["__metadata__"] = rng.choice([{}, {"format": "pt"}, 3, {"a": {"b": 1}}, ["x"]])
    raw = json.dumps(found).encode()
    if rng.random() < 0.5:
        raw = broken(raw, rng)
    data = safetensors(raw, bytes(rng.choice([0, 64, 1000])))
    return {"model.safetensors": broken(data, rng, 1) if rng.random() < 0.3 else data}


GOOD = safetensors({"w": {"dtype": "F32", "shape": [16], "data_offsets": [0, 64]}}, bytes(64))


def index(rng):
    shards = ["a.safetensors", "b.safetensors", rng.choice(NAMES), "/etc/passwd", "../a.safetensors"]
    whole = {"metadata": {"total_size": rng.choice(SIZES + ["x", None])},
             "weight_map": {rng.choice(NAMES) + str(i): rng.choice(shards) for i in range(rng.randint(0, 9))}}
    whole["weight_map"]["w"] = "a.safetensors"
    raw = json.dumps(whole).encode()
    return {"a.safetensors": GOOD, "b.safetensors": GOOD,
            "model.safetensors.index.json": broken(raw, rng) if rng.random() < 0.5 else raw}


def series(rng):
    number, count = rng.choice(SIZES), rng.choice(SIZES)
    return {f"model-{number:05}-of-{count:05}.safetensors": GOOD,
            f"model-00001-of-{rng.choice(SIZES):05}.safetensors": GOOD}


def header_of_many(rng):
    count = rng.randint(2000, 20000)
    kind = rng.randrange(3)
    if kind == 0:
        found = {f"{'n' * rng.choice([1, 200])}{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
                 for i in range(count // 4)}
    elif kind == 1:
        found = {"w": {"dtype": "F32", "shape": [1] * count, "data_offsets": [0, 4]}}
    else:
        found = {"__metadata__": {str(i): "x" for i in range(count)}}
    return {"model.safetensors": safetensors(found, bytes(4))}


# ---- config.json

def config(rng):
    count = rng.randint(1000, 40000)
    quant = {"quant_method": rng.choice(NAMES + ["fp8", "gptq", "awq", "compressed-tensors", "bitsandbytes"]),
             "weight_block_size": rng.choice([[128, 128], [0, 0], [-1, 1 << 62], "x", [1] * 50]),
             "ignore": [rng.choice(NAMES) for _ in range(5)]}
    kind = rng.randrange(9)
    if kind == 0:
        whole = {"quantization_config": quant}
    elif kind == 1:
        whole = {"a": [0] * count}
    elif kind == 2:
        whole = {"quantization_config": {**quant, "ignore": [f"re:({'a|' * rng.randint(1, 60)}b)*c{i}"
                                                              for i in range(count // 40)]}}
    elif kind == 3:
        whole = {"quantization_config": {**quant, "config_groups": {
            str(i): {"targets": ["re:.*" * rng.randint(1, 30)], "weights": {"num_bits": rng.choice(SIZES)}}
            for i in range(count // 100)}}}
    elif kind == 4:
        whole = {"quantization_config": {"k" * count: {str(i): "v" for i in range(2000)}}}
    elif kind == 5:
        return {"model.safetensors": GOOD, "config.json": b'{"a":' * rng.randint(1, 200) + b"1" + b"}" * 5}
    elif kind == 6:
        whole = {str(i): {"torch_dtype": "half"} for i in range(count // 4)}
    elif kind == 7:
        whole = {"auto_map": {"A": rng.choice(NAMES) + ".B"}, "architectures": [rng.choice(NAMES)],
                 "num_hidden_layers": rng.choice(SIZES), "model_type": rng.choice(NAMES)}
    else:
        return {"model.safetensors": GOOD,
                "config.json": broken(json.dumps({"quantization_config": quant}).encode(), rng)}
    return {"model.safetensors": GOOD, "config.json": json.dumps(whole).encode()}


# ---- torch

def shared(rng, keys):
    """Containers that are in each other and in themselves, under keys that matter to readers."""
    count = 30
    kinds = [2] * 4 + [rng.randrange(4) for _ in range(count - 4)]
    empty = [b"]", name_of(METADATA, "X") + b")\x81", b"}", name_of("collections", "OrderedDict") + b")R"]
    code = b"".join(keep(empty[kind], 100 + i) for i, kind in enumerate(kinds))

    def value():
        kind = rng.randrange(9)
        if kind == 0:
            return integer(rng.choice(SIZES))
        if kind == 1:
            return tensor()
        if kind == 2:
            return integers([1] * rng.randrange(80))
        if kind == 3:
            return text("x" * rng.choice([1, 50, 3000]))
        return get(100 + rng.randrange(count))

    def key():
        return text(rng.choice(keys) if rng.random() < 0.6 else str(rng.randrange(1000)))

    length = rng.choice([1000, 20000, 100000])
    parts = []
    while length > 0:
        target = rng.randrange(count)
        if kinds[target] == 0:
            part = get(100 + target) + b"(" + b"".join(value() for _ in range(rng.randint(1, 60))) + b"e0"
        else:
            part = (get(100 + target) + b"("
                    + b"".join(key() + value() for _ in range(rng.randint(1, 60))) + b"u0")
            if kinds[target] == 1 and rng.random() < 0.3:
                part += get(100 + target) + get(100 + rng.randrange(count)) + b"b0"
        parts.append(part)
        length -= len(part)
    return code + b"".join(parts) + get(100)


TORCH_KEYS = ["state_dict", "model", "module", "optimizer", "epoch", "w"]


def torch_shared(rng):
    return {"m.pt": zipped(shared(rng, TORCH_KEYS))}


def torch_wide(rng):
    """Many references to one long thing, whichever."""
    length, count = rng.randint(2000, 60000), rng.randint(500, 8000)
    long = rng.choice([integers([1] * length), text("k" * length), mapping((text("xy"), b"N")) * 1,
                       b"}(" + (text("xy") + b"N") * (length // 8) + b"u", sequence(*[b"N"] * length)])
    where = rng.randrange(7)
    rebuild = keep(name_of("torch._utils", "_rebuild_tensor_v2"), 2) + keep(storage(), 3) + keep(long, 1)
    shape = integers([1])
    call = lambda a=shape, b=shape, metadata=b"", offset=b"K\0": (
        get(2) + b"(" + get(3) + offset + a + b + b"\x89}" + metadata + b"tR")
    one = {0: call(get(1)), 1: call(shape, get(1)), 2: call(metadata=get(1)), 3: get(1), 4: call(offset=get(1)),
           5: b"(" + text("storage") + name_of("torch", "FloatStorage") + get(1) + text("cpu") + b"K\1tQ",
           6: call()}[where]
    keyed = where == 6
    code = rebuild + b"}(" + b"".join((get(1) if keyed and i else text(str(i))) + one for i in range(count))
    return {"m.pt": zipped(code + text("w") + tensor() + b"u")}


def torch_nested(rng):
    inner = keep(tensor(), 1) + keep(mapping(*((text(str(i)), get(1)) for i in range(rng.randint(10, 3000)))), 2)
    outer = mapping(*((text("a" * rng.choice([1, 900]) + str(i)), get(2)) for i in range(rng.randint(10, 2000))))
    return {"m.pt": zipped(inner + outer)}


def torch_pickle(rng):
    unit = rng.choice([b"]", b"(", b"N", b"N\x94", b"(t", b"]Na", b"}NNs", b"(N0", b"J\xff\xff\xff\xff", b"K\1K\1\x86",
                       b"ca\nb\n", b"\x8c\x01a", b"(l", b"(d", b"2", b"(]"])
    return {"m.pt": zipped(b"N" + unit * (rng.randint(1000, 600000) // len(unit)))}


def torch_line(rng):
    begin = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19." + pickle(integer(1001))
    begin += pickle(mapping((text("little_endian"), b"\x88")))
    return {"m.pt": begin + b"\x80\x02" + rng.choice([b"cab", b"g", b"p", b"i", b"cab\n"])
            + b"x" * rng.randint(1000, 2000000)}


def torch_memo(rng):
    """Numbers of the memo that one bucket of a table of hashes would hold."""
    step = rng.choice([218971, 1 << 16, 107897, 1 << 20])
    numbers = [i * step % (1 << 32) for i in range(rng.randint(1000, 30000))]
    code = b"N" + b"".join(b"r" + struct.pack("<I", n) for n in numbers)
    code += b"".join(b"j" + struct.pack("<I", rng.choice(numbers)) + b"0" for _ in numbers)
    return {"m.pt": zipped(b"0".join([code, b""]) + mapping((text("w"), tensor())))}


def torch_numbers(rng):
    numbers = lambda: [rng.choice([1, 2, 16, *SIZES]) for _ in range(rng.choice([0, 1, 2, 65]))]
    made = tensor(numbers(), numbers(), key=rng.choice(["0", "1", "x" * 70000, ""]), numel=rng.choice([16, *SIZES]),
                  offset=rng.choice([0, 1, *SIZES]), kind=rng.choice(["Float", "Long", "Byte", "Untyped", "Q"]))
    return {"m.pt": zipped(mapping((text(rng.choice(NAMES)), made), (text("v"), tensor())))}


def torch_broken(rng):
    raw = rng.choice([zipped, stream])(mapping((text("w"), tensor()), (text("v"), tensor((4, 4)))))
    return {"m.pt": broken(raw, rng)}


def torch_zip(rng):
    """A directory that says more than there is: members doubled, cut, compressed, of other sizes."""
    extra = [(rng.choice(["data/0", "x", "y" * 60000, "constants.pkl", "data.pkl/x"]), b"z" * rng.choice([0, 9]))]
    raw = bytearray(zipped(mapping((text("w"), tensor())), extra=extra))
    at = raw.find(b"PK\1\2")
    for _ in range(rng.randint(1, 3)):
        place = at + rng.randrange(len(raw) - at)
        raw[place] = rng.choice([0, 1, 0xff, rng.randrange(256)])
    return {"m.pt": bytes(raw)}


# ---- DCP

def chunk(offsets, sizes):
    return thing(METADATA, "ChunkStorageMetadata", mapping((text("offsets"), offsets), (text("sizes"), sizes)))


def dcp_tensor(shape, chunks):
    properties = thing(METADATA, "TensorProperties", items(name_of("torch", "float32"), b"N"))
    return thing(METADATA, "TensorStorageMetadata",
                 mapping((text("properties"), properties), (text("size"), shape), (text("chunks"), chunks)))


def dcp(state, places, part=None):
    whole = thing(METADATA, "Metadata", mapping((text("state_dict_metadata"), state), (text("storage_data"), places)))
    return {".metadata": pickle(whole), "a.distcp": part or zipped(tensor())}


def dcp_index(name, offset):
    return thing(METADATA, "MetadataIndex", mapping((text("fqn"), name), (text("offset"), offset)))


def dcp_place(path=b"", offset=0, length=700):
    return thing(METADATA, "_StorageInfo", mapping((text("relative_path"), path or text("a.distcp")),
                                                   (text("offset"), integer(offset)),
                                                   (text("length"), integer(length))))


def dcp_wide(rng):
    length, count = rng.randint(2000, 60000), rng.randint(200, 3000)
    long = rng.choice([integers([1] * length), text("k" * length), text("w")])
    part = zipped(keep(sequence(*[b"N"] * rng.choice([1, length])), 1) + tensor())
    begin = keep(long, 1) + keep(size((0,)), 2) + keep(dcp_tensor(size((16,)), sequence(chunk(size((0,)), size((16,))))), 3)
    begin += keep(dcp_place(length=len(part)), 4)
    kind = rng.randrange(5)
    names = [text(str(i)) for i in range(count)]
    state = begin + mapping(*((name, get(3)) for name in names))
    if kind == 0:
        places = mapping(*((dcp_index(text("w"), get(1)), b"N") for _ in names))
    elif kind == 1:
        places = mapping(*((dcp_index(get(1), get(2)), get(4)) for _ in names))
    elif kind == 2:
        places = mapping(*((dcp_index(name, get(2)), get(4)) for name in names))
    elif kind == 3:
        places = mapping(*((dcp_index(name, get(2)), dcp_place(get(1), i, len(part) - i))
                           for i, name in enumerate(names)))
    else:
        places = mapping(*((dcp_index(name, get(2)), dcp_place(b"", i, len(part) - i))
                           for i, name in enumerate(names)))
    return dcp(state, places, part)


def dcp_numbers(rng):
    numbers = lambda: size([rng.choice([0, 1, 16, *SIZES]) for _ in range(rng.choice([0, 1, 2, 65]))])
    chunks = sequence(*(chunk(numbers(), numbers()) for _ in range(rng.randint(0, 4))))
    return dcp(mapping((text(rng.choice(NAMES)), dcp_tensor(rng.choice([numbers(), size((16,))]), chunks))),
               mapping((dcp_index(text("w"), size((0,))),
                        dcp_place(text(rng.choice(NAMES)), rng.choice([0, *SIZES]), rng.choice([700, *SIZES])))))


def dcp_shared(rng):
    keys = ["state_dict_metadata", "storage_data", "chunks", "fqn", "offset", "offsets", "sizes", "size",
            "relative_path", "length", "properties", "dtype"]
    return {".metadata": pickle(shared(rng, keys)), "a.distcp": zipped(tensor())}


def dcp_broken(rng):
    part = zipped(tensor())
    files = dcp(mapping((text("w"), dcp_tensor(size((16,)), sequence(chunk(size((0,)), size((16,))))))),
                mapping((dcp_index(text("w"), size((0,))), dcp_place(length=len(part)))), part)
    which = rng.choice(list(files))
    files[which] = broken(files[which], rng)
    return files


# ---- DeepSpeed

def zero(optimizer=(), model=(), before=b""):
    state = mapping((text("zero_stage"), integer(1)), (text("partition_count"), integer(1)),
                    (text("single_partition_of_fp32_groups"), sequence(tensor())), *optimizer)
    shapes = sequence(mapping((text("w"), size((16,)))))
    return {"latest": b"g",
            "g/zero_pp_rank_0_mp_rank_00_optim_states.pt":
                zipped(before + mapping((text("optimizer_state_dict"), state))),
            "g/mp_rank_00_model_states.pt":
                zipped(before + mapping((text("param_shapes"), shapes), (text("buffer_names"), sequence()), *model))}


def zero_wide(rng):
    length, count = rng.randint(2000, 60000), rng.randint(500, 8000)
    before = keep(rng.choice([integers([1] * length), text("k" * length), sequence(*[b"N"] * length)]), 1)
    many = sequence(*[get(1)] * count)
    named = mapping(*((text(str(i)), get(1)) for i in range(count)))
    same = mapping(*((get(1), text("w")) for _ in range(count)))
    kind = rng.randrange(8)
    if kind == 0:
        return zero(optimizer=[(text("param_alignment_paddings"), many)], before=before)
    if kind == 1:
        return zero(optimizer=[(text("fp32_flat_groups"), many)], before=before)
    key = {2: "frozen_param_shapes", 3: "buffer_names", 4: "shared_params", 5: "module", 6: "num_experts",
           7: "frozen_param_fragments"}[kind]
    return zero(model=[(text(key), rng.choice([many, named, same]))], before=before)


def zero_aliases(rng):
    count = rng.randint(200, 6000)
    pairs = [(text(f"a{i}"), text("w")) for i in range(count)]
    pairs += [(text(f"a{i}"), text(f"a{rng.randrange(count)}")) for i in range(count)]
    if rng.random() < 0.5:
        rng.shuffle(pairs)
    return zero(model=[(text("shared_params"), mapping(*pairs))])


def zero_layers(rng):
    count = rng.randint(100, 3000)
    shapes = [(text("w0"), size((16,)))] + [(text(f"tied_modules.{i}.y"), size((0,))) for i in range(count)]
    files = zero()
    files["g/mp_rank_00_model_states.pt"] = zipped(mapping(
        (text("param_shapes"), sequence(mapping(*shapes))), (text("buffer_names"), sequence()),
        (text("mp_world_size"), integer(2))))
    files["g/mp_rank_01_model_states.pt"] = zipped(mapping(
        (text("param_shapes"), sequence(mapping((text("w1"), size((16,)))))), (text("buffer_names"), sequence())))
    files["g/zero_pp_rank_0_mp_rank_01_optim_states.pt"] = files["g/zero_pp_rank_0_mp_rank_00_optim_states.pt"]
    files["g/layer_01-model_states.pt"] = zipped(
        keep(tensor(), 1) + mapping(*((text(str(i)), get(1)) for i in range(rng.randint(100, 9000)))))
    return files


def zero_numbers(rng):
    number = lambda: rng.choice([integer(rng.choice(SIZES)), text("x"), b"N", sequence(integer(rng.choice(SIZES)))])
    return zero(optimizer=[(text("partition_count"), number()), (text("zero_stage"), number()),
                           (text("param_alignment_paddings"), sequence(sequence(number())))],
                model=[(text("mp_world_size"), number()), (text("dp_world_size"), number())])


def zero_shared(rng):
    keys = ["param_shapes", "buffer_names", "shared_params", "frozen_param_shapes", "frozen_param_fragments", "module",
            "optimizer_state_dict", "param_alignment_paddings", "partition_count", "fp32_flat_groups",
            "single_partition_of_fp32_groups"]
    files = zero()
    files[rng.choice(sorted(files)[:-1])] = zipped(shared(rng, keys))
    return files


# ---- directories

def links(rng):
    kind = rng.randrange(4)
    if kind == 0:  # one file of many names
        found = {f"t{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(rng.randint(10, 9000))}
        names = {f"m{i}.safetensors": "m.safetensors" for i in range(rng.randint(2, 150))}
        weights = {f"w{i}": name for i, name in enumerate(names)}
        return {"m.safetensors": safetensors(found),
                "model.safetensors.index.json": json.dumps({"weight_map": weights}).encode()}, names
    if kind == 1:
        return {"model.safetensors": GOOD}, {"d": "/etc", "config.json": rng.choice(["/etc/passwd", "x", "/dev/zero", "."])}
    if kind == 2:
        return {}, {"model.safetensors": rng.choice(["model.safetensors", "/dev/zero", "/dev/null", "/etc/passwd", "."])}
    return {"a/model.safetensors": GOOD}, {"a/a": ".", "b": "a", "model.safetensors": "b/a/a/a/model.safetensors"}


def hub(rng):
    revision = rng.choice(["abc", "x", "../..", "\x1b[31mabc", "a" * 5000, "", "abc\nx", "\0", "/etc", "."])
    top = "models--o--n/"
    files = {top + "refs/main": revision.encode(), top + "blobs/1": GOOD}
    found = {top + "snapshots/abc/model.safetensors": "../../blobs/1"}
    if rng.random() < 0.5:
        found[top + "snapshots/x"] = rng.choice(["/etc", "abc", "/", "../../.."])
    if rng.random() < 0.3:
        found = {top + "snapshots": "/etc"}
    return files, found


KINDS = [header, index, series, header_of_many, config, config, torch_shared, torch_wide, torch_wide, torch_nested,
         torch_pickle, torch_line, torch_memo, torch_numbers, torch_broken, torch_zip, dcp_wide, dcp_numbers, dcp_shared,
         dcp_broken, zero_wide, zero_aliases, zero_layers, zero_numbers, zero_shared, links, hub]


FIRST_OF_MORE = 1080  # the numbers before are as they ever were


def write(case, directory):
    """Makes the files; what is to be opened."""
    for path, content in case.files.items():
        where = directory / path
        where.parent.mkdir(parents=True, exist_ok=True)
        if len(where.name) <= 255:
            where.write_bytes(content)
    for path, target in case.links.items():
        where = directory / path
        where.parent.mkdir(parents=True, exist_ok=True)
        where.symlink_to(target)
    return directory / case.open if case.open else directory


def make(seed, number):
    kinds = KINDS if number < FIRST_OF_MORE else hostile_more.KINDS
    kind = kinds[number % len(kinds)]
    result = kind(random.Random(f"{seed} {number}"))
    files, found = result if isinstance(result, tuple) else (result, {})
    opened = "m.pt" if list(files) == ["m.pt"] else "models--o--n" if kind is hub else ""
    return Case(f"{kind.__name__}-{number}", files, found, opened)
