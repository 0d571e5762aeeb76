#!/usr/bin/env python3
"""Takes golden cases of torch and DeepSpeed into tests/data: the sources whole, the expected files
as digests.

    make_expected_torch.py FIXTURES tests/data [FAMILY...]
                                    FIXTURES has the folders deepspeed/, fsdp/ and torch/

Needs torch and safetensors. What the tools themselves wrote (CASE/expected) is only read and
digested. The views that they do not write, {bf16,fp16,fp32}-safetensors, are cast by torch's own
`.to` on CPU from the tensors as stored; tied tensors are copies there.

expected.json of a case:
    tensors  {view: {tensor: digest}}         as digest.py takes and compares them
    files    {view: {file: sha256}}           of files that must be equal byte for byte
    bins     {view: {file: {tensor: digest}}} of torch files, in the order of the file's dictionary
    ties     {view: {alias: name}}            of torch files: tensors that are one storage
"""
import hashlib
import json
import os
import shutil
import sys

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save

DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ", torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
    torch.float8_e8m0fnu: "F8_E8M0", torch.complex64: "C64", torch.bool: "BOOL",
    torch.uint8: "U8", torch.uint16: "U16", torch.uint32: "U32", torch.uint64: "U64",
    torch.int8: "I8", torch.int16: "I16", torch.int32: "I32", torch.int64: "I64",
}
CASTABLE = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
CASTS = {"bf16-safetensors": torch.bfloat16, "fp16-safetensors": torch.float16,
         "fp32-safetensors": torch.float32}


def digest(tensor, computed=False):
    tensor = tensor.detach().contiguous()
    if computed:
        # Every NaN as the positive quiet one, whose bits torch makes of a NaN filled in.
        tensor = tensor.clone()
        tensor[tensor.isnan()] = float("nan")
    data = tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
    return {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "computed": computed,
            "sha256": hashlib.sha256(data).hexdigest()}


def digests(tensors):
    return {name: digest(tensors[name]) for name in sorted(tensors)}


def file_digest(path):
    with open(path, "rb") as f:
        return hashlib.sha256(f.read()).hexdigest()


def load_safetensors(folder):
    tensors = {}
    for name in sorted(os.listdir(folder)):
        if name.endswith(".safetensors"):
            tensors.update(load_file(os.path.join(folder, name)))
    return tensors


def cast(tensor, dtype):
    if tensor.dtype == dtype or tensor.dtype not in CASTABLE:
        return digest(tensor)
    return digest(tensor.to(dtype), computed=True)


def ties(state):
    first, result = {}, {}
    for name, tensor in state.items():
        key = (tensor.data_ptr(), tensor.shape)
        if tensor.numel() and first.setdefault(key, name) != name:
            result[name] = first[key]
    return result


def view_of(folder, fixture):
    """The name that ckfs gives to what the fixture calls `folder`."""
    if folder == "tensors":
        return "safetensors"
    parameters = []
    if folder.endswith("-bin"):
        parameters.append("format=bin")
    if "-sharded" in folder:
        parameters.append("max_shard=" + fixture["max_shard_size_of_sharded"])
    return "fp32-consolidated" + ("@" + ",".join(parameters) if parameters else "")


# What dcp_to_torch_save leaves in the names: the key below which the saved dictionary had the model.
WRAPPED = {"dcp-accelerate-fsdp-folders-w2": "model."}


def unwrapped(path, prefix):
    """{name: tensor} without the prefix, and the digest of safetensors' file of them."""
    tensors = {name.removeprefix(prefix): tensor for name, tensor in load_safetensors(path).items()}
    assert len(tensors) == sum(name.startswith(prefix) for name in load_safetensors(path))
    with safe_open(os.path.join(path, "model.safetensors"), "pt") as file:
        data = save(tensors, file.metadata())
    return tensors, {"model.safetensors": hashlib.sha256(data).hexdigest()}


def expect(case):
    with open(os.path.join(case, "fixture.json")) as f:
        fixture = json.load(f)
    result = {"tensors": {}, "files": {}, "bins": {}, "ties": {}}
    stored = None
    for folder in sorted(os.listdir(os.path.join(case, "expected"))):
        path = os.path.join(case, "expected", folder)
        view = view_of(folder, fixture)
        equal = {}
        for name in sorted(os.listdir(path)):
            file = os.path.join(path, name)
            if name.endswith(".bin"):
                state = torch.load(file, weights_only=True)
                result["bins"].setdefault(view, {})[name] = {k: digest(t) for k, t in state.items()}
                result["ties"].setdefault(view, {}).update(ties(state))
                if folder == "fp32-consolidated-bin" and stored is None:
                    stored = state
            else:
                equal[name] = file_digest(file)
        prefix = WRAPPED.get(os.path.basename(case))
        if prefix:
            stored, result["files"][view] = unwrapped(path, prefix)
            result["tensors"][view] = digests(stored)
            continue
        if equal:
            result["files"][view] = equal
        if any(name.endswith(".safetensors") for name in equal):
            tensors = load_safetensors(path)
            result["tensors"][view] = digests(tensors)
            if "-sharded" not in folder:
                stored = tensors
    if "deepspeed" in case.split(os.sep):
        result["tensors"].setdefault("fp32-consolidated", digests(stored))
    for view, dtype in CASTS.items():
        result["tensors"][view] = {name: cast(stored[name], dtype) for name in sorted(stored)}
    return result


def expect_views(case):
    """Of a case whose folders below expected/ are called as the views are."""
    views = {folder: load_safetensors(os.path.join(case, "expected", folder))
             for folder in sorted(os.listdir(os.path.join(case, "expected")))}
    stored = views["safetensors"]
    same_names = all(set(tensors) == set(stored) for tensors in views.values())
    result = {"tensors": {}, "files": {}, "bins": {}, "ties": {}}
    for view, tensors in views.items():
        # Under other names: what is not F32 was rounded from it.
        result["tensors"][view] = {
            name: digest(tensors[name], computed=tensors[name].dtype != (
                stored[name].dtype if same_names else torch.float32))
            for name in sorted(tensors)}
    for view, dtype in CASTS.items() if same_names else ():
        made = {name: cast(stored[name], dtype) for name in sorted(stored)}
        assert result["tensors"].setdefault(view, made) == made, view
    return result


def text_of(value, depth):
    """One tensor or file a line, so that a change is a readable diff."""
    if depth == 0 or not isinstance(value, dict) or not value:
        return json.dumps(value)
    lines = [f"{json.dumps(key)}: {text_of(below, depth - 1)}" for key, below in value.items()]
    return "{\n" + ",\n".join(lines) + "\n}"


def write_expected(path, expected):
    depth = {"tensors": 2, "files": 2, "bins": 3, "ties": 2}
    with open(path, "w") as f:
        f.write("{\n" + ",\n".join(f"{json.dumps(key)}: {text_of(value, depth[key])}"
                                    for key, value in expected.items()) + "\n}\n")


def main(fixtures, data, *families):
    for family in families or ("deepspeed", "fsdp", "torch"):
        for name in sorted(os.listdir(os.path.join(fixtures, family))):
            case = os.path.join(fixtures, family, name)
            if not os.path.isdir(os.path.join(case, "source")):
                continue
            refused = os.path.isfile(os.path.join(case, "expected", "error.txt"))
            out = os.path.join(data, family, name)
            shutil.rmtree(out, ignore_errors=True)
            shutil.copytree(os.path.join(case, "source"), os.path.join(out, "source"))
            shutil.copy(os.path.join(case, "fixture.json"), out)
            if os.path.isdir(os.path.join(case, "source-config")):
                shutil.copytree(os.path.join(case, "source-config"),
                                os.path.join(out, "source-config"))
            for folder, _, files in os.walk(out):
                os.chmod(folder, 0o755)
                for file in files:
                    os.chmod(os.path.join(folder, file), 0o644)
            if refused:
                continue
            expected = expect_views(case) if family == "fsdp" else expect(case)
            write_expected(os.path.join(out, "expected.json"), expected)
            print(f"{family}/{name}:", *expected["tensors"], *expected["bins"])


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
