"""Writes the malformed corpus: broken headers, indexes, configs, quant_states, directories.

    python make.py            # rewrites cases.json and the folders of small cases

Each case has the text that its error must contain. Small cases are files, so that they serve as
seeds of the fuzz targets too; those that need megabytes are recipes ("parts": text and how often,
%i is the number of the repetition) that the test carries out; directories are lists of files.
Standard library only.
"""

import json
import pathlib
import shutil
import struct

here = pathlib.Path(__file__).parent
cases = []


def safe(data_or_text):
    return data_or_text.encode() if isinstance(data_or_text, str) else data_or_text


def file_of(header, data=b"", length=None):
    header = safe(header)
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def add_file(kind, name, content, expect):
    path = here / kind / name
    assert not path.exists(), path
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    cases.append({"kind": kind, "name": name, "expect": expect})


def add_parts(kind, name, parts, expect):
    cases.append({"kind": kind, "name": name, "expect": expect, "parts": parts})


def tensor(name='"a"', dtype='"U8"', shape="[4]", offsets="[0,4]", more=""):
    return f'{name}:{{"dtype":{dtype},"shape":{shape},"data_offsets":{offsets}{more}}}'


def header(name, text, expect, data=b"\0" * 4):
    add_file("header", name, file_of(text, data), expect)


def one(case, expect, data=b"\0" * 4, **members):
    header(case, "{" + tensor(**members) + "}", expect, data)


def headers():
    # The file and the length of its header.
    raw = lambda name, content, expect: add_file("header", name, content, expect)
    raw("empty", b"", "is empty; download it again")
    raw("one-byte", b"\0", "is all zeros")
    raw("seven-bytes", b"\2\0\0\0\0\0\0", "7 bytes, too short")
    raw("length-zero", file_of(""), "is all zeros (was the download")
    raw("length-beyond-limit", file_of("{}", length=100_000_001), "header of 100000001 bytes (limit 100000000)")
    raw("length-at-limit", file_of("{}", length=100_000_000), "cut short in its header: 99,999,998 of that one's 100,000,000 bytes are missing; download it again")
    raw("length-maximal", file_of("{}", length=2**64 - 1), "(limit 100000000)")
    raw("length-wraps", file_of("{}", length=2**64 - 8), "(limit 100000000)")
    raw("length-half", file_of("{}", length=2**63), "(limit 100000000)")
    raw("length-one-too-many", file_of("{}", length=3), "cut short in its header: 1 of that one's 3 bytes are missing")
    raw("length-of-nothing", file_of("", length=1), "cut short in its header: 1 of that one's 1 bytes are missing")
    raw("zip", b"PK\3\4\x14\0\0\0\0\0data.pkl", "is a zip archive (a file of torch?), not a safetensors file")
    raw("gguf", b"GGUF\3\0\0\0\0\0\0\0", "is a GGUF file")
    raw("hdf5", b"\x89HDF\r\n\x1a\n\0\0\0\0", "is an HDF5 file")
    raw("pickle", b"\x80\x02}q\x00X\x04\0\0\0", "is a pickle (a file of torch?)")
    raw("html", b"<!DOCTYPE html><html>404</html>", "is an HTML page (an error page that was saved?), not a safetensors file")
    raw("text", b"Entry not found", "not a safetensors file?")
    raw("lfs-like", b"version 2 of nothing, of some length", "not a safetensors file?")

    # Characters.
    for name, junk in {
        "ff": b"\xff", "overlong": b"\xc0\x80", "surrogate": b"\xed\xa0\x80", "beyond": b"\xf4\x90\x80\x80",
        "five-bytes": b"\xf8\x88\x80\x80\x80", "continuation": b"\x80", "cut-two": b"\xc3", "cut-three": b"\xe2\x82",
        "cut-four": b"\xf0\x9f\x98", "overlong-three": b"\xe0\x80\xaf", "overlong-four": b"\xf0\x80\x80\xaf",
    }.items():
        header(f"utf8-{name}", b'{"' + junk + b'":1}', "is not UTF-8")
    header("utf8-at-the-end", b"{}      \xff", "byte 8 is not UTF-8")
    header("utf8-latin1", '{"größe":1}'.encode("latin-1"), "is not UTF-8")

    # What is not an object.
    header("only-space", "   \n", "not JSON, only white space")
    for name, text in {"list": "[]", "string": '"a"', "number": "1", "null": "null", "true": "true",
                       "nul": "\0", "brace-late": "x{}", "bom": "\ufeff{}", "close": "}"}.items():
        header(f"top-{name}", text, "not a JSON object: its first byte is")

    # Grammar.
    for name, text in {
        "open": "{", "open-name": '{"a', "name-only": '{"a"', "colon": '{"a":', "no-value": '{"a":}',
        "comma-first": '{,"a":1}', "comma-last": '{"__metadata__":{},}', "quotes": "{'a':{}}",
        "no-colon": '{"a" {}}', "no-quotes": "{a:{}}", "comment": "{/**/}", "newline-in-name": '{"a\nb":{}}',
        "escape": '{"\\x":{}}', "escape-cut": '{"\\u12":{}}', "lone-high": '{"\\ud800":{}}',
        "lone-low": '{"\\udc00":{}}', "list-open": '{"a":{"dtype":"U8","shape":[1', "wrong-close": '{"a":{"shape":[1}',
        "nan": '{"a":{"shape":[NaN]}}', "leading-zero": '{"a":{"shape":[01]}}', "plus": '{"a":{"shape":[+1]}}',
        "no-fraction": '{"a":{"shape":[1.]}}', "hex": '{"a":{"shape":[0x1]}}', "word": '{"a":tru}',
        "infinity": '{"a":{"shape":[1e999]}}', "double-comma": '{"a":{"shape":[1,,2]}}', "cut": '{"a":{"dtype":"U8"',
        "minus": '{"a":{"shape":[-]}}',
    }.items():
        header(f"json-{name}", text, "not JSON: ")
    for name, text in {"word": "{}x", "object": "{} {}", "comma": "{},", "brace": "{}}"}.items():
        header(f"trailing-{name}", text, "text after the value")

    header("trailing-nul", "{}\0x", "byte 2 is NUL")
    header("nul-in-name", '{"a\0b":{}}', "byte 3 is NUL")

    # A tensor that is no object, metadata that are not strings.
    for name, text, kind in [("number", "1", "a number"), ("negative", "-1", "a negative number"),
                             ("fraction", "1.5", "a fraction"), ("string", '"x"', "a string"),
                             ("list", "[]", "a list"), ("null", "null", "null"), ("boolean", "true", "a boolean")]:
        header(f"tensor-{name}", f'{{"a":{text}}}', f'tensor "a": is {kind}, not an object')
        header(f"metadata-{name}", f'{{"__metadata__":{text}}}', f"__metadata__ is {kind}, not an object")
        if kind != "a string":
            header(f"metadata-value-{name}", f'{{"__metadata__":{{"k":{text}}}}}', f"__metadata__ has {kind}, not a string")
            one(f"dtype-{name}", f'tensor "a": dtype is {kind}, not a string', dtype=text)
        if kind != "a list":
            one(f"shape-{name}", f'tensor "a": shape is {kind}, not a list', shape=text)
            one(f"offsets-{name}", f'tensor "a": data_offsets is {kind}, not a list', offsets=text)
        if kind != "a number":
            one(f"shape-of-{name}", f'tensor "a": shape has {kind}, not a whole number', shape=f"[4,{text}]")
            one(f"offsets-of-{name}", f'tensor "a": data_offsets has {kind}, not a whole number', offsets=f"[0,{text}]")
    header("metadata-value-object", '{"__metadata__":{"k":{}}}', "__metadata__ has an object, not a string")
    header("metadata-twice", '{"__metadata__":{},"__metadata__":{}}', "__metadata__ twice")
    header("metadata-name-twice", '{"__metadata__":{"k":"1","k":"2"}}', '__metadata__ has "k" twice')
    one("dtype-object", "dtype is an object, not a string", dtype="{}")
    one("shape-object", "shape is an object, not a list", shape="{}")
    one("offsets-object", "data_offsets is an object, not a list", offsets="{}")
    one("shape-of-objects", "shape has an object", shape="[{}]")
    one("offsets-of-objects", "data_offsets has an object", offsets="[{},{}]")

    # Members.
    for name, dtype in {"empty": "", "lower": "bf16", "f8": "F8", "unknown": "Q4_K", "complex128": "C128", "padded": "U8 "}.items():
        one(f"unknown-dtype-{name}", f'tensor "a": unknown dtype "{dtype}"', dtype=f'"{dtype}"')
    header("no-members", '{"a":{}}', 'tensor "a": no dtype')
    header("no-dtype", '{"a":{"shape":[4],"data_offsets":[0,4]}}', 'tensor "a": no dtype')
    header("no-shape", '{"a":{"dtype":"U8","data_offsets":[0,4]}}', 'tensor "a": no shape')
    header("no-offsets", '{"a":{"dtype":"U8","shape":[4]}}', 'tensor "a": no data_offsets')
    header("no-offsets-but-similar", '{"a":{"dtype":"U8","shape":[4],"Data_Offsets":[0,4]}}', "no data_offsets")
    one("dtype-twice", "dtype twice", more=',"dtype":"U8"')
    one("shape-twice", "shape twice", more=',"shape":[4]')
    one("offsets-twice", "data_offsets twice", more=',"data_offsets":[0,4]')

    # Numbers.
    one("dimension-2-63", "dimension 9223372036854775808 (limit 2^63 - 1)", shape="[9223372036854775808]")
    one("dimension-2-64", "shape has a fraction", shape="[18446744073709551616]")
    one("dimension-exponent", "shape has a fraction", shape="[4e0]")
    one("nested", "nested more than 125 deep", more=',"x":' + "[" * 126 + "]" * 126)
    one("elements-overflow", "shape has more than 2^63 - 1 elements", shape="[4294967296,4294967296]")
    one("elements-overflow-late", "shape has more than 2^63 - 1 elements", shape="[9223372036854775807,3]")
    one("elements-overflow-before-zero", "shape has more than 2^64 - 1 elements before its 0", data=b"",
        shape="[1099511627776,1099511627776,0]", offsets="[0,0]")
    one("bits-overflow", "need more than 2^63 - 1 bits", dtype='"F32"', shape="[4611686018427387904]")
    one("rank", "more than 64 dimensions", shape="[" + ",".join(["1"] * 65) + "]")
    one("offsets-none", "data_offsets has 0 numbers, not two", offsets="[]")
    one("offsets-one", "data_offsets has 1 numbers, not two", offsets="[4]")
    one("offsets-three", "data_offsets has more than two numbers", offsets="[0,4,4]")
    one("offsets-reversed", "data_offsets begin 4 > end 0", offsets="[4,0]")
    one("offsets-beyond", "cut short: 1 of ", shape="[5]", offsets="[0,5]")
    one("offsets-maximal", "data_offsets hold 18446744073709551615 bytes, dtype and shape need 4", offsets="[0,18446744073709551615]")
    one("truncated", "cut short: 1 of ", data=b"\0" * 3)
    one("data-absent", "cut short: 4 of ", data=b"")
    one("size-small", "data_offsets hold 4 bytes, dtype and shape need 3", shape="[3]")
    one("size-large", "data_offsets hold 4 bytes, dtype and shape need 8", dtype='"BF16"')
    one("size-scalar", "data_offsets hold 4 bytes, dtype and shape need 8", dtype='"F64"', shape="[]")
    one("size-zero", "data_offsets hold 4 bytes, dtype and shape need 0", shape="[4,0]")
    one("size-f4", "data_offsets hold 4 bytes, dtype and shape need 2", dtype='"F4"')
    one("f4-odd", "7 elements of F4 do not end on a whole byte", dtype='"F4"', shape="[7]")
    one("f6-odd", "5 elements of F6_E2M3 do not end on a whole byte", dtype='"F6_E2M3"', shape="[5]")
    one("f6-scalar", "1 elements of F6_E3M2 do not end on a whole byte", dtype='"F6_E3M2"', shape="[]")

    # All tensors together.
    two = lambda a, b: "{" + a + "," + b + "}"
    header("name-twice", two(tensor(), tensor()), 'tensor "a": twice in the header')
    header("name-twice-empty", two(tensor(shape="[0]", offsets="[0,0]"), tensor()), 'tensor "a": twice in the header')
    header("name-twice-escaped", two(tensor(), tensor(name='"\\u0061"')), 'tensor "a": twice in the header')
    header("overlap", two(tensor(shape="[3]", offsets="[0,3]"), tensor('"b"', shape="[2]", offsets="[2,4]")),
           'tensor "b": data begins at 2, inside the tensor before it (which ends at 3)')
    header("overlap-same", two(tensor(), tensor('"b"')), 'tensor "b": data begins at 0, inside')
    header("overlap-within", two(tensor(), tensor('"b"', shape="[1]", offsets="[1,2]")), 'tensor "b": data begins at 1, inside')
    header("overlap-empty-within", two(tensor(), tensor('"b"', shape="[0]", offsets="[2,2]")), "inside the tensor before it")
    one("hole-first", "data begins at 1, but the 1 bytes before it belong to no tensor", shape="[3]", offsets="[1,4]")
    header("hole-between", two(tensor(shape="[1]", offsets="[0,1]"), tensor('"b"', shape="[2]", offsets="[2,4]")),
           'tensor "b": data begins at 2, but the 1 bytes before it')
    one("hole-empty", "data begins at 2, but the 2 bytes before it", shape="[0]", offsets="[2,2]")
    one("surplus", "1 bytes behind the end of the last tensor at ", data=b"\0" * 5)
    header("surplus-no-tensor", "{}", "4 bytes behind the end of the last tensor at 10;")
    one("name-hostile", 'tensor "\\u0001\\u001b[31m": unknown dtype',
        name='"\\u0001\\u001b[31m"', dtype='"?"')

    # Limits; these need megabytes.
    part = tensor("\"%i\"", shape="[0]", offsets="[0,0]") + ","
    add_parts("header", "many-tensors", [["{", 1], [part, 500_001], ['"z":1}', 1]], "more than 500000 tensors")
    add_parts("header", "many-metadata", [['{"__metadata__":{', 1], ['"%i":"",', 100_001], ['"z":""}}', 1]],
              "__metadata__ has too many names")
    add_parts("header", "long-metadata-names", [['{"__metadata__":{', 1], ['"' + "n" * 1000 + '%i":"",', 5000], ['"z":""}}', 1]],
              "__metadata__ has too many names")
    add_parts("header", "long-name", [['{"', 1], ["n", 65_536], ['":1}', 1]], "a tensor's name has 65536 bytes (limit 65535)")
    add_parts("header", "long-string", [['{"__metadata__":{"k":"', 1], ["v", 4_194_305], ['"}}', 1]], "a text longer than 4194304 bytes, the limit")
    add_parts("header", "long-number", [['{"a":', 1], ["1", 4_200_000], ["}", 1]], "a text longer than 4194304 bytes, the limit")
    add_parts("header", "long-string-open", [['{"', 1], ["\\u0061", 1_000_000]], "a text longer than 4194304 bytes, the limit")
    add_parts("header", "long-space", [["{", 1], [" ", 1_048_577]], "header at its byte 1048578: not JSON: the text ends")
    add_parts("header", "long-escaped-names",
              [["{", 1], [tensor('"' + "\\u0061" * 500 + '%i"', shape="[0]", offsets="[0,0]") + ",", 9000], ['"z":1}', 1]],
              "names with JSON escapes need more than 4194304 bytes")
    add_parts("header", "many-dimensions",
              [["{", 1], [tensor('"%i"', shape="[%i,0" + ",1" * 60 + "]", offsets="[0,0]") + ",", 16_500], ['"z":1}', 1]],
              "shapes have more than 1000000 dimensions together")
    add_parts("header", "deep", [['{"a":{"x":', 1], ["[", 3_000_000]], "nested more than 125 deep")
    add_parts("header", "many-names-not-tensors", [["{", 1], ['"%i":1,', 1_000_000], ['"z":1}', 1]], 'tensor "0": is a number')


def indexes():
    add = lambda name, text, expect: add_file("index", name, safe(text), expect)
    add("empty", "", "not JSON, only white space")
    add("list", "[]", "not a JSON object")
    add("utf8", b'{"weight_map":{"\xff":"f"}}', "is not UTF-8")
    add("deep-closed", '{"metadata":{"a":' + "[" * 63 + "]" * 63 + '},"weight_map":{"a":"f"}}', "nested more than 64 deep")
    add("no-map", '{"metadata":{}}', "no weight_map")
    add("nothing", "{}", "no weight_map")
    add("empty-map", '{"weight_map":{}}', "weight_map is empty")
    for name, text, kind in [("number", "1", "a number"), ("list", "[]", "a list"), ("string", '"f"', "a string"),
                             ("null", "null", "null"), ("boolean", "false", "a boolean"), ("fraction", "0.5", "a number")]:
        add(f"map-{name}", f'{{"weight_map":{text}}}', f"weight_map is {kind}, not an object")
        if kind != "a string":
            add(f"file-{name}", f'{{"weight_map":{{"a":{text}}}}}', f'tensor "a": its file is {kind}, not a string')
    add("file-object", '{"weight_map":{"a":{"f":"g"}}}', 'tensor "a": its file is an object, not a string')
    add("map-twice", '{"weight_map":{"a":"f"},"weight_map":{"b":"g"}}', "weight_map twice")
    add("name-twice", '{"weight_map":{"a":"f","b":"f","a":"g"}}', 'tensor "a": twice in weight_map')
    add("name-twice-same-file", '{"weight_map":{"a":"f","a":"f"}}', 'tensor "a": twice in weight_map')
    add("name-twice-escaped", '{"weight_map":{"a":"f","\\u0061":"f"}}', 'tensor "a": twice in weight_map')
    for name, path, fault in [("up", "../f.safetensors", "leaves the directory"), ("up-late", "a/../../f", "leaves the directory"),
                              ("up-only", "..", "leaves the directory"), ("absolute", "/etc/passwd", "is absolute"),
                              ("empty", "", "is empty"), ("dot", "a/./f", "is not a plain path"), ("slashes", "a//f", "is not a plain path"),
                              ("directory", "a/", "is not a plain path"), ("nul", "f\\u0000.safetensors", "has a NUL character"),
                              ("long", "f" * 513, "is too long")]:
        add(f"path-{name}", f'{{"weight_map":{{"a":"{path}"}}}}', fault)
    for name, text in {"cut": '{"weight_map":{"a":"f"', "comma": '{"weight_map":{"a":"f",}}', "quotes": "{'weight_map':{}}",
                       "open": "{", "number": '{"metadata":{"total_size":1e999},"weight_map":{}}',
                       "surrogate": '{"weight_map":{"a":"\\ud800"}}', "control": '{"weight_map":{"a\tb":"f"}}'}.items():
        add(f"json-{name}", text, "not JSON: ")
    add("trailing", '{"weight_map":{"a":"f"}} x', "text after the value")
    add("trailing-object", '{"weight_map":{"a":"f"}}{}', "text after the value")
    add_parts("index", "many-names", [['{"weight_map":{', 1], ['"%i":"f",', 1_000_001], ['"z":"f"}}', 1]], "more than 1000000 names")
    add_parts("index", "many-files", [['{"weight_map":{', 1], ['"%i":"' + "f" * 400 + '%i",', 50_001], ['"z":"f"}}', 1]], "more than 50000 files")
    add_parts("index", "long-name", [['{"weight_map":{"', 1], ["n", 65_537], ['":"f"}}', 1]], "a text longer than 65536 bytes, the limit")
    add_parts("index", "long-space", [["{", 1], ["\n", 1_048_577]], "at byte 1048578: not JSON: the text ends")
    add_parts("index", "escaped-names", [['{"weight_map":{', 1], ['"' + "\\u0061" * 500 + '%i":"f",', 9000], ['"z":"f"}}', 1]],
              "names with JSON escapes need more than 4194304 bytes")
    add_parts("index", "deep", [['{"metadata":', 1], ["[", 5_000_000]], "nested more than 64 deep")


def configs():
    add = lambda name, text, expect: add_file("config", name, safe(text), expect)
    add("empty", "", "not JSON, only white space")
    add("list", '[{"model_type": "llama"}]', "not a JSON object")
    add("utf8", b'{"a": "\xe9"}', "is not UTF-8")
    for name, text in {"cut": '{"a": 1', "comma": '{"a": 1,}', "comment": '{"a": 1 // one\n}', "python": "{'a': True}", "true": '{"a": True}',
                       "none": '{"a": None}', "nan-joined": '{"a": 1NaN}', "nan-follows": '{"a": NaN1}', "minus-nan": '{"a": -NaN}',
                       "infinite": '{"a": Infinit}', "nan-name": '{NaN: 1}', "infinity-name": '{"a": 1, -Infinity : 2}', "trailing": "{} {}", "merge": '<<<<<<< HEAD\n{}\n', "html": "{<html>}",
                       "undefined": '{"a": undefined}', "tab": '{"a": "\t"}', "surrogate": '{"a": "\\udfff"}'}.items():
        add(f"json-{name}", text, "not a JSON object" if name == "merge" else "not JSON: ")
    add("deep-lists", '{"a":' + "[" * 32 + "]" * 32 + "}", "nested more than 32 deep")
    add("deep-objects", '{"a":' * 33 + "1" + "}" * 33, "nested more than 32 deep")
    for key in ["quantization_config", "compression_config", "text_config", "torch_dtype", "dtype"]:
        add(f"{key}-twice", f'{{"{key}": {{}}, "{key}": {{}}}}', f'"{key}" 2 times in one object')
    add("dtype-twice-escaped", '{"dtype": "float16", "\\u0064type": "float16"}', '"dtype" 2 times in one object')
    add("nested-dtype-twice", '{"text_config": {"dtype": "float16", "dtype": "float32"}}', '"dtype" 2 times in one object')
    for key in ["quant_method", "weight_block_size"]:
        add(f"{key}-twice", f'{{"quantization_config": {{"{key}": null, "{key}": null}}}}', f'"{key}" 2 times in one object')
    group = lambda members: f'{{"quantization_config": {{"config_groups": {{"group_0": {members}}}}}}}'
    for key in ["config_groups", "ignore", "modules_to_not_convert", "bits"]:
        add(f"{key}-twice", f'{{"quantization_config": {{"{key}": null, "{key}": null}}}}', f'"{key}" 2 times in one object')
    add("group-twice", '{"quantization_config": {"config_groups": {"group_0": {}, "group_0": {}}}}', '"group_0" 2 times in one object')
    add("group-twice-escaped", '{"quantization_config": {"config_groups": {"group_0": {}, "g\\u0072oup_0": {}}}}', '"group_0" 2 times in one object')
    add("weights-twice", group('{"weights": {"num_bits": 4}, "weights": {"num_bits": 8}}'), '"weights" 2 times in one object')
    add("num_bits-twice", group('{"weights": {"num_bits": 4, "num_bits": 8}}'), '"num_bits" 2 times in one object')
    add("inner-value-twice", '{"quantization_config": {"meta": {"a": 1, "b": 2, "a": 3, "a": 4}}}', '"a" 3 times in one object')
    for name, text in {"list": "[]", "string": '"fp8"', "number": "8", "boolean": "true"}.items():
        add(f"quantization-{name}", f'{{"quantization_config": {text}}}', "quantization_config is not an object")
    for name, text in {"number": "8", "list": '["fp8"]', "object": "{}", "boolean": "false"}.items():
        add(f"method-{name}", f'{{"quantization_config": {{"quant_method": {text}}}}}', "quant_method is not a string")
    for name, text in {"empty": "[]", "one": "[128]", "three": "[128, 128, 128]", "zero": "[0, 128]", "negative": "[128, -128]",
                       "fraction": "[128.0, 128]", "string": '["128", "128"]', "number": "128", "huge": "[2147483649, 1]",
                       "overflow": "[99999999999999999999, 1]", "nested": "[[128], [128]]", "object": '{"0": 128, "1": 128}',
                       "null": "[null, 128]", "infinite": "[Infinity, 128]"}.items():
        add(f"block-{name}", f'{{"text_config": {{"quantization_config": {{"quant_method": "fp8", "weight_block_size": {text}}}}}}}',
            "weight_block_size is not two whole numbers from 1 to 2147483648")
    add_parts("config", "long", [['{"a": "', 1], [" " * 1023 + "\\n", 16_500], ['"}', 1]], "(limit 16777216)")
    add_parts("config", "long-string", [['{"a": "', 1], ["x", 4_194_305], ['"}', 1]], "a text longer than 4194304 bytes, the limit")
    add_parts("config", "long-space", [["{", 1], [" ", 1_048_577]], "at byte 1048578: not JSON: the text ends")
    add_parts("config", "many-values", [['{"a": [', 1], ["0,", 500_001], ["0]}", 1]], "more than 500000 values")
    add_parts("config", "many-strings", [['{"a": {', 1], ['"%i":"",', 250_001], ['"z":""}}', 1]], "more than 500000 strings")


def quant_states():
    """The JSON that bitsandbytes stores beside its codes."""
    good = {"quant_type": "nf4", "dtype": "float16", "blocksize": 64, "shape": [2, 64]}
    add = lambda name, text, expect: add_file("quant_state", name, safe(text), expect)
    add("text", "nf4", "not a JSON object")
    for key in good:
        absent = json.dumps({other: value for other, value in good.items() if other != key})
        add(f"no-{key}", absent, f'no "{key}"')
        add(f"{key}-twice", f'{json.dumps(good)[:-1]}, "{key}": 1}}', f'key "{key}" twice')
        add(f"{key}-null", json.dumps({**good, key: None}), f"{key} is not ")


def directories():
    model = file_of("{" + tensor() + "}", b"\1\2\3\4").decode("latin-1")
    other = file_of("{" + tensor('"b"') + "}", b"\1\2\3\4").decode("latin-1")
    two_tensors = file_of("{" + tensor('"b"') + "," + tensor('"c"', offsets="[4,8]") + "}", b"\0" * 8).decode("latin-1")
    lfs = "version https://git-lfs.github.com/spec/v1\noid sha256:" + 64 * "0" + "\nsize 1\n"
    index = lambda **files: json.dumps({"weight_map": files})

    def add(name, files, expect, open="", links=None):
        # A link whose name ends with a slash stands for an empty directory.
        cases.append({"kind": "checkpoint", "name": name, "expect": expect, "open": open, "files": files, "links": links or {}})

    add("absent", {"x": ""}, "no such file or directory", open="y")
    add("empty-directory", {}, "not a checkpoint: the directory is empty")
    add("config-only", {"config.json": "{}"}, "not a checkpoint: no *.safetensors file")
    add("old-weights", {"config.json": "{}", "pytorch_model.bin": "x"}, "(it has pytorch_model.bin, which ckfs cannot read)")
    add("weights-below", {"sub/model.safetensors": model}, "not a checkpoint: no *.safetensors file")
    add("not-a-file", {}, "neither a file nor a directory", open="/dev/null")
    add("other-file", {"model.gguf": "GGUF\3\0\0\0\0\0\0\0"}, "model.gguf: is a GGUF file, not a safetensors file", open="model.gguf")
    add("html-shard", {"model.safetensors": "<!DOCTYPE html><html>404 not found</html>"},
        "model.safetensors: is an HTML page (an error page that was saved?), not a safetensors file")
    add("error-shard", {"model.safetensors": ' {"error": "Repository not found"}'},
        "model.safetensors: is a JSON text (an error message that was saved?), not a safetensors file")
    add("zeros-shard", {"model.safetensors": "\0" * 40},
        "model.safetensors: is all zeros (was the download's space reserved, and the download not finished?)")
    add("zeros-first", {"model.safetensors": "\0" * 600 + "x"}, "model.safetensors: begins with 512 zeros (was the")
    add("lfs-file", {"model.safetensors": lfs}, "model.safetensors: a Git-LFS pointer")
    add("lfs-config", {"model.safetensors": model, "config.json": lfs}, "config.json: a Git-LFS pointer")
    add("lfs-torch", {"config.json": "{}", "pytorch_model.bin": lfs}, "pytorch_model.bin: a Git-LFS pointer, not the file itself (complete it with: git lfs pull)")
    add("lfs-torch-sharded", {"pytorch_model.bin.index.json": json.dumps({"weight_map": {"a": "pytorch_model-00001-of-00001.bin"}}), "pytorch_model-00001-of-00001.bin": lfs}, "pytorch_model-00001-of-00001.bin: a Git-LFS pointer")
    add("lfs-dcp", {".metadata": lfs, "__0_0.distcp": "x"}, ".metadata: a Git-LFS pointer")
    add("lfs-index", {"model.safetensors.index.json": lfs}, "model.safetensors.index.json: a Git-LFS pointer")
    add("config-broken", {"model.safetensors": model, "config.json": "{"}, "config.json: at byte")
    add("config-twice", {"model.safetensors": model, "config.json": '{"dtype":1,"dtype":2}'}, 'config.json: "dtype" 2 times')
    add("config-nested-twice", {"model.safetensors": model, "config.json": '{"a":{"b":{"dtype":1,"dtype":2}}}'}, 'config.json: "dtype" 2 times')
    add("shard-broken", {"a.safetensors": model, "b.safetensors": "x"}, "b.safetensors: 1 bytes, too short")
    add("name-in-two-files", {"a.safetensors": model, "b.safetensors": model},
        'b.safetensors: tensor "a": also in a.safetensors, and no index decides')
    add("index-names-absent-file", {"model.safetensors.index.json": index(a="x.safetensors"), "a.safetensors": model},
        'model.safetensors.index.json: names "x.safetensors", which is absent')
    add("index-names-link-to-nothing", {"model.safetensors.index.json": index(a="x.safetensors")},
        'names "x.safetensors", which is absent', links={"x.safetensors": "gone"})
    add("index-names-another-model", {"model.safetensors.index.json": index(a="a.safetensors", b="b.safetensors"), "a.safetensors": model, "b.safetensors": model},
        "b.safetensors: none of the tensors that model.safetensors.index.json says are in it")
    add("index-names-the-wrong-file", {"model.safetensors.index.json": index(a="a.safetensors", b="a.safetensors", c="b.safetensors"),
                                       "a.safetensors": model, "b.safetensors": two_tensors},
        'a.safetensors: tensor "b": in model.safetensors.index.json, not in the file, but in b.safetensors')
    sliced = file_of('{"__metadata__":{"DCP_SHARDING_INFO":"{\\"a\\":{\\"saved_offsets\\":[0]}}"},' + tensor() + "}", b"\0" * 4).decode("latin-1")
    add("slice-alone", {"shard-00001-model-00001-of-00001.safetensors": sliced},
        "slices of tensors, as one rank saved them (DCP_SHARDING_INFO); open the directory", open="shard-00001-model-00001-of-00001.safetensors")
    add("slice-in-an-index", {"model.safetensors.index.json": index(a="s.safetensors"), "s.safetensors": sliced},
        "s.safetensors: slices of tensors, as one rank saved them (DCP_SHARDING_INFO); the index cannot say where they lie")
    add("slice-beside-the-whole", {"a.safetensors": model, "s.safetensors": sliced},
        'tensor "a": whole in one file, and slices in others')
    header_of = lambda begins: '{"__metadata__":{"DCP_SHARDING_INFO":"' + json.dumps({"g": {"saved_offsets": begins}, "q": {"saved_offsets": [0, 0]}}).replace('"', '\\"') + '"},'
    codes = tensor('"q"', dtype='"I8"', shape="[1,4]", offsets="[4,8]")
    piece = lambda begins, more: file_of(header_of(begins) + tensor('"g"', shape="[1,4]", offsets="[0,4]") + more + "}", b"\0" * (8 if more else 4)).decode("latin-1")
    add("slices-of-codes", {"s1.safetensors": piece([0, 0], "," + codes), "s2.safetensors": piece([0, 4], "")},
        'tensor "g": slices that are not cut along the first dimension, in a checkpoint with codes')
    add("slices-of-ranks", {"consolidated.00.safetensors": model, "consolidated.01.safetensors": other},
        "consolidated.00.safetensors: slices of 2 ranks of tensor parallelism (consolidated.*.safetensors), which ckfs does not join")
    add("index-leaves", {"model.safetensors.index.json": index(a="../a.safetensors")}, "leaves the directory")
    add("index-broken", {"model.safetensors.index.json": "{", "a.safetensors": model}, "model.safetensors.index.json: at byte 1: not JSON")
    add("series-with-a-gap", {"model-00001-of-00003.safetensors": model, "model-00003-of-00003.safetensors": other},
        "model-*-of-*.safetensors: number 2 of 3 is missing")
    add("series-without-end", {"model-0-of-2.safetensors": model}, "number 1 of 2 is missing")
    add("series-of-two-billions", {"model-00001-of-2147483647.safetensors": model}, "number 2 of 2147483647 is missing")
    add("link-to-nothing", {"model-00001-of-00002.safetensors": model}, "model-00002-of-00002.safetensors: a link to ../../blobs/abc, which is absent or out of reach (its links lead to the blobs of a hub cache: bind the whole models--* directory",
        links={"model-00002-of-00002.safetensors": "../../blobs/abc"})
    add("incomplete-only", {"config.json": "{}", "model.safetensors.incomplete": "x"},
        "model.safetensors.incomplete: a download that was not finished (complete the download with: hf download REPOSITORY --local-dir")
    add("incomplete-in-cache", {"a.safetensors": model, ".cache/huggingface/download/b.incomplete": "x"},
        ".cache/huggingface/download/b.incomplete: a download that was not finished")
    dense = '[{"path": "2_Dense", "type": "sentence_transformers.models.Dense"}]'
    add("incomplete-module", {"model.safetensors": model, "modules.json": dense, "2_Dense/config.json": "{}",
                              ".cache/huggingface/download/b.incomplete": "x"},
        "2_Dense: no weights, and .cache/huggingface/download/b.incomplete is a download that was not finished")
    add("incomplete-file", {"m.safetensors.incomplete": "x"}, "a download that was not finished", open="m.safetensors.incomplete")
    hub = "models--org--name"
    add("hub-no-snapshot", {f"{hub}/blobs/x": ""}, "a hub cache entry without a snapshot (complete it with: hf download org/name)",
        open=hub, links={f"{hub}/snapshots/": ""})
    add("hub-ref-to-nothing", {f"{hub}/refs/main": "abc\n", f"{hub}/snapshots/def/config.json": "{}"},
        "refs/main names the snapshot abc, which is absent (complete it with: hf download org/name)", open=hub)
    add("hub-ref-leaves", {f"{hub}/refs/main": "../..", f"{hub}/snapshots/def/config.json": "{}"},
        "refs/main names the snapshot ../.., which is absent", open=hub)
    add("hub-ref-control", {f"{hub}/refs/main": "a\x1b[31m", f"{hub}/snapshots/def/config.json": "{}"},
        "refs/main has control characters", open=hub)
    add("hub-snapshot-is-a-link", {f"{hub}/refs/main": "a", f"{hub}/blobs/x": ""},
        "refs/main names the snapshot a, which is absent", open=hub, links={f"{hub}/snapshots/a": "/etc"})
    add("hub-two-snapshots", {f"{hub}/blobs/x": "", f"{hub}/snapshots/a/c": "", f"{hub}/snapshots/b/c": ""},
        "no refs/main, and 2 snapshots: name one of them", open=hub)
    add("hub-incomplete", {f"{hub}/refs/main": "abc", f"{hub}/blobs/1.incomplete": "x", f"{hub}/snapshots/abc/config.json": "{}"},
        "blobs/1.incomplete: a download that was not finished (complete the download with: hf download org/name)", open=hub)
    add("hub-missing-shard", {f"{hub}/refs/main": "abc", f"{hub}/blobs/1.incomplete": "x",
                              f"{hub}/snapshots/abc/model.safetensors.index.json": index(a="x.safetensors")},
        'names "x.safetensors", which is absent (complete the download with: hf download org/name)', open=f"{hub}/snapshots/abc")
    add("deep-directories", {"d/" * 33 + "f": "", "model.safetensors": model}, "directories are nested more than 32 deep")


for kind in ["header", "index", "config", "quant_state"]:
    shutil.rmtree(here / kind, ignore_errors=True)
headers()
indexes()
configs()
quant_states()
directories()
(here / "cases.json").write_text(json.dumps(cases, indent=1) + "\n")
print(len(cases), "cases")
