#!/usr/bin/env python3
"""What people run today: a MaxText checkpoint restored by Orbax and saved by safetensors, or by Orbax for
other devices, all cores.

    baseline_orbax.py write DIR LAYERS SIZE
    baseline_orbax.py export SRC OUT
    baseline_orbax.py reshard SRC OUT

`write` makes the checkpoint: Llama's tree with hidden states of SIZE in BF16, its layers scanned, on 16
simulated devices, cut along the hidden dimension as MaxText shards it; and DIR/config.json beside the item
DIR/item. `export` restores every array to host memory and writes it as Hugging Face has it. `reshard` restores
the arrays onto 32 simulated devices, cut along the same dimensions by fsdp=16 and ep=2, and saves them as
they lie there. Prints nothing.
"""
import json
import os
import sys

os.environ["JAX_PLATFORMS"] = "cpu"
DEVICES = 32 if sys.argv[1:2] == ["reshard"] else 16
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={DEVICES}"

import jax  # noqa: E402
import ml_dtypes  # noqa: E402
import numpy as np  # noqa: E402
import orbax.checkpoint as ocp  # noqa: E402
from etils import epath  # noqa: E402

VOCABULARY = 32000
HEAD = 128


def shapes(layers, size):
    """Of MaxText's arrays by name, and which dimension is cut; None: none."""
    heads, mlp = size // HEAD, 4 * size
    inner = {"mlp.wi_0": ((size, layers, mlp), 0), "mlp.wi_1": ((size, layers, mlp), 0),
             "mlp.wo": ((mlp, layers, size), 2),
             "self_attention.query": ((size, layers, heads, HEAD), 0),
             "self_attention.key": ((size, layers, heads // 4, HEAD), 0),
             "self_attention.value": ((size, layers, heads // 4, HEAD), 0),
             "self_attention.out": ((heads, layers, HEAD, size), 3)}
    found = {f"decoder.layers.{name}.kernel": shape for name, shape in inner.items()}
    for name in ("pre", "post"):
        found[f"decoder.layers.{name}_self_attention_layer_norm.scale"] = ((size, layers), None)
    return {**found, "decoder.decoder_norm.scale": ((size,), None),
            "decoder.logits_dense.kernel": ((size, VOCABULARY), 0),
            "token_embedder.embedding": ((VOCABULARY, size), 1)}


def cut_by(axes, shape, cut):
    """A PartitionSpec that cuts dimension `cut`; None: none."""
    return jax.sharding.PartitionSpec(*(axes if k == cut else None for k in range(len(shape))))


def write(out, layers, size):
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("fsdp",))
    random = np.random.default_rng(0)
    noise = (random.standard_normal(1 << 26, dtype=np.float32) * 0.02).astype(ml_dtypes.bfloat16)
    tree = {}
    for number, (name, (shape, cut)) in enumerate(shapes(layers, size).items()):
        values = np.resize(np.roll(noise, 7919 * number), shape)
        *path, last = name.split(".")
        at = tree
        for key in path:
            at = at.setdefault(key, {})
        at[last] = jax.device_put(values, jax.sharding.NamedSharding(mesh, cut_by("fsdp", shape, cut)))
    ocp.PyTreeCheckpointer().save(os.path.abspath(os.path.join(out, "item")), {"params": {"params": tree}})
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": size,
              "num_hidden_layers": layers, "num_attention_heads": size // HEAD,
              "num_key_value_heads": size // HEAD // 4, "head_dim": HEAD, "intermediate_size": 4 * size,
              "vocab_size": VOCABULARY, "tie_word_embeddings": False, "rms_norm_eps": 1e-5,
              "rope_theta": 10000.0, "max_position_embeddings": 4096, "dtype": "bfloat16"}
    with open(os.path.join(out, "config.json"), "w") as f:
        json.dump(config, f)


def leaves(tree, path=""):
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{path}{key}.")
        else:
            yield path + key, value


def hugging_face(arrays):
    """to_huggingface's arrays, without its scaling of the queries."""
    layer = {"mlp.wi_0.kernel": "mlp.gate_proj", "mlp.wi_1.kernel": "mlp.up_proj",
             "mlp.wo.kernel": "mlp.down_proj", "self_attention.query.kernel": "self_attn.q_proj",
             "self_attention.key.kernel": "self_attn.k_proj",
             "self_attention.value.kernel": "self_attn.v_proj",
             "self_attention.out.kernel": "self_attn.o_proj",
             "pre_self_attention_layer_norm.scale": "input_layernorm",
             "post_self_attention_layer_norm.scale": "post_attention_layernorm"}
    found = {"model.embed_tokens.weight": arrays["token_embedder.embedding"],
             "lm_head.weight": arrays["decoder.logits_dense.kernel"].T,
             "model.norm.weight": arrays["decoder.decoder_norm.scale"]}
    for name, target in layer.items():
        array = arrays["decoder.layers." + name]
        for number in range(array.shape[1]):
            one = array[:, number]
            if one.ndim == 3:
                one = one.reshape(-1, one.shape[2]) if "out" in name else one.reshape(one.shape[0], -1)
            found[f"model.layers.{number}.{target}.weight"] = one.T
    return found


def export(source, out):
    source = os.path.join(source, "item")
    handler = ocp.PyTreeCheckpointHandler()
    tree = handler.metadata(epath.Path(source)).tree
    arguments = jax.tree.map(lambda leaf: ocp.RestoreArgs(restore_type=np.ndarray), tree,
                             is_leaf=lambda leaf: hasattr(leaf, "shape"))
    restored = ocp.PyTreeCheckpointer().restore(epath.Path(source), restore_args=arguments)
    write_safetensors(hugging_face(dict(leaves(restored["params"]["params"]))),
                      os.path.join(out, "model.safetensors"))


def reshard(source, out):
    with open(os.path.join(source, "config.json")) as f:
        config = json.load(f)
    cuts = shapes(config["num_hidden_layers"], config["hidden_size"])
    mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(16, 2), ("fsdp", "expert"))
    source = os.path.join(source, "item")
    tree = ocp.PyTreeCheckpointHandler().metadata(epath.Path(source)).tree

    def target(path, _leaf):
        shape, cut = cuts[".".join(key.key for key in path[2:])]  # below params.params
        sharding = jax.sharding.NamedSharding(mesh, cut_by(("fsdp", "expert"), shape, cut))
        return ocp.ArrayRestoreArgs(sharding=sharding)

    arguments = jax.tree_util.tree_map_with_path(target, tree, is_leaf=lambda leaf: hasattr(leaf, "shape"))
    checkpointer = ocp.PyTreeCheckpointer()
    restored = checkpointer.restore(epath.Path(source), restore_args=arguments)
    checkpointer.save(os.path.abspath(os.path.join(out, "item")), restored)


def write_safetensors(arrays, path):
    """The header and the bytes: safetensors' own numpy writer knows no BF16."""
    header, at = {}, 0
    for name, array in arrays.items():
        header[name] = {"dtype": "BF16", "shape": list(array.shape), "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for array in arrays.values():
            f.write(np.ascontiguousarray(array).view(np.uint8).data)


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        {"export": export, "reshard": reshard}[sys.argv[1]](*sys.argv[2:])
