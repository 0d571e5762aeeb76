"""More kinds of hostile checkpoints (hostile_files.py): what a second attack tried.

Each kind is a function of a random generator, as there.
"""
import json
import struct

from hostile_parts import (get, integer, integers, items, mapping, name_of, pickle, put, safetensors,
                           sequence, size, storage, stream, tensor, text, thing, zipped)

METADATA = "torch.distributed.checkpoint.metadata"
MANY = [300, 3000, 10000]


def keep(code, number):
    return code + put(number) + b"0"


def floats(rows, columns, dtype="BF16", width=2):
    return dtype, [rows, columns], rows * columns * width


def model(tensors, config, **more):
    """{name: (dtype, shape, bytes)} as one file, with a config.json."""
    found, offset = {}, 0
    for name, (dtype, shape, length) in tensors.items():
        found[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + length]}
        offset += length
    raw = config if isinstance(config, bytes) else json.dumps(config).encode()
    files = {"model.safetensors": safetensors(found, bytes(offset)), "config.json": raw}
    files.update({name: value if isinstance(value, bytes) else json.dumps(value).encode()
                  for name, value in more.items()})
    return files


def gptq_tensors(count, rows=32, columns=8, group=16):
    tensors = {}
    for i in range(count):
        name = f"model.layers.{i}.mlp.down_proj"
        tensors[name + ".qweight"] = ("I32", [rows // 8, columns], rows // 8 * columns * 4)
        tensors[name + ".qzeros"] = ("I32", [rows // group, columns // 8], rows // group * columns // 8 * 4)
        tensors[name + ".scales"] = ("F16", [rows // group, columns], rows // group * columns * 2)
        tensors[name + ".g_idx"] = ("I32", [rows], rows * 4)
    return tensors


BAD = [0, -1, 1, 3, 1 << 31, -(1 << 63), (1 << 63) - 1, 1 << 64, 1e308, -0.0, None, "x", [], {}, True, [[]], "4" * 5000]


# ---- quantization configs

def gptq(rng):
    config = {"quant_method": "gptq", "bits": rng.choice([4, 8, 2, 3, *BAD]),
              "group_size": rng.choice([16, -1, *BAD]), "desc_act": rng.choice([True, False, *BAD]),
              "sym": rng.choice([True, *BAD]), "checkpoint_format": rng.choice(["gptq", "gptq_v2", *BAD]),
              "dynamic": rng.choice([{}, {"-:" + ".*" * 40 + "x": {}}, {f"+:{i}(a|b)*c": {"bits": 4}
                                                                    for i in range(rng.choice(MANY))}, *BAD])}
    return model(gptq_tensors(rng.choice([1, 20, 200])), {"quantization_config": config})


def gptq_shapes(rng):
    tensors = gptq_tensors(4)
    for name in list(tensors):
        if rng.random() < 0.4:
            dtype, shape, length = tensors[name]
            shape = rng.choice([[], [0], [0, 0], [1 << 40, 0], shape[::-1], shape + [1], [1] * 60, [length]])
            numel = 1
            for extent in shape:
                numel *= extent
            dtype = rng.choice([dtype, "U8", "F32", "I64"])
            width = {"I32": 4, "F16": 2, "U8": 1, "F32": 4, "I64": 8}[dtype]
            tensors[name] = (dtype, shape, numel * width)
    return model(tensors, {"quantization_config": {"quant_method": rng.choice(["gptq", "awq"]), "bits": 4,
                                                   "group_size": 16, "version": rng.choice(["gemm", "gemv", "x"])}})


def awq(rng):
    config = {"quant_method": "awq", "bits": 4, "group_size": 16, "version": rng.choice(["gemm", *BAD]),
              "zero_point": rng.choice([True, *BAD]),
              "modules_to_not_convert": rng.choice([None, ["a" * 100000], [f"m{i}" for i in range(30000)], *BAD])}
    return model(gptq_tensors(100), {"quantization_config": config})


def compressed(rng):
    """Groups of compressed-tensors: many, of many targets, of patterns that repeat themselves."""
    pattern = rng.choice(["re:" + "(.*)*" * 30, "re:(a*)*b", "re:" + "(" * 300 + ")" * 300, "re:[", "re:.*\\1",
                          "re:" + ".{1,1000}" * 20, "re:(?=.*)(?!x)", "Linear", "re:model.*proj", "re:" + "a?" * 60 + "a" * 60,
                          "re:^(([a-z])+.)+[A-Z]([a-z])+$", "re:(.|.)*(.|.)*(.|.)*x"])
    targets, groups = rng.choice([(1, 500), (50, 100), (1000, 1), (1000, 10), (1, 1)])
    group = {"targets": [pattern] * targets,
             "weights": {"num_bits": rng.choice([4, 8, *BAD]), "type": rng.choice(["int", "float", *BAD]),
                         "strategy": rng.choice(["group", "channel", "tensor", "block", *BAD]),
                         "group_size": rng.choice([16, *BAD]), "symmetric": rng.choice([True, *BAD]),
                         "block_structure": rng.choice([[128, 128], *BAD])}}
    config = {"quant_method": "compressed-tensors",
              "format": rng.choice(["pack-quantized", "float-quantized", "int-quantized", "nvfp4-pack-quantized", *BAD]),
              "config_groups": {f"group_{i}": group for i in range(groups)},
              "ignore": [pattern] * rng.choice([0, 10, 2000])}
    tensors = {}
    for i in range(rng.choice([1, 300])):
        name = f"model.layers.{i}.self_attn.q_proj"
        tensors[name + ".weight_packed"] = ("I32", [8, 4], 128)
        tensors[name + ".weight_scale"] = ("BF16", [8, 2], 32)
        tensors[name + ".weight_shape"] = ("I64", [2], 16)
    return model(tensors, {"quantization_config": config})


def compressed_shapes(rng):
    """weight_shape is data: what stands there is a size."""
    files = model({"a.weight_packed": ("I32", [8, 4], 128), "a.weight_scale": ("BF16", [8, 2], 32),
                   "a.weight_shape": ("I64", [2], 16)},
                  {"quantization_config": {"quant_method": "compressed-tensors", "format": "pack-quantized",
                                           "config_groups": {"g": {"targets": ["Linear"], "weights": {
                                               "num_bits": 4, "type": "int", "strategy": "group", "group_size": 16,
                                               "symmetric": True}}}}})
    raw = files["model.safetensors"]
    shape = struct.pack("<qq", rng.choice([8, 0, -1, 1 << 62, (1 << 63) - 1]), rng.choice([32, 31, 0, -32, 1 << 61]))
    files["model.safetensors"] = raw[:-16] + shape
    return files


def fp8(rng):
    rows, columns = rng.choice([(1, 1), (128, 128), (130, 7), (0, 128)])
    scales = rng.choice([[1, 1], [2, 1], [0, 0], [], [1 << 20, 0], [rows, columns]])
    numel = 1
    for extent in scales:
        numel *= extent
    return model({"a.weight": ("F8_E4M3", [rows, columns], rows * columns),
                  "a.weight_scale_inv": ("F32", scales, numel * 4)},
                 {"quantization_config": {"quant_method": "fp8",
                                          "weight_block_size": rng.choice([[128, 128], [1, 1], [1 << 62, 1 << 62], *BAD]),
                                          "activation_scheme": rng.choice(["dynamic", *BAD])}})


def bitsandbytes(rng):
    state = rng.choice([b"{}", b'{"blocksize":0}', json.dumps({"blocksize": 64, "shape": [rng.choice([8, -1, 1 << 62]), 8],
                        "quant_type": rng.choice(["nf4", "fp4", "x"]), "dtype": rng.choice(["bfloat16", 3]),
                        "nested_blocksize": rng.choice([256, 0, -5])}).encode(), b"[" * 5000, b"\xff" * 100])
    files = model({"a.weight": ("U8", [32, 1], 32), "a.weight.absmax": ("F32", [1], 4),
                   "a.weight.quant_map": ("F32", [16], 64),
                   "a.weight.quant_state.bitsandbytes__nf4": ("U8", [len(state)], len(state))},
                  {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": rng.choice([True, *BAD]),
                                           "bnb_4bit_quant_type": rng.choice(["nf4", *BAD])}})
    raw = files["model.safetensors"]
    files["model.safetensors"] = raw[:len(raw) - len(state)] + state
    return files


def foreign_configs(rng):
    """Configurations of other tools beside config.json."""
    name = rng.choice(["hf_quant_config.json", "quantize_config.json", "quant_config.json"])
    raw = rng.choice([b"[" * 100000, b'{"quantization":' * 70 + b"1" + b"}" * 70, b"\xff\xfe{}", b"", b"null",
                      json.dumps({"quantization": {"quant_algo": rng.choice(["FP8", "NVFP4", *BAD]),
                                                   "kv_cache_quant_algo": rng.choice(BAD),
                                                   "exclude_modules": rng.choice([["*" * 3000], ["*a" * 300] * 500, *BAD])}}).encode(),
                      json.dumps({"bits": rng.choice(BAD), "w_bit": rng.choice(BAD)}).encode()])
    return model(gptq_tensors(3), {"model_type": "llama"}, **{name: raw})


def config_numbers(rng):
    """Numbers of experts and layers that a layout multiplies."""
    number = lambda: rng.choice([1, 2, 8, *BAD])
    config = {"model_type": rng.choice(["mixtral", "qwen3_moe", "deepseek_v3", "gpt_oss", "llama4", "llama", "gemma2", *BAD[9:]]),
              "num_experts": number(), "num_local_experts": number(), "n_routed_experts": number(),
              "num_hidden_layers": number(), "hidden_size": number(), "num_attention_heads": number(),
              "num_key_value_heads": number(), "head_dim": number(), "vocab_size": number(),
              "intermediate_size": number(), "text_config": rng.choice([{}, {"num_hidden_layers": number()}, *BAD])}
    tensors = {}
    for i in range(rng.choice([1, 2, 70])):
        for e in range(rng.choice([1, 2, 9])):
            for w in ("w1", "w2", "w3"):
                tensors[f"model.layers.{i}.block_sparse_moe.experts.{e}.{w}.weight"] = floats(4, 4)
    return model(tensors, config)


def config_texts(rng):
    kind = rng.randrange(7)
    if kind == 0:
        raw = b'{"a":"' + b"\\u0000" * rng.choice(MANY) + b'"}'
    elif kind == 1:
        raw = b'{"model_type":"\\u001b[2J\\u202e","architectures":["\\u0085"]}'
    elif kind == 2:
        raw = b'{"torch_dtype":"bfloat16",' + b",".join(b'"torch_dtype":"half"' for _ in range(2000)) + b"}"
    elif kind == 3:
        raw = b'{"a":' + b"1" * 200000 + b"}"
    elif kind == 4:
        raw = b'{"a":1e' + b"9" * 5000 + b"}"
    elif kind == 5:
        raw = b"{" + b",".join(b'"%d":{"dtype":"half","quantization_config":{}}' % i for i in range(20000)) + b"}"
    else:
        raw = b'{"auto_map":{' + b",".join(b'"%d":["a.b","../c.d","/e.f"]' % i for i in range(5000)) + b"}}"
    return model({"w": floats(4, 4)}, raw)


# ---- safetensors

def header_names(rng):
    kind = rng.randrange(6)
    count = rng.choice(MANY)
    if kind == 0:  # names that differ in their last bytes only
        found = {"n" * 400 + str(i): {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]} for i in range(count // 8)}
    elif kind == 1:  # layers with numbers beyond any
        found = {f"model.layers.{10 ** (i % 40)}{i}.w": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}
                 for i in range(count)}
    elif kind == 2:  # each a prefix of the next
        found = {"a." * i + "w": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]} for i in range(1, 700)}
    elif kind == 3:
        found = {"__metadata__": {"k" * 50000: "v" * 50000}, "w": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}}
    elif kind == 4:
        found = {"w" + chr(rng.randrange(0x80, 0xD800)) + str(i): {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}
                 for i in range(500)}
    else:
        found = {f"model.layers.0.mlp.experts.{i}.{w}_proj.weight": {"dtype": "U8", "shape": [0, 4], "data_offsets": [0, 0]}
                 for i in range(count // 3) for w in ("gate", "up", "down")}
    return {"model.safetensors": safetensors(found), "config.json": b'{"model_type":"qwen3_moe","num_experts":4}'}


def header_texts(rng):
    kind = rng.randrange(6)
    w = b'"w":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}'
    if kind == 0:
        raw = b"{" + w + b" " * 2000000 + b"}"
    elif kind == 1:
        raw = b"{" + w + b"," + w + b"}"
    elif kind == 2:
        raw = b'{"w":{"dtype":"U8","shape":[' + b"0," * 300000 + b'0],"data_offsets":[0,0]}}'
    elif kind == 3:
        raw = b'{"w":{"dtype":"U8","shape":[0],"data_offsets":[0,0],"x":' + b"[" * 100000 + b"}}"
    elif kind == 4:
        raw = b'{"w\\ud800":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'
    else:
        raw = b'{"w":{"dtype":"U8","shape":[-0, 0.0, 1e3],"data_offsets":[0,0]}}'
    data = struct.pack("<Q", rng.choice([len(raw), len(raw), 1 << 40, (1 << 64) - 8])) + raw
    return {"model.safetensors": data}


def index_wide(rng):
    """An index of many names for few shards, or of few names for many shards that are not there."""
    count = rng.choice(MANY)
    kind = rng.randrange(4)
    good = safetensors({"w": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}})
    if kind == 0:
        weights = {f"w{i}": "a.safetensors" for i in range(count)}
    elif kind == 1:
        weights = {f"w{i}": f"{i}.safetensors" for i in range(count)}
    elif kind == 2:
        weights = {"w": "a/" * 2000 + "a.safetensors"}
    else:
        weights = {"w": "a.safetensors", **{f"x{i}": "a" * 3000 for i in range(300)}}
    return {"a.safetensors": good, "model.safetensors.index.json": json.dumps({"weight_map": weights}).encode()}


def many_files(rng):
    good = safetensors({"w": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}})
    kind = rng.randrange(3)
    if kind == 0:
        return {f"model-{i:05}-of-00300.safetensors": good for i in range(1, 301)}
    if kind == 1:
        return {"d/" * i + "model.safetensors": good for i in range(1, 40)}
    return {"model.safetensors": good, **{f"f{i}.json": b"{}" for i in range(800)}}


# ---- pickles: other shapes of sharing

def ladder(rng):
    """Each rung has the one below it twice: 2^n paths."""
    rungs = rng.choice([40, 1000, 8000])
    two = rng.choice([lambda i: mapping((text("a"), get(i)), (text("b"), get(i))), lambda i: sequence(get(i), get(i)),
                      lambda i: items(get(i), get(i)),
                      lambda i: mapping((text("model"), get(i)), (text("state_dict"), get(i)), (text("w"), tensor()))])
    code = keep(rng.choice([tensor(), integers([1] * 50), mapping((text("w"), tensor()))]), 1000)
    for i in range(1000, 1000 + rungs):
        code += keep(two(i), i + 1)
    return {"m.pt": zipped(code + get(1000 + rungs))}


def ring(rng):
    """A circle of dictionaries through keys that are followed."""
    count = rng.choice([2, 50, 5000])
    keys = [rng.choice(["state_dict", "model", "module", "x"]) for _ in range(count)]
    code = b"".join(keep(b"}", 100 + i) for i in range(count))
    for i in range(count):
        code += get(100 + i) + text(keys[i]) + get(100 + (i + 1) % count) + b"s0"
    return {"m.pt": zipped(code + get(100))}


def wide_keys(rng):
    """Keys that are no texts: numbers, tuples of one long text, dictionaries themselves."""
    count = rng.choice([500, 5000])
    long = keep(text("k" * rng.choice([10, 60000])), 1)
    key = rng.choice([lambda i: items(get(1), integer(i)), lambda i: integer(i), lambda i: get(1),
                      lambda i: items(items(items(get(1)))), lambda i: name_of("torch", "float32")])
    return {"m.pt": zipped(long + mapping(*((key(i), tensor()) for i in range(count)), (text("w"), tensor())))}


def hooks_and_states(rng):
    """Objects whose state is another's, in long chains and in circles."""
    count = rng.choice([100, 3000])
    code = b"".join(keep(name_of("a", "B") + b")\x81", 100 + i) for i in range(count))
    for i in range(count):
        code += get(100 + i) + rng.choice([get(100 + (i + 1) % count), get(100 + i),
                                           mapping((text("__dict__"), get(100 + (i + 1) % count)))]) + b"b0"
    return {"m.pt": zipped(code + mapping((text("w"), tensor(hooks=get(100))), (text("model"), get(100))))}


def parameters(rng):
    """Parameters of parameters, tensors whose storage is a tensor, calls of calls."""
    kind = rng.randrange(5)
    inner = tensor()
    depth = rng.choice([3, 300, 5000])
    if kind == 0:
        for _ in range(depth):
            inner = name_of("torch._utils", "_rebuild_parameter") + b"(" + inner + b"\x88}tR"
    elif kind == 1:
        inner = name_of("torch._utils", "_rebuild_tensor_v2") + b"(" + tensor() + b"K\0" + integers([1]) * 2 + b"\x89}tR"
    elif kind == 2:
        inner = name_of("torch._utils", "_rebuild_tensor_v2") + b"R" * min(depth, 300)
    elif kind == 3:
        inner = name_of("collections", "OrderedDict") + b"(" + sequence(*[items(text("w"), tensor())] * depth) + b"tR"
    else:
        inner = name_of("torch", "Size") + b"(" + b"(" * depth + b"t" * depth + b"tR"
    return {"m.pt": zipped(mapping((text("w"), inner), (text("v"), tensor())))}


def storages(rng):
    """Many storages in few bytes, members that overlap, names that need care."""
    count = rng.choice([200, 2000])
    kind = rng.randrange(4)
    if kind == 0:
        tensors = [tensor(key=str(i)) for i in range(count)]
        return {"m.pt": zipped(mapping(*((text(str(i)), t) for i, t in enumerate(tensors))),
                               {str(i): bytes(64) for i in range(count)})}
    if kind == 1:
        return {"m.pt": zipped(mapping((text("w"), tensor(key="../data.pkl")), (text("v"), tensor(key="0/../0"))))}
    if kind == 2:
        return {"m.pt": zipped(mapping(*((text(str(i)), tensor(shape=(1,), offset=i % 16)) for i in range(count))))}
    return {"m.pt": stream(mapping((text("w"), tensor())), keys=[str(i) for i in range(count)],
                           storages=[bytes(4)] * rng.choice([1, count]))}


def long_numbers(rng):
    """Integers of thousands of bytes where a size is expected."""
    length = rng.choice([200, 60000])
    big = b"\x8b" + struct.pack("<i", length) + b"\x7f" * length
    where = rng.randrange(4)
    made = [tensor(shape=items(big)), tensor(stride=items(big), shape=(16,)),
            name_of("torch._utils", "_rebuild_tensor_v2") + b"(" + storage() + big + integers([1]) * 2 + b"\x89}tR",
            big][where]
    return {"m.pt": zipped(mapping((text("w"), made), (text("v"), tensor())))}


def memo_frames(rng):
    unit = rng.choice([b"\x95" + struct.pack("<Q", rng.choice([0, 5, 1 << 63])), b"\x8c\x02ab\x94", b"\x8e" +
                       struct.pack("<Q", rng.choice([2, 1 << 62])) + b"ab", b"\x8d" + struct.pack("<Q", 2) + b"ab",
                       b"\x8fN\x90" if rng.random() < .5 else b"\x8f(N\x90", b"(\x91", b"\x96" + struct.pack("<Q", 1) + b"a",
                       b"\x97", b"\x98", b"I01\n", b"L5L\n", b"F1e999\n", b"S'a'\n", b"V\\u0041\n", b"G" + b"\xff" * 8])
    return {"m.pt": zipped(b"N" + unit * rng.choice([1, 5000]))}


# ---- distributed and DeepSpeed

def chunk(offsets, sizes):
    return thing(METADATA, "ChunkStorageMetadata", mapping((text("offsets"), offsets), (text("sizes"), sizes)))


def dcp_chunks(rng):
    """A tensor of many chunks: alike, in each other, of no elements, in any order."""
    count = rng.choice([50, 2000])
    kind = rng.randrange(5)
    pieces = {0: [((0,), (16,))] * count, 1: [((i,), (1,)) for i in range(count)],
              2: [((i,), (0,)) for i in range(count)], 3: [((i,), (2,)) for i in range(count)],
              4: [((i % 50, i // 50), (1, 1)) for i in range(count)]}[kind]
    rng.shuffle(pieces)
    shape = (count,) if kind < 4 else (50, count // 50)
    properties = thing(METADATA, "TensorProperties", items(name_of("torch", "float32"), b"N"))
    state = mapping((text("w"), thing(METADATA, "TensorStorageMetadata", mapping(
        (text("properties"), properties), (text("size"), size(shape)),
        (text("chunks"), sequence(*(chunk(size(a), size(b)) for a, b in pieces)))))))
    part = zipped(tensor())
    places = mapping(*((thing(METADATA, "MetadataIndex", mapping((text("fqn"), text("w")), (text("offset"), size(at)))),
                        thing(METADATA, "_StorageInfo", mapping((text("relative_path"), text("a.distcp")),
                                                               (text("offset"), integer(rng.choice([0, i]))),
                                                               (text("length"), integer(len(part))))))
                       for i, (at, _) in enumerate(pieces)))
    whole = thing(METADATA, "Metadata", mapping((text("state_dict_metadata"), state), (text("storage_data"), places)))
    return {".metadata": pickle(whole), "a.distcp": part}


def zero_ranks(rng):
    """More ranks than there are, the same rank twice, partitions of partitions."""
    count = rng.choice([1, 40, 300])
    state = mapping((text("zero_stage"), integer(rng.choice([1, 2, 3]))), (text("partition_count"), rng.choice(
        [integer(count), sequence(*[integer(count)] * 50), integer(1 << 40), integer(-1)])),
        (text("single_partition_of_fp32_groups"), sequence(*[tensor()] * rng.choice([1, 50]))),
        (text("fp32_flat_groups"), sequence(*[tensor()] * rng.choice([1, 50]))))
    optimizer = zipped(mapping((text("optimizer_state_dict"), state)))
    shapes = sequence(*[mapping(*((text(f"w{i}"), size((rng.choice([16, 0, 1 << 40]),))) for i in range(20)))]
                      * rng.choice([1, 50]))
    files = {"latest": rng.choice([b"g", b"g\n", b"../g", b"g" * 300, b"\0", b"/etc"]),
             "g/mp_rank_00_model_states.pt": zipped(mapping((text("param_shapes"), shapes),
                                                            (text("buffer_names"), sequence())))}
    for i in range(count):
        files[f"g/zero_pp_rank_{i}_mp_rank_00_optim_states.pt"] = optimizer
    if rng.random() < 0.3:
        files[f"g/zero_pp_rank_{rng.choice(['00', '99999999999999999999', '-1', '1e3'])}_mp_rank_00_optim_states.pt"] = optimizer
    return files


def universal(rng):
    count = rng.choice([1, 100, 600])
    files = {"latest_universal": b"u", "u/mp_rank_00_model_states.pt": zipped(mapping(
        (text("universal_checkpoint_info"), mapping((text("universal_checkpoint_version"), rng.choice(
            [text("0.2"), integer(3), b"N"])))), (text("module"), mapping((text("w"), tensor())))))}
    for i in range(count):
        files[f"u/zero/w{i}/fp32.pt"] = zipped(rng.choice([tensor(), mapping((text("param"), tensor())),
                                                           mapping((text("param"), tensor(shape=(1 << 40, 0)))),
                                                           mapping((text("param"), integers([1] * 5000)))]))
    return files


KINDS = [gptq, gptq_shapes, awq, compressed, compressed, compressed_shapes, fp8, bitsandbytes, foreign_configs, config_numbers,
         config_numbers, config_texts, header_names, header_texts, index_wide, many_files, ladder, ring, wide_keys,
         hooks_and_states, parameters, storages, long_numbers, memo_frames, dcp_chunks, zero_ranks, universal]
