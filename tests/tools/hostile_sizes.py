"""Small checkpoints that once cost gigabytes or minutes, each at the size at which it did.

    ROWS: {name: (bytes, make)}; make(bytes) -> {path: content} or (files, links)

What they have in common: a short text that is named many times, so that what they ask for grows
with the square of what they have.
"""
import json

from hostile_files import dcp, dcp_index, dcp_place, dcp_tensor, chunk, keep, zero
from hostile_parts import (get, integer, integers, items, mapping, name_of, pickle, safetensors,
                           sequence, size, storage, stream, tensor, text, zipped)


def paddings(n):
    """DeepSpeed: a list of references to one long tuple."""
    before = keep(integers([1] * (n // 4)), 1)
    return zero(optimizer=[(text("param_alignment_paddings"), sequence(*[get(1)] * (n // 4)))], before=before)


def offsets(n):
    """DCP: many keys of storage_data with one long offset."""
    places = b"}(" + (get(2) + b")\x81}(" + get(4) + text("w") + get(3) + get(1) + b"ubN") * (n // 30) + b"u"
    begin = (keep(integers([1] * (n // 4)), 1)
             + keep(name_of("torch.distributed.checkpoint.metadata", "MetadataIndex"), 2)
             + keep(text("offset"), 3) + keep(text("fqn"), 4))
    return dcp(begin + mapping(), places)


def keys_of_one_dictionary(n):
    inner = keep(tensor(), 1) + keep(mapping(*((text(str(i)), get(1)) for i in range(n // 22))), 2)
    return {"m.pt": zipped(inner + mapping(*((text(str(i)), get(2)) for i in range(n // 22))))}


def long_key(n):
    names = mapping(*((text(str(i)), get(1)) for i in range(n // 22)))
    return {"m.pt": zipped(keep(tensor(), 1) + mapping((text("k" * (n // 2)), names)))}


def line(n):
    """torch before 1.6: a line that never ends."""
    raw = stream(mapping((text("w"), tensor())))
    return {"m.pt": raw[:raw.find(b"}")] + b"c" + b"x" * n}


def shapes(n):
    begin = keep(integers([1] * (n // 4)), 1) + keep(storage(), 2)
    one = (name_of("torch._utils", "_rebuild_tensor_v2") + b"(" + get(2) + b"K\0" + get(1) + get(1) + b"\x89}tR")
    return {"m.pt": zipped(begin + mapping(*((text(str(i)), one) for i in range(n // 100))))}


def metadata_of_tensors(n):
    begin = keep(b"}(" + (text("ab") + b"N") * (n // 16) + b"u", 1)
    return {"m.pt": zipped(begin + mapping(*((text(str(i)), tensor(metadata=get(1))) for i in range(n // 260))))}


def mapping_below_keys(n):
    begin = keep(mapping(*((text(str(i)), b"N") for i in range(n // 20))), 1)
    return {"m.pt": zipped(begin + mapping((text("t"), mapping((text("w"), tensor()))),
                                           *((text(str(i)), get(1)) for i in range(n // 22))))}


def shared_bytes(n):
    return {"m.pt": zipped(mapping(*((text(str(i)), tensor(shape=(1,), stride=(i,))) for i in range(n // 130))))}


def directories(n):
    """DCP: one item in a zip of many members, that many chunks name."""
    members = [(f"x{i}", b"") for i in range(n // 300)]
    part = zipped(tensor(), extra=members)
    count = n // 150
    begin = keep(size((0,)), 2) + keep(dcp_tensor(size((16,)), sequence(chunk(size((0,)), size((16,))))), 3)
    begin += keep(dcp_place(length=len(part)), 4)
    names = [text(f"w{i}") for i in range(count)]
    return dcp(begin + mapping(*((name, get(3)) for name in names)),
               mapping(*((dcp_index(name, get(2)), get(4)) for name in names)), part)


def aliases(n):
    count = n // 30
    pairs = [(text(f"a{i}"), text(f"a{i + 1}")) for i in range(count)]
    return zero(model=[(text("shared_params"), mapping(*pairs, (text(f"a{count}"), text("w"))))])


def layers(n):
    """Pipeline layers: many tensors in as many layer files' shapes."""
    named = [(text(f"tied_modules.{i}.y"), size((0,))) for i in range(n // 60)]
    files = zero()
    files["g/mp_rank_00_model_states.pt"] = zipped(mapping(
        (text("param_shapes"), sequence(mapping((text("w0"), size((16,))), *named))), (text("buffer_names"), sequence()),
        (text("mp_world_size"), integer(2))))
    files["g/mp_rank_01_model_states.pt"] = zipped(mapping(
        (text("param_shapes"), sequence(mapping((text("w1"), size((16,)))))), (text("buffer_names"), sequence())))
    files["g/zero_pp_rank_0_mp_rank_01_optim_states.pt"] = files["g/zero_pp_rank_0_mp_rank_00_optim_states.pt"]
    files["g/layer_01-model_states.pt"] = zipped(
        keep(tensor(), 1) + mapping(*((text(str(i)), get(1)) for i in range(n // 40))))
    return files


def config(n):
    good = safetensors({"w": {"dtype": "F32", "shape": [16], "data_offsets": [0, 64]}}, bytes(64))
    return {"model.safetensors": good, "config.json": json.dumps({"a": [10 ** 30] * (n // 33)}).encode()}


def config_of_keys(n):
    good = safetensors({"w": {"dtype": "F32", "shape": [16], "data_offsets": [0, 64]}}, bytes(64))
    return {"model.safetensors": good, "config.json": json.dumps({f"k{i:07}": 1 for i in range(n // 16)}).encode()}


def targets_of_one_name(n):
    """A configuration's targets, each of one module that many quantized tensors are of."""
    found = {f"a.{i}weight": {"dtype": "F8_E4M3", "shape": [0], "data_offsets": [0, 0]} for i in range(n // 200)}
    found["a.scale"] = {"dtype": "F8_E8M0", "shape": [0], "data_offsets": [0, 0]}
    groups = {"g": {"targets": ["a"] * (n // 10), "weights": {"num_bits": 8, "type": "float", "strategy": "tensor"}}}
    quantization = {"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": groups}
    return {"model.safetensors": safetensors(found),
            "config.json": json.dumps({"quantization_config": quantization}).encode()}


def integers_and_lists(n):
    """Lists that grow: what they have is less than what they keep room for."""
    return {"m.pt": zipped(b"](" + b"]N\x61" * (n // 3) + b"e")}


def names_of_one_file(n):
    """200 entries of an index, links to one file."""
    found = {f"t{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(n // 60)}
    links = {f"m{i}.safetensors": "m.safetensors" for i in range(200)}
    index = {"weight_map": {f"w{i}": name for i, name in enumerate(links)}}
    return {"m.safetensors": safetensors(found), "model.safetensors.index.json": json.dumps(index).encode()}, links


ROWS = {
    "param_alignment_paddings": (3_000_000, paddings),
    "storage_data, one offset": (3_000_000, offsets),
    "keys of one dictionary": (1_100_000, keys_of_one_dictionary),
    "one key of 1 MB": (1_100_000, long_key),
    "a line without an end": (8_388_608, line),
    "shape before rank": (2_000_000, shapes),
    "a shared metadata dictionary": (2_000_000, metadata_of_tensors),
    "a mapping below many keys": (2_000_000, mapping_below_keys),
    "tensors that share bytes": (2_000_000, shared_bytes),
    "a zip directory for each chunk": (2_000_000, directories),
    "aliases": (2_000_000, aliases),
    "pipeline layers": (2_000_000, layers),
    "config.json": (16_000_000, config),
    "config.json of many keys": (3_900_000, config_of_keys),
    "targets of one name": (1_100_000, targets_of_one_name),
    "sizes, not capacities": (100_000_000, integers_and_lists),
    "links to one file": (9_000_000, names_of_one_file),
}
