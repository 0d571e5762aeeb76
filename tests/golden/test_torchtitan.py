#!/usr/bin/env python3
"""Hugging Face models as checkpoints of torchtitan: the tensors that torchtitan itself wrote of the same
model, by every way; and what is refused, by its sentence."""
import json
import pathlib
import shutil
import subprocess
import sys
import unittest

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1] / "tools"),
                str(pathlib.Path(__file__).resolve().parent)]
import digest  # noqa: E402
import ways  # noqa: E402
from dcp_files import read_dcp, read_metadata  # noqa: E402

DATA = ways.DATA.parent / "fsdp"
MEGATRON = ways.DATA.parent / "megatron"
CASES = sorted(path.parent.name for path in DATA.glob("titan-*/expected.json"))


class Work(ways.Exports):
    def model(self, case, view="fp32-safetensors"):
        """The Hugging Face model, whose tensors test_torch_files holds to those of to_hf."""
        return self.export(DATA / case / "source/step-10", view, "--config",
                           DATA / case / "source-config")

    def refused(self, source, view):
        """The one line by which `ckfs ls` refuses the view."""
        done = subprocess.run([ways.CKFS, "ls", source, view], capture_output=True, text=True)
        self.assertNotEqual(0, done.returncode, done.stdout)
        self.assertEqual(1, done.stderr.count("\n"), done.stderr)
        return done.stderr


def written_by_torchtitan(case):
    return json.loads((DATA / case / "expected.json").read_text())["tensors"]["safetensors"]


class TorchTitan(Work):
    def test_views_have_the_tensors_that_it_wrote_by_every_way(self):
        self.assertEqual(2, len(CASES))
        for case in CASES:
            source, want = self.model(case), written_by_torchtitan(case)
            for way, engine in ways.golden_runs():
                with self.subTest(case=case, way=way, engine=" ".join(engine)):
                    out = self.work / "out"
                    shutil.rmtree(out, ignore_errors=True)
                    out.mkdir()
                    ways.WAYS[way](source, "dcp@names=torchtitan,dtype=fp32", out, self.work, engine)
                    self.assertEqual(want, read_dcp(out))

    def test_come_back_as_they_were(self):
        for case in CASES:
            for view, dtype in (("fp32-safetensors", ",dtype=fp32"), ("bf16-safetensors", "")):
                with self.subTest(case=case, view=view):
                    source = self.model(case, view)
                    written = self.export(source, f"dcp@names=torchtitan{dtype}")
                    again = self.export(written, view)  # by the config.json beside it
                    self.assertEqual([], list(digest.differences(
                        digest.digest(str(source), lambda *_: False), str(again))))

    def test_in_bf16_keep_the_bias_of_a_router_in_f32(self):
        case = "titan-deepseek3-mtp-dcp"
        for view, other in (("dcp@names=torchtitan", "BF16"),
                            ("dcp@names=torchtitan,dtype=fp16", "F16")):
            for source, *options in ((self.model(case),),
                                     (DATA / case / "source/step-10", "--config",
                                      DATA / case / "source-config")):
                with self.subTest(view=view, source=source.name):
                    out = self.export(source, view, *options)
                    dtypes = {name: tensor["dtype"] for name, tensor in read_dcp(out).items()}
                    biases = {name for name in dtypes if name.endswith(".moe.expert_bias_E")}
                    self.assertEqual(2, len(biases))
                    self.assertEqual({name: "F32" if name in biases else other for name in dtypes},
                                     dtypes)

    def test_of_its_own_checkpoint_are_those_by_steps(self):
        for case in CASES:
            with self.subTest(case):
                at_once = self.export(DATA / case / "source/step-10",
                                      "dcp@names=torchtitan,dtype=fp32", "--config",
                                      DATA / case / "source-config")
                self.assertEqual(written_by_torchtitan(case), read_dcp(at_once))

    def test_of_experts_in_any_layout_are_the_same(self):
        linear = MEGATRON / "back-qwen3-moe/source"
        fused = self.export(linear, "bf16-safetensors@experts=fused")
        want = read_dcp(self.export(linear, "dcp@names=torchtitan"))
        self.assertEqual([4, 6, 16],
                         want["layers.0.moe.routed_experts.inner_experts.w1_EFD"]["shape"])
        self.assertEqual(want, read_dcp(self.export(fused, "dcp@names=torchtitan")))

    def test_have_a_chunk_for_each_expert(self):
        out = self.export(MEGATRON / "back-qwen3-moe/source", "dcp@names=torchtitan")
        experts = read_metadata(out).state_dict_metadata[
            "layers.1.moe.routed_experts.inner_experts.w2_EDF"]
        self.assertEqual([(1, 16, 6)] * 4, [chunk.sizes for chunk in experts.chunks])

    def test_are_refused_where_no_rules_lead_there(self):
        source = self.work / "mixtral"
        source.mkdir()
        shutil.copy(MEGATRON / "back-qwen3/source/model.safetensors", source)
        (source / "config.json").write_text('{"model_type": "mixtral"}')
        self.assertIn("no rules lead from this model to torchtitan's names (model_type mixtral;",
                      self.refused(source, "dcp@names=torchtitan"))
        (source / "config.json").unlink()
        self.assertIn("config.json has no model_type", self.refused(source, "dcp@names=torchtitan"))

    def test_have_experts_as_its_modules_want(self):
        said = self.refused(MEGATRON / "back-qwen3-moe/source",
                            "dcp@experts=fused,names=torchtitan")
        self.assertIn("names=torchtitan has a layout of experts of its own (leave experts=fused out)",
                      said)

    def test_of_a_model_that_does_not_fit_its_config_name_the_tensor(self):
        source = self.work / "model"
        shutil.copytree(MEGATRON / "back-qwen3/source", source)
        config = json.loads((source / "config.json").read_text())
        (source / "config.json").write_text(json.dumps({**config, "intermediate_size": 7}))
        self.assertRegex(self.refused(source, "dcp@names=torchtitan"),
                         r'titan\.json:\d+: "layers.0.feed_forward.w1.weight": has shape')


class Chunks(Work):
    def test_of_a_large_tensor_are_runs_of_rows(self):
        source = self.work / "model"
        source.mkdir()
        rows, columns = 150_001, 2048
        header = json.dumps({"w": {"dtype": "BF16", "shape": [rows, columns],
                                   "data_offsets": [0, 2 * rows * columns]}}).encode()
        with open(source / "model.safetensors", "wb") as file:
            file.write(len(header).to_bytes(8, "little") + header)
            file.truncate(8 + len(header) + 2 * rows * columns)
        metadata = self.work / "metadata"
        metadata.mkdir()
        (metadata / ".metadata").write_bytes(ways.run("cat", source, "dcp/.metadata"))
        chunks = read_metadata(metadata).state_dict_metadata["w"].chunks
        self.assertEqual([(0, 0), (65536, 0), (131072, 0)], [chunk.offsets for chunk in chunks])
        self.assertEqual([65536, 65536, rows - 131072], [chunk.sizes[0] for chunk in chunks])


if __name__ == "__main__":
    unittest.main(verbosity=2)
