#!/usr/bin/env python3
"""What torch.distributed.checkpoint saves of a wrapped state is shown as a torch file of it is: the
model's tensors under the model's names."""
import itertools
import pathlib
import pickle
import random
import tempfile
import unittest

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.metadata import (ChunkStorageMetadata, MetadataIndex,
                                                   TensorStorageMetadata)
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
