#!/usr/bin/env python3
"""What torch.distributed.checkpoint saves of a wrapped state is shown as a torch file of it is: the
model's tensors under the model's names."""
import itertools
import json
import pathlib
import pickle
import random
import tempfile
import unittest

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.metadata import (ChunkStorageMetadata, MetadataIndex,
                                                   TensorStorageMetadata)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from safetensors.torch import load_file
from support import TESTS, WorkDirectory, mounted, run, same_bits


def model():
    return {"model.embed.weight": torch.randn(8, 4), "model.layers.0.w": torch.randn(3, 5),
            "lm_head.weight": torch.randn(8, 4)}


def in_boxes(rng, tensor):
    """Pairs of offsets and a box of the tensor there, whose elements lie in an order of their own,
    mostly that of rows."""
    cuts = [sorted({0, size, *(rng.randrange(size) for _ in range(rng.randrange(3)))})
            for size in tensor.shape]
    for box in itertools.product(*(itertools.pairwise(cut) for cut in cuts)):
        piece = tensor[tuple(slice(*bounds) for bounds in box)]
        order = sorted(range(tensor.ndim), key=lambda d: d if rng.random() < 0.8 else -d)
        back = [order.index(d) for d in range(tensor.ndim)]
        yield torch.Size([begin for begin, _ in box]), piece.permute(order).contiguous().permute(back)


def load_shards(rank, ranks, directory, work, kinds):
    """A rank of a program that loads its shards of tensors of these kinds, {name: (shape, dtype)}. The
    first one saves what all have together."""
    dist.init_process_group("gloo", init_method=f"file://{work}/meeting", rank=rank,
                            world_size=ranks)
    mesh = init_device_mesh("cpu", (ranks,))
    state = {name: distribute_tensor(torch.zeros(shape, dtype=dtype), mesh,
                                     [Shard(len(name) % len(shape)) if shape else Replicate()])
             for name, (shape, dtype) in kinds.items()}
    dcp.load(state, checkpoint_id=directory)
    whole = {name: tensor.full_tensor() for name, tensor in state.items()}
    if rank == 0:
        torch.save(whole, f"{work}/whole.pt")
    dist.destroy_process_group()


class DcpDirectory(WorkDirectory):
    def same(self, got, want):
        self.assertEqual(set(got), set(want))
        for name in want:
            self.assertTrue(same_bits(got[name], want[name]), name)


class Dcp(DcpDirectory):
    def save(self, state):
        path = tempfile.mkdtemp(dir=self.work)
        dcp.save(state, checkpoint_id=path, no_dist=True)
        return path

    def shown(self, source, *options):
        with mounted(source, self.work / "mnt", *options) as mnt:
            tensors = {name: tensor.clone() for name, tensor in
                       load_file(mnt / "safetensors/model.safetensors").items()}
        return tensors

    def test_a_wrapped_model_has_the_names_of_the_model(self):
        for key in ("model", "state_dict", "module", "model_state_dict"):
            with self.subTest(key):
                state = {key: model(), "optim": {"step": torch.ones(2), "exp_avg": torch.ones(3)},
                         "epoch": 3}
                source = self.save(state)
                self.same(self.shown(source), state[key])
                text = run("inspect", source).decode()
                self.assertIn("optim: 2 tensors beside the model's; left out", text)
                self.assertIn("epoch: 1 values that are not tensors; left out", text)

    def test_a_model_in_a_dictionary_around_all_has_its_names(self):
        state = {"model": model(), "optim": {"model": {"exp_avg": torch.ones(3)}}, "step": 3}
        source = self.save({"app": state, "epoch": 4})
        self.same(self.shown(source), state["model"])
        text = run("inspect", source).decode()
        self.assertIn("  key: app.model\n", text)
        self.assertIn("app.optim: 1 tensors beside the model's; left out (--key app.optim", text)
        self.assertIn("epoch: 1 values that are not tensors; left out", text)
        self.same(self.shown(source, "-o", "key=app.optim.model"), state["optim"]["model"])
        # Not below what only goes on with a training.
        beside = {"w": torch.ones(2), "optim": state["optim"]}
        self.same(self.shown(self.save(beside)), {"w": beside["w"]})

    def test_equals_the_torch_file_of_the_same_state(self):
        state = {"model": model(), "optim": {"exp_avg": torch.ones(3)}}
        source = self.save(state)
        file = self.work / "state.pt"
        torch.save(state, file)
        self.same(self.shown(source), self.shown(file))

    def test_names_that_begin_with_a_usual_key_are_not_wrapped_by_it(self):
        state = model()
        self.same(self.shown(self.save(state)), state)
        tied = {name: tensor for name, tensor in state.items() if name.startswith("model.")}
        source = self.save(tied)
        self.same(self.shown(source), tied)
        self.assertIn("model: all names begin with it; --key model shows them without",
                      run("inspect", source).decode())

    def save_in_boxes(self, rng, state):
        """Items that torch writes, as the chunks of tensors: what many ranks leave behind."""
        boxes = {(name, offsets): box for name, tensor in state.items()
                 for offsets, box in in_boxes(rng, tensor)}
        path = pathlib.Path(self.save({str(n): box for n, box in enumerate(boxes.values())}))
        file = path / ".metadata"
        metadata = pickle.loads(file.read_bytes())
        items, places = metadata.state_dict_metadata, metadata.storage_data
        metadata.state_dict_metadata, metadata.storage_data = {}, {}
        metadata.planner_data = {name: (name,) for name in state}
        for n, ((name, offsets), box) in enumerate(boxes.items()):
            whole = metadata.state_dict_metadata.setdefault(name, TensorStorageMetadata(
                properties=items[str(n)].properties, size=state[name].shape, chunks=[]))
            whole.chunks.append(ChunkStorageMetadata(offsets=offsets, sizes=box.shape))
            metadata.storage_data[MetadataIndex(name, offsets)] = places[
                MetadataIndex(str(n), torch.Size([0] * box.ndim))]
        file.write_bytes(pickle.dumps(metadata))
        return path

    def test_chunks_whose_elements_lie_in_any_order(self):
        for seed in range(30):
            rng = random.Random(seed)
            with self.subTest(seed=seed):
                torch.manual_seed(seed)
                shapes = [[rng.randrange(1, 40) for _ in range(rng.randrange(1, 4))]
                          for _ in range(4)]
                state = {f"w{n}": torch.randn(shape).to(rng.choice([torch.float32, torch.bfloat16]))
                         for n, shape in enumerate(shapes)}
                source = self.save_in_boxes(rng, state)
                dcp_to_torch_save(source, self.work / "reference.pt")
                want = torch.load(self.work / "reference.pt", weights_only=True)
                self.same(want, state)
                self.same(self.shown(source), want)

    def test_a_key_shows_what_is_below_it(self):
        state = {"model": model(), "optim": {"exp_avg": torch.ones(3)}}
        source = self.save(state)
        with mounted(source, self.work / "mnt", "-o", "key=optim") as mnt:
            got = load_file(mnt / "safetensors/model.safetensors")
            self.same(got, state["optim"])
            got = None


def linear_experts(prefix, count, names=("gate_proj", "up_proj", "down_proj")):
    gate, up, down = names
    return {f"{prefix}.experts.{e}.{name}.weight": torch.randn(8, 5) if name == down
            else torch.randn(5, 8) for e in range(count) for name in (gate, up, down)}


class Trainers(DcpDirectory):
    """Models whose names and shapes a trainer changed: what each says of its own names, as formulas
    (prime_rl/trainer/models/*/converting_*.py; VeOmni's checkpoint_tensor_converter.py)."""

    CONFIG = {"num_hidden_layers": 2, "hidden_size": 8, "moe_intermediate_size": 5,
              "n_shared_experts": 2}

    def views(self, source, config, *views):
        """The tensors of each."""
        directory = pathlib.Path(tempfile.mkdtemp(dir=self.work))
        (directory / "config.json").write_text(json.dumps({**self.CONFIG, **config}))
        with mounted(source, self.work / "mnt", "--config", directory) as mnt:
            return [{name: tensor.clone() for path in (mnt / view).glob("*.safetensors")
                     for name, tensor in load_file(path).items()} for view in views]

    def save_prime(self, model):
        """As prime-rl's AppState is saved."""
        path = tempfile.mkdtemp(dir=self.work)
        dcp.save({"app": {"model": model, "progress": {"step": 3, "total_tokens": 4},
                          "optimizers": {"state": {name: {"exp_avg": torch.ones(3)}
                                                   for name in model}}}},
                 checkpoint_id=path, no_dist=True)
        return path

    def check_prime(self, family, config, hf, prime):
        """`hf` under prime-rl's names: those of `prime` have others."""
        config = {"model_type": family, **config}
        with self.subTest(family):
            source = self.save_prime(prime)
            whole, stored, rounded = self.views(source, config, "fp32-safetensors", "safetensors",
                                                "bf16-safetensors")
            self.same(whole, hf)
            self.same(stored, prime)
            self.assertEqual({name for name in hf if name.endswith("bias")},
                             {name for name in hf if rounded[name].dtype == torch.float32})
            text = run("inspect", source).decode()
            self.assertIn("  key: app.model\n", text)
            self.assertIn(f"app.optimizers: {len(prime)} tensors beside the model's; left out", text)
            self.assertIn("prime-rl's names are shown as they are; with --config MODEL", text)

    def model(self, prefix="model."):
        names = {f"{prefix}embed_tokens.weight": torch.randn(7, 8), f"{prefix}norm.weight": torch.randn(8),
                 "lm_head.weight": torch.randn(7, 8)}
        for layer in range(2):
            names[f"{prefix}layers.{layer}.input_layernorm.weight"] = torch.randn(8)
            names[f"{prefix}layers.{layer}.self_attn.q_proj.weight"] = torch.randn(8, 8)
        return names

    def dense(self, layer=0):
        p = f"model.layers.{layer}.mlp"
        return {f"{p}.gate_proj.weight": torch.randn(6, 8), f"{p}.up_proj.weight": torch.randn(6, 8),
                f"{p}.down_proj.weight": torch.randn(8, 6)}

    def shared(self, prefix):
        return {f"{prefix}.gate_proj.weight": torch.randn(10, 8),
                f"{prefix}.up_proj.weight": torch.randn(10, 8),
                f"{prefix}.down_proj.weight": torch.randn(8, 10)}

    PRIME = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}

    def prime_experts(self, hf, mlp, names=PRIME, to=None):
        return {f"{to or mlp}.experts.{w}": torch.stack([hf[f"{mlp}.experts.{e}.{name}.weight"]
                                                         for e in range(3)])
                for w, name in names.items()}

    def test_of_prime_rl(self):
        common, dense = self.model(), self.dense()
        mlp = "model.layers.1.mlp"
        router, bias = torch.randn(3, 8), torch.randn(3)
        experts, shared = linear_experts(mlp, 3), self.shared(f"{mlp}.shared_experts")

        hf = {**common, **dense, **experts, f"{mlp}.gate.weight": router}
        prime = {**common, **dense, **self.prime_experts(hf, mlp), f"{mlp}.router.gate.weight": router}
        for count in ("num_experts", "num_local_experts"):  # the latter of transformers 5
            self.check_prime("qwen3_moe", {count: 3}, hf, prime)
        self.check_refusals(prime)

        hf |= {**shared, f"{mlp}.gate.e_score_correction_bias": bias}
        glm = {**prime, f"{mlp}.expert_bias": bias}
        glm |= {f"{mlp}.shared_expert.{w}": shared[f"{mlp}.shared_experts.{name}.weight"]
                for w, name in self.PRIME.items()}
        self.check_prime("glm4_moe", {"n_routed_experts": 3}, hf, glm)
        older = {name: tensor[None] if ".shared_expert." in name else tensor
                 for name, tensor in glm.items()}
        self.check_prime("glm_moe_dsa", {"n_routed_experts": 3}, hf, older)

        alike = {f"{mlp}.router.gate.weight": router, f"{mlp}.expert_bias": bias}
        hf = {**common, **dense, **experts, **shared, **alike}
        afmoe = {name: tensor for name, tensor in glm.items()}
        self.check_prime("afmoe", {"num_experts": 3, "num_shared_experts": 2}, hf, afmoe)

        shared = self.shared(f"{mlp}.shared_expert")
        hf = {**common, **dense, **experts, **shared, f"{mlp}.gate.weight": router,
              f"{mlp}.experts.e_score_correction_bias": bias}
        laguna = {**prime, f"{mlp}.expert_bias": bias}
        laguna |= {f"model.layers.1.shared_expert.{w}.weight": shared[f"{mlp}.shared_expert.{name}.weight"]
                   for w, name in self.PRIME.items()}
        self.check_prime("laguna", {"num_experts": 3}, hf, laguna)

        hf, prime = dict(common), dict(common)
        for layer in range(2):
            p = f"model.layers.{layer}"
            experts = linear_experts(f"{p}.block_sparse_moe", 3, ("w1", "w3", "w2"))
            hf |= {**experts, f"{p}.block_sparse_moe.gate.weight": router,
                   f"{p}.block_sparse_moe.e_score_correction_bias": bias}
            prime |= {**self.prime_experts(experts, f"{p}.block_sparse_moe",
                                           {"w1": "w1", "w2": "w2", "w3": "w3"}, f"{p}.mlp"),
                      f"{p}.mlp.router.gate.weight": router, f"{p}.mlp.expert_bias": bias}
        self.check_prime("minimax_m2", {"num_local_experts": 3, "intermediate_size": 5}, hf, prime)

        common = self.model("model.language_model.")
        hf, prime = dict(common), dict(common)
        for layer in range(2):
            p = f"model.language_model.layers.{layer}"
            experts, shared = linear_experts(f"{p}.mlp", 3), self.shared(f"{p}.mlp.shared_expert")
            hf |= {**experts, **shared, f"{p}.mlp.gate.weight": router,
                   f"{p}.mlp.shared_expert_gate.weight": router[:1]}
            prime |= {**self.prime_experts(experts, f"{p}.mlp"), f"{p}.mlp.router.gate.weight": router,
                      f"{p}.shared_expert_gate.weight": router[:1]}
            prime |= {f"{p}.shared_expert.{w}.weight": shared[f"{p}.mlp.shared_expert.{name}.weight"]
                      for w, name in self.PRIME.items()}
        self.check_prime("qwen3_5_moe", {"text_config": {**self.CONFIG, "num_experts": 3}}, hf, prime)

    def test_of_prime_rl_without_gates(self):
        """Nemotron-H: a layer is a mamba, attention or experts, and w3 has no elements."""
        names = {"backbone.embeddings.weight": "model.embed_tokens.weight", "lm_head.weight": "lm_head.weight",
                 "backbone.norm_f.weight": "model.norm.weight"}
        for layer, (part, keys) in enumerate({"mamba": ["A_log", "conv1d.weight", "in_proj.weight"],
                                              "self_attn": ["q_proj.weight", "o_proj.weight"]}.items()):
            names[f"backbone.layers.{layer}.norm.weight"] = f"model.layers.{layer}.norm.weight"
            names |= {f"backbone.layers.{layer}.mixer.{key}": f"model.layers.{layer}.{part}.{key}" for key in keys}
        names["backbone.layers.2.norm.weight"] = "model.layers.2.norm.weight"
        mixer, mlp = "backbone.layers.2.mixer", "model.layers.2.mlp"
        names |= {f"{mixer}.shared_experts.{m}_proj.weight": f"{mlp}.shared_expert.{m}_proj.weight" for m in ("up", "down")}
        names |= {f"{mixer}.{m}.weight": f"{mlp}.{m}.weight" for m in ("fc1_latent_proj", "fc2_latent_proj")}
        hf = {name: torch.randn(7, 8) for name in names}
        prime = {to: hf[name] for name, to in names.items()}
        hf |= {f"{mixer}.gate.weight": torch.randn(3, 8), f"{mixer}.gate.e_score_correction_bias": torch.randn(3)}
        prime |= {f"{mlp}.router.gate": hf[f"{mixer}.gate.weight"],
                  f"{mlp}.router.e_score_correction_bias": hf[f"{mixer}.gate.e_score_correction_bias"]}
        for e in range(3):
            hf |= {f"{mixer}.experts.{e}.up_proj.weight": torch.randn(5, 4),
                   f"{mixer}.experts.{e}.down_proj.weight": torch.randn(4, 5)}
        prime |= self.prime_experts(hf, mixer, {"w1": "up_proj", "w2": "down_proj"}, mlp)
        prime[f"{mlp}.experts.w3"] = torch.empty(0)
        self.check_prime("nemotron_h", {"num_hidden_layers": 3, "n_routed_experts": 3, "moe_latent_size": 4}, hf, prime)

    def check_refusals(self, prime):
        """What does not fit is named: `prime` is a Qwen3 MoE."""
        mlp = "model.layers.1.mlp"
        lost = {name: tensor for name, tensor in prime.items() if name != f"{mlp}.experts.w3"}
        odd = {**prime, f"{mlp}.experts.w2": torch.randn(3, 8, 6)}
        for config, state, said in (
                ({"num_experts": 3}, lost, "no tensor fits"),
                ({"num_experts": 3}, odd, f'"{mlp}.experts.w2": has shape [3, 8, 6]'),
                ({"num_experts": 4}, prime, "has shape [3, 5, 8]"),
                ({"model_type": "mixtral"}, prime, "no rules lead from prime-rl's names to this model")):
            with self.subTest(said):
                directory = pathlib.Path(tempfile.mkdtemp(dir=self.work))
                (directory / "config.json").write_text(json.dumps(
                    {**self.CONFIG, "model_type": "qwen3_moe", **config}))
                text = run("inspect", "--all", self.save_prime(state), "--config",
                           directory).decode()
                self.assertIn(said, text)

    def test_of_veomni(self):
        hf = {**self.model(), **self.dense(), **linear_experts("model.layers.1.mlp", 3)}
        rest = {name: tensor for name, tensor in hf.items() if ".experts." not in name}
        p = "model.layers.1.mlp.experts"
        gate, up, down = (torch.stack([hf[f"{p}.{e}.{name}_proj.weight"] for e in range(3)])
                          for name in ("gate", "up", "down"))
        config = {"model_type": "qwen3_moe", "num_experts": 3}
        for stacked in ({f"{p}.gate_up_proj": torch.cat([gate, up], 1), f"{p}.down_proj": down},
                        # Before transformers 5.
                        {f"{p}.gate_proj": gate, f"{p}.up_proj": up, f"{p}.down_proj": down}):
            with self.subTest(sorted(stacked)):
                source = tempfile.mkdtemp(dir=self.work)
                dcp.save({"model": {**rest, **stacked}, "optimizer": {"state": {"a": torch.ones(2)}}},
                         checkpoint_id=source, no_dist=True)
                linear, fused = self.views(source, config, "fp32-safetensors@experts=linear",
                                           "fp32-safetensors@experts=fused")
                self.same(linear, hf)
                self.same(fused, {**rest, f"{p}.gate_up_proj": torch.cat([gate, up], 1),
                                  f"{p}.down_proj": down})


class Written(DcpDirectory):
    """Checkpoints that ckfs writes, loaded by torch."""

    def loaded(self, directory, want):
        """What dcp.load puts into zeroed tensors of these shapes."""
        got = {name: torch.zeros_like(tensor) for name, tensor in want.items()}
        dcp.load(got, checkpoint_id=directory, no_dist=True)
        return got

    def test_for_megatron_load_from_a_mount_and_from_a_copy(self):
        case = TESTS / "data/megatron/back-qwen3-moe"
        source = case / "source"
        weights = load_file(source / "model.safetensors")
        gate, up = (torch.stack([weights[f"model.layers.1.mlp.experts.{e}.{half}_proj.weight"]
                                 for e in range(4)]) for half in ("gate", "up"))
        want = {"decoder.layers.1.mlp.experts.experts.linear_fc1.weight": torch.cat([gate, up], 1),
                "embedding.word_embeddings.weight": weights["model.embed_tokens.weight"]}
        out = self.work / "out"
        run("export", source, "megatron-torch-dist", out)
        with mounted(source, self.work / "mnt") as mnt:
            for directory in (out / "release", mnt / "megatron-torch-dist/release"):
                self.same(self.loaded(directory, want), want)
                common = torch.load(directory / "common.pt")
                self.assertEqual((0, 3.0), (common["iteration"], common["checkpoint_version"]))

    def test_of_a_model_load_by_its_own_names(self):
        source = TESTS / "data/megatron/back-qwen3-moe/source"
        want = load_file(source / "model.safetensors")
        with mounted(source, self.work / "mnt") as mnt:
            for view, dtype in (("dcp", torch.bfloat16), ("dcp@dtype=fp32", torch.float32)):
                cast = {name: tensor.to(dtype) for name, tensor in want.items()}
                self.same(self.loaded(mnt / view, cast), cast)
            file = self.work / "state.pt"
            dcp_to_torch_save(mnt / "dcp", file)
        self.same(torch.load(file), want)

    def test_load_into_the_shards_of_two_ranks(self):
        source = TESTS / "data/megatron/back-qwen3-moe/source"
        want = load_file(source / "model.safetensors")
        kinds = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in want.items()}
        with mounted(source, self.work / "mnt") as mnt:
            torch.multiprocessing.spawn(load_shards, (2, str(mnt / "dcp"), str(self.work), kinds),
                                        nprocs=2)
        self.same(torch.load(self.work / "whole.pt"), want)

    def test_for_torchtitan_load_as_what_it_wrote_itself(self):
        for case in ("titan-llama3-dcp", "titan-deepseek3-mtp-dcp"):
            case = TESTS / "data/fsdp" / case
            written = case / "source/step-10"
            with open(written / ".metadata", "rb") as file:
                items = pickle.load(file).state_dict_metadata
            model = {name: torch.zeros(item.size, dtype=item.properties.dtype)
                     for name, item in items.items() if isinstance(item, TensorStorageMetadata)
                     and not name.startswith(("optimizer.", "train_state."))}
            want = self.loaded(written, model)
            out, view = self.work / case.name, "dcp@names=torchtitan,dtype=fp32"
            run("export", written, "fp32-safetensors", out, "--config", case / "source-config")
            with mounted(out, self.work / "mnt") as mnt:
                self.same(self.loaded(mnt / view, model), want)
            run("export", out, view, self.work / f"{case.name}-dcp")
            self.same(self.loaded(self.work / f"{case.name}-dcp", model), want)
            # torchtitan loads a whole state dict of its model; nothing more may be asked of it.
            with open(self.work / f"{case.name}-dcp/.metadata", "rb") as file:
                self.assertEqual(set(model), set(pickle.load(file).state_dict_metadata))

    def test_store_tied_tensors_as_often_as_torch_does(self):
        embedding = torch.randn(64, 32)
        tied = {"lm_head.weight": embedding, "model.embed_tokens.weight": embedding}
        directory = self.work / "torch"
        dcp.save(tied, checkpoint_id=directory, no_dist=True)
        stored = sum(path.stat().st_size for path in directory.glob("*.distcp"))
        self.assertGreater(stored, 2 * embedding.nbytes)

    def test_are_what_torch_would_write_but_for_places(self):
        out = self.work / "out"
        run("export", TESTS / "data/megatron/back-qwen3/source", "megatron-torch-dist", out)
        with open(out / "release/.metadata", "rb") as file:
            metadata = pickle.load(file)
        for name, stored in metadata.state_dict_metadata.items():
            self.assertIsInstance(stored, TensorStorageMetadata)
            again = dcp.planner_helpers._create_write_items(name, torch.zeros(
                stored.size, dtype=stored.properties.dtype))
            self.assertEqual(stored.properties, again[0].tensor_data.properties, name)
            for index, chunk in enumerate(stored.chunks):
                place = metadata.storage_data[MetadataIndex(name, chunk.offsets, index)]
                self.assertTrue((out / "release" / place.relative_path).is_file())


if __name__ == "__main__":
    unittest.main(verbosity=2)
