#!/usr/bin/env python3
"""What torch.distributed.checkpoint saves of a wrapped state is shown as a torch file of it is: the
model's tensors under the model's names."""
import tempfile
import unittest

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from support import WorkDirectory, mounted, run, same_bits


def model():
    return {"model.embed.weight": torch.randn(8, 4), "model.layers.0.w": torch.randn(3, 5),
            "lm_head.weight": torch.randn(8, 4)}


class Dcp(WorkDirectory):
    def save(self, state):
        path = tempfile.mkdtemp(dir=self.work)
        dcp.save(state, checkpoint_id=path, no_dist=True)
        return path

    def shown(self, source, *options):
        with mounted(source, self.work / "mnt", *options) as mnt:
            tensors = {name: tensor.clone() for name, tensor in
                       load_file(mnt / "safetensors/model.safetensors").items()}
        return tensors

    def same(self, got, want):
        self.assertEqual(set(got), set(want))
        for name in want:
            self.assertTrue(same_bits(got[name], want[name]), name)

    def test_a_wrapped_model_has_the_names_of_the_model(self):
        for key in ("model", "state_dict", "module", "model_state_dict"):
            with self.subTest(key):
                state = {key: model(), "optim": {"step": torch.ones(2), "exp_avg": torch.ones(3)},
                         "epoch": 3}
                source = self.save(state)
                self.same(self.shown(source), state[key])
                text = run("inspect", source).decode()
                self.assertIn("optim: 2 tensors beside the model's; left out", text)
                self.assertIn("epoch: 1 values that are no tensors; left out", text)

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

    def test_a_key_shows_what_is_below_it(self):
        state = {"model": model(), "optim": {"exp_avg": torch.ones(3)}}
        source = self.save(state)
        with mounted(source, self.work / "mnt", "-o", "key=optim") as mnt:
            got = load_file(mnt / "safetensors/model.safetensors")
            self.same(got, state["optim"])
            got = None


if __name__ == "__main__":
    unittest.main(verbosity=2)
