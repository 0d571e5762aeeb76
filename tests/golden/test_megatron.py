#!/usr/bin/env python3
"""Checkpoints written by Megatron-Core, against what converters made of them: Hugging Face's names,
Megatron's own, and the optimizer's masters; by every way. And what is refused, by its sentence."""
import json
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1] / "tools"),
                str(pathlib.Path(__file__).resolve().parent)]
import digest  # noqa: E402
import torch_zip  # noqa: E402
import ways  # noqa: E402
from dcp_files import read_dcp, read_metadata  # noqa: E402

DATA = ways.DATA.parent / "megatron"
CASES = sorted(path.parent.name for path in DATA.glob("*/expected.json")
               if not path.parent.name.startswith("back-"))
BACK = sorted(path.parent.name for path in DATA.glob("back-*/expected.json"))
TRACKER = "latest_checkpointed_iteration.txt"


def config_of(case):
    return ["--config", DATA / case / "source-config"]


def names_in(path):
    """Of the tensors of a safetensors file."""
    data = path.read_bytes()
    header = json.loads(data[8:8 + struct.unpack("<Q", data[:8])[0]])
    return [name for name in header if name != "__metadata__"]


class Work(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="ckfs-golden-")
        self.addCleanup(temporary.cleanup)
        self.work = pathlib.Path(temporary.name)

    def copy(self, case):
        source = self.work / case
        shutil.copytree(DATA / case / "source", source)
        return source

    def export(self, source, view, *options):
        out = self.work / "out" / view
        shutil.rmtree(out, ignore_errors=True)
        ways.run("export", source, view, out, *options)
        return out

    def refused(self, source, *options, view="bf16-safetensors"):
        """The one line by which `ckfs ls` refuses the view."""
        done = subprocess.run([ways.CKFS, "ls", source, view, *map(str, options)],
                              capture_output=True, text=True)
        self.assertNotEqual(0, done.returncode, done.stdout)
        self.assertEqual(1, done.stderr.count("\n"), done.stderr)
        return done.stderr


class Golden(Work):
    def test_views_have_the_bytes_of_the_converters_by_every_way(self):
        self.assertEqual(8, len(CASES))
        for case in CASES:
            expected = json.loads((DATA / case / "expected.json").read_text())["views"]
            for options, views in expected.items():
                for view, tensors in views.items():
                    for way, engine in ways.golden_runs():
                        with self.subTest(case=case, view=view, options=options, way=way,
                                          engine=" ".join(engine)):
                            out = self.work / "out"
                            shutil.rmtree(out, ignore_errors=True)
                            out.mkdir()
                            ways.WAYS[way](DATA / case / "source", view, out, self.work,
                                           [*config_of(case), *options.split(), *engine])
                            self.assertEqual([], list(digest.differences(tensors, str(out))))

    def test_config_is_that_of_the_model(self):
        case = "deepseek3-mtp-singleton"
        out = self.export(DATA / case / "source", "bf16-safetensors", *config_of(case))
        config = json.loads((out / "config.json").read_text())
        self.assertEqual(("deepseek_v3", "bfloat16"),
                         (config["model_type"], config.get("dtype") or config["torch_dtype"]))


class Casts(Work):
    def test_of_a_model_in_bf16_keep_the_bias_of_its_router(self):
        case = "deepseek3-mtp-singleton"
        bias = "model.layers.1.mlp.gate.e_score_correction_bias"
        for view, dtype in (("bf16-safetensors", "F32"), ("bf16-safetensors@cast=all", "BF16"),
                            ("fp32-safetensors", "F32")):
            with self.subTest(view):
                out = self.export(DATA / case / "source", view, *config_of(case))
                self.assertEqual(dtype, digest.dtypes(str(out))[bias])

    def test_of_masters_have_the_values_that_round_to_the_weights(self):
        case = "qwen25-tied-numbered-optimizer"
        out = self.export(DATA / case / "source", "fp32-safetensors@master=1", *config_of(case))
        same = self.export(DATA / case / "source", "fp32-consolidated@master=1", *config_of(case))
        self.assertEqual(digest.digest(str(out), lambda *_: False),
                         digest.digest(str(same), lambda *_: False))


class Chains(Work):
    """Another view of the source is that of the Hugging Face model by itself."""

    def steps(self, case, view):
        model = self.export(DATA / case / "source", "bf16-safetensors", *config_of(case))
        at_once = self.export(DATA / case / "source", view, *config_of(case))
        by_steps = self.work / "steps"
        shutil.rmtree(by_steps, ignore_errors=True)
        ways.run("export", model, view, by_steps)
        return at_once, by_steps

    def test_to_another_layout_of_experts(self):
        for case in ("qwen3-moe-pp2-ep2-chained", "deepseek3-mtp-singleton",
                     "mixtral-grouped-chunks", "glm45-mtp-mixed"):
            with self.subTest(case):
                at_once, by_steps = self.steps(case, "bf16-safetensors@experts=fused")
                want = digest.digest(str(by_steps), lambda *_: False)
                self.assertEqual(want, digest.digest(str(at_once), lambda *_: False))
                self.assertTrue(any(".experts.gate_up_proj" in name for name in want), want.keys())

    def test_to_trees_of_maxtext(self):
        for case in ("qwen3-moe-pp2-ep2-chained", "deepseek3-mtp-singleton", "llama3-nemo-weights",
                     "qwen3-tp2-iterations", "mixtral-grouped-chunks"):
            for view in ("maxtext-scanned@fsdp=2", "maxtext-unscanned"):
                with self.subTest(case=case, view=view):
                    trees = []
                    for tree in self.steps(case, view):
                        arrays = self.export(tree, "safetensors")
                        trees.append(digest.digest(str(arrays), lambda *_: False))
                    self.assertEqual(*trees)
                    self.assertGreater(len(trees[0]), 10)


class Back(Work):
    """Hugging Face models as checkpoints of Megatron-Core."""

    def test_have_the_tensors_that_its_loader_wants_by_every_way(self):
        self.assertEqual(3, len(BACK))
        for case in BACK:
            views = json.loads((DATA / case / "expected.json").read_text())["views"][""]
            for view, tensors in views.items():
                for way, engine in ways.golden_runs():
                    with self.subTest(case=case, view=view, way=way, engine=" ".join(engine)):
                        out = self.work / "out"
                        shutil.rmtree(out, ignore_errors=True)
                        out.mkdir()
                        ways.WAYS[way](DATA / case / "source", view, out, self.work, engine)
                        self.assertEqual(tensors, read_dcp(out / "release"))
                        self.assertEqual("release", (out / TRACKER).read_text())

    def test_come_back_as_they_were(self):
        for case in BACK:
            views = json.loads((DATA / case / "expected.json").read_text())["views"][""]
            for view in views:
                with self.subTest(case=case, view=view):
                    source = DATA / case / "source"
                    written = self.export(source, view)
                    for path in (written, written / "release"):
                        again = self.export(path, "bf16-safetensors", "--config", source)
                        self.assertEqual([], list(digest.differences(
                            digest.digest(str(source), lambda *_: False), str(again))))

    def test_have_a_chunk_for_each_layer_and_expert(self):
        out = self.export(DATA / "back-qwen3-moe" / "source", "megatron-torch-dist@layers=stacked")
        metadata = read_metadata(out / "release")
        chunks = metadata.state_dict_metadata[
            "decoder.layers.mlp.experts.experts.linear_fc1.weight"].chunks
        self.assertEqual([(1, 1, 12, 16)] * 8, [chunk.sizes for chunk in chunks])

    def test_of_layers_that_differ_are_not_stacked(self):
        said = self.refused(DATA / "back-deepseek3-mtp" / "source",
                            view="megatron-torch-dist@layers=stacked")
        self.assertIn("megatron-torch-dist: ", said)

    def test_of_another_program_have_the_same_tensors_by_steps(self):
        for case in ("qwen3-tp2-iterations", "deepseek3-mtp-singleton", "glm45-mtp-mixed",
                     "mixtral-grouped-chunks", "qwen25-tied-numbered-optimizer"):
            with self.subTest(case):
                model = self.export(DATA / case / "source", "bf16-safetensors", *config_of(case))
                by_steps = self.export(model, "megatron-torch-dist")
                want = ways.files_of(by_steps)
                at_once = self.export(DATA / case / "source", "megatron-torch-dist",
                                      *config_of(case))
                self.assertEqual(want, ways.files_of(at_once))

    def test_common_is_a_file_of_plain_types(self):
        out = self.export(DATA / "back-qwen3" / "source", "megatron-torch-dist")
        common = torch_zip.read_plain((out / "release/common.pt").read_bytes())
        self.assertEqual({"checkpoint_version": 3.0, "iteration": 0,
                          "content_metadata": {"singleton_local_shards": False,
                                               "non_homogeneous_layers": True}}, common)
        self.assertEqual({"sharded_backend": "torch_dist", "sharded_backend_version": 1,
                          "common_backend": "torch", "common_backend_version": 1},
                         json.loads((out / "release/metadata.json").read_text()))


class Iteration(Work):
    def test_is_the_one_that_the_tracker_names(self):
        source = self.copy("qwen3-tp2-iterations")
        config = config_of("qwen3-tp2-iterations")
        report = ways.run("inspect", source, *config).decode()
        self.assertIn(f"  directory: iter_0000007/ ({TRACKER})\n  iteration: 7\n", report)
        seven = ways.files_of(self.export(source, "bf16-safetensors", *config))
        for text in ("7\n", " 7 \n\n"):
            (source / TRACKER).write_text(text)
            self.assertEqual(seven, ways.files_of(self.export(source, "bf16-safetensors", *config)))
        (source / TRACKER).write_text("3")
        three = ways.files_of(self.export(source, "bf16-safetensors", *config))
        self.assertNotEqual(seven, three)
        self.assertEqual(three, ways.files_of(
            self.export(source / "iter_0000003", "bf16-safetensors", *config)))
        self.assertEqual(seven, ways.files_of(
            self.export(source, "bf16-safetensors", "--step", 7, *config)))

    def test_may_be_a_release(self):
        source = self.copy("qwen3-tp2-iterations")
        (source / "iter_0000003").rename(source / "release")
        (source / TRACKER).write_text("release")
        out = self.export(source, "safetensors")
        want = json.loads((DATA / "qwen3-tp2-iterations/expected.json").read_text())
        self.assertEqual([], list(digest.differences(want["views"]["--step 3"]["safetensors"],
                                                     str(out))))

    def test_is_taken_without_a_tracker_where_there_is_one(self):
        source = self.copy("qwen3-tp2-iterations")
        (source / TRACKER).unlink()
        said = self.refused(source, view="safetensors")
        self.assertIn(f"several iterations and no {TRACKER}: 3, 7 (--step N opens one of them)",
                      said)
        shutil.rmtree(source / "iter_0000007")
        self.assertIn("iteration: 3\n", ways.run("inspect", source).decode())

    def test_that_is_absent_is_refused_with_those_that_are_there(self):
        source = self.copy("qwen3-tp2-iterations")
        (source / TRACKER).write_text("9")
        said = self.refused(source, view="safetensors")
        for part in (TRACKER, "iteration 9", "iter_0000009", "3, 7"):
            self.assertIn(part, said)
        said = self.refused(source, "--step", 4, view="safetensors")
        self.assertIn("no iteration 4 (there are: 3, 7)", said)
        for text in ("", "latest", "-1", "7 8"):
            (source / TRACKER).write_text(text)
            self.assertIn("neither the number of an iteration nor \"release\"",
                          self.refused(source, view="safetensors"))

    def test_of_nemo_is_the_same_from_its_folder(self):
        case = "llama3-nemo-weights"
        both = [ways.files_of(self.export(DATA / case / "source" / folder, "bf16-safetensors",
                                          *config_of(case))) for folder in ("", "weights")]
        self.assertEqual(*both)

    def test_that_was_interrupted_opens_as_plain_dcp(self):
        source = self.copy("qwen3-tp2-iterations")
        (source / "iter_0000007" / "metadata.json").unlink()
        said = self.refused(source, view="safetensors")
        self.assertIn("iter_0000007/: no metadata.json, which Megatron writes last", said)
        report = ways.run("inspect", source / "iter_0000007").decode()
        self.assertIn("torch_dcp", report)


class Formats(Work):
    def test_that_are_not_torch_dist_are_refused_by_name(self):
        source = self.copy("qwen3-tp2-iterations")
        format_file = source / "iter_0000007" / "metadata.json"
        for backend in ("zarr", "fsdp_dtensor"):
            format_file.write_text(json.dumps({"sharded_backend": backend}))
            for path in (source, source / "iter_0000007"):
                said = self.refused(path, view="safetensors")
                self.assertIn(f'sharded_backend is "{backend}", and ckfs reads torch_dist', said)
                self.assertIn("--ckpt-format torch_dist", said)
        format_file.write_text(json.dumps({"sharded_backend": "torch_dist",
                                           "sharded_backend_version": 2}))
        self.assertIn("sharded_backend_version is 2", self.refused(source, view="safetensors"))

    def test_of_legacy_ranks_are_refused_by_name(self):
        for name in ("mp_rank_00", "mp_rank_01_003"):
            source = self.work / name
            rank = source / "iter_0000100" / name
            rank.mkdir(parents=True)
            (rank / "model_optim_rng.pt").write_bytes(b"pickle")
            (source / TRACKER).write_text("100")
            for path in (source, source / "iter_0000100"):
                said = self.refused(path, view="safetensors")
                self.assertIn(f"Megatron's legacy format ({name}/model_optim_rng.pt)", said)

    def test_of_other_releases_of_its_own_file_are_read(self):
        source = self.copy("mixtral-grouped-chunks")
        (source / "iter_0000001" / "metadata.json").write_text(json.dumps(
            {"sharded_backend": "torch_dist", "sharded_backend_version": 1}))
        (source / "iter_0000001" / "common.pt").unlink()
        want = json.loads((DATA / "mixtral-grouped-chunks/expected.json").read_text())["views"][""]
        out = self.export(source, "bf16-safetensors", *config_of("mixtral-grouped-chunks"))
        self.assertEqual([], list(digest.differences(want["bf16-safetensors"], str(out))))


class Parts(Work):
    def test_that_are_missing_are_named(self):
        source = self.copy("qwen3-tp2-iterations")
        (source / "iter_0000007" / "__1_0.distcp").unlink()
        said = self.refused(source, *config_of("qwen3-tp2-iterations"))
        self.assertIn("__1_0.distcp: missing", said)
        self.export(source, "bf16-safetensors", "--step", 3, *config_of("qwen3-tp2-iterations"))
        (source / "iter_0000007" / ".metadata").unlink()
        self.assertIn("iter_0000007/.metadata: missing", self.refused(source))

    def test_of_masters_alone_do_not_stand_in_the_way_of_weights(self):
        case = "qwen25-tied-numbered-optimizer"
        report = ways.run("inspect", DATA / case / "source", *config_of(case)).decode()
        self.assertIn("optimizer's masters: of 16 tensors\n", report)
        self.assertIn("16 tensors, 0 companions", report)


class Models(Work):
    def test_without_a_config_are_shown_by_megatrons_names_alone(self):
        source = DATA / "mixtral-grouped-chunks" / "source"
        self.assertIn("--config DIR", self.refused(source))
        self.export(source, "safetensors")

    def test_that_no_family_has_are_refused(self):
        config = self.work / "config.json"
        config.write_text('{"model_type": "strange"}')
        said = self.refused(DATA / "mixtral-grouped-chunks" / "source", "--config", config)
        self.assertIn("no rules lead from Megatron's names to this model (model_type strange", said)

    def test_with_a_tensor_that_no_rule_knows_are_refused_with_its_name(self):
        case = "broken-unknown-tensor"
        said = self.refused(DATA / case / "source", *config_of(case))
        self.assertIn("decoder.layers.0.self_attention.mystery.weight", said)
        self.export(DATA / case / "source", "safetensors", *config_of(case))

    def without(self, directory, name):
        """A copy of a model in one file that lacks a tensor."""
        out = pathlib.Path(tempfile.mkdtemp(dir=self.work)) / "model"
        shutil.copytree(directory, out)
        path = out / "model.safetensors"
        data = path.read_bytes()
        begin = 8 + struct.unpack("<Q", data[:8])[0]
        header, tensors, at = json.loads(data[8:begin]), b"", 0
        del header[name]
        for tensor in header.values():
            if "data_offsets" in tensor:
                first, last = tensor["data_offsets"]
                tensors += data[begin + first:begin + last]
                tensor["data_offsets"] = [at, at + last - first]
                at += last - first
        text = json.dumps(header).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + tensors)
        return out

    def test_without_an_expert_are_refused_both_ways(self):
        case = "deepseek3-mtp-singleton"
        stored = self.export(DATA / case / "source", "safetensors", *config_of(case))
        for name, text in (
                ("decoder.layers.1.mlp.experts.experts.2.linear_fc2.weight", "e 2 is missing"),
                ("decoder.layers.1.mlp.router.weight", "i 1 is missing"),
                ("decoder.layers.1.mlp.shared_experts.linear_fc2.weight", "i 1 is missing")):
            self.assertIn(text, self.refused(self.without(stored, name)))
        model = DATA / "back-qwen3-moe/source"
        for name, text in (
                ("model.layers.1.mlp.experts.2.down_proj.weight", "e 2 is missing"),
                ("model.layers.1.mlp.experts.2.up_proj.weight", "e 2 is missing"),
                ("model.layers.1.mlp.gate.weight", "i 1 is missing")):
            self.assertIn(text, self.refused(self.without(model, name), view="megatron-torch-dist"))

    def test_without_any_one_tensor_are_refused_by_the_view(self):
        models = [DATA / case / "source" for case in BACK]
        models += sorted(DATA.glob("families/*"))
        for source in models:
            model = self.export(source, "bf16-safetensors")
            tensors = names_in(model / "model.safetensors")
            self.assertGreater(len(tensors), 10)
            for name in tensors:
                # Copies of the model's own; and one expert is like another.
                if re.search(r"\.embed_tokens\.weight|shared_head\.head\.|experts\.[1-9]", name[1:]):
                    continue
                with self.subTest(str(source), tensor=name):
                    self.refused(self.without(model, name), view="megatron-torch-dist")
        # By these two names alone such a file is taken for Megatron's.
        ends = ("decoder.final_layernorm.weight", "embedding.word_embeddings.weight")
        for source in sorted(DATA.glob("families/*")):
            for name in names_in(source / "model.safetensors"):
                if name in ends or re.search(r"experts\.[1-9]", name):
                    continue
                with self.subTest(str(source), tensor=name):
                    self.refused(self.without(source, name))

    def test_that_do_not_fit_their_config_are_refused(self):
        for case, changes, part in (
                ("qwen3-tp2-iterations", {"num_hidden_layers": 3}, "decoder.layers"),
                ("qwen3-tp2-iterations", {"num_key_value_heads": 4}, "q_proj.weight"),
                ("qwen3-tp2-iterations", {"vocab_size": 17}, "embed_tokens"),
                ("qwen3-tp2-iterations", {"tie_word_embeddings": True}, "output_layer.weight"),
                ("qwen3-tp2-iterations", {"model_type": "qwen2"}, "linear_qkv.bias"),
                ("qwen3-tp2-iterations", {"model_type": "llama"}, "_layernorm.weight"),
                ("qwen25-tied-numbered-optimizer", {"num_hidden_layers": 1}, "decoder.layers.1."),
                ("qwen25-tied-numbered-optimizer", {"num_hidden_layers": 3}, "2 is missing"),
                ("qwen25-tied-numbered-optimizer", {"tie_word_embeddings": False}, "output_layer"),
                ("qwen3-moe-pp2-ep2-chained", {"num_experts": 8}, "mlp.gate.weight"),
                ("qwen3-moe-pp2-ep2-chained", {"moe_intermediate_size": 8}, "experts"),
                ("deepseek3-mtp-singleton", {"n_routed_experts": 5}, "mlp.gate.weight"),
                ("deepseek3-mtp-singleton", {"moe_intermediate_size": 8}, "experts"),
                ("deepseek3-mtp-singleton", {"first_k_dense_replace": 0}, "mlp.down_proj"),
                ("deepseek3-mtp-singleton", {"num_nextn_predict_layers": 0}, "mtp.layers.0."),
                ("deepseek3-mtp-singleton", {"num_nextn_predict_layers": 2}, "k 1 is missing"),
                ("deepseek3-mtp-singleton", {"q_lora_rank": None}, "q_proj")):
            with self.subTest(case=case, changes=changes):
                config = json.loads((DATA / case / "source-config/config.json").read_text())
                (self.work / "config.json").write_text(json.dumps(config | changes))
                said = self.refused(DATA / case / "source", "--config", self.work / "config.json")
                self.assertIn(part, said)
                report = ways.run("inspect", "--all", DATA / case / "source", "--config",
                                  self.work / "config.json").decode()
                self.assertIn(part, report)

    def test_have_no_masters_where_the_optimizer_has_no_names(self):
        case = "qwen3-moe-pp2-ep2-chained"
        said = self.refused(DATA / case / "source", *config_of(case),
                            view="fp32-safetensors@master=1")
        self.assertIn("flat buffers", said)
        said = self.refused(DATA / "qwen3-tp2-iterations" / "source",
                            *config_of("qwen3-tp2-iterations"), view="fp32-safetensors@master=1")
        self.assertIn("no state of an optimizer", said)


class Families(Work):
    """Tensors by Megatron's names, in safetensors: the names decide, whatever the file is."""

    def test_have_the_names_and_bytes_of_the_converters_and_come_back(self):
        cases = sorted(path for path in (DATA / "families").iterdir())
        self.assertEqual(10, len(cases))
        for case in cases:
            with self.subTest(case.name):
                source = self.work / case.name
                source.mkdir()
                for name in ("model.safetensors", "config.json"):
                    shutil.copy(case / name, source)
                want = json.loads((case / "expected.json").read_text())
                out = self.export(source, "bf16-safetensors")
                self.assertEqual([], list(digest.differences(want, str(out))))
                written = self.export(out, "megatron-torch-dist")
                again = self.export(written, "bf16-safetensors", "--config", source)
                self.assertEqual([], list(digest.differences(want, str(again))))


class Names(Work):
    def test_that_are_megatrons_in_safetensors_become_those_of_hugging_face(self):
        for case in ("qwen3-tp2-iterations", "glm45-mtp-mixed", "llama3-nemo-weights"):
            with self.subTest(case):
                model = self.export(DATA / case / "source", "safetensors", *config_of(case))
                want = json.loads((DATA / case / "expected.json").read_text())["views"][""]
                shutil.copy(DATA / case / "source-config/config.json", model)
                out = self.export(model, "bf16-safetensors")
                self.assertEqual([], list(digest.differences(want["bf16-safetensors"], str(out))))

    def test_both_stacked_and_numbered_are_refused(self):
        case = "qwen3-tp2-iterations"
        model = self.export(DATA / case / "source", "safetensors", *config_of(case))
        shutil.copy(DATA / case / "source-config/config.json", model)
        header = json.dumps({"decoder.layers.1.mlp.linear_fc2.weight": {
            "dtype": "BF16", "shape": [16, 24], "data_offsets": [0, 768]}}).encode()
        (model / "more.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(768))
        self.assertIn('"decoder.layers.1.mlp.linear_fc2.weight": is made by this rule and is there '
                      'already', self.refused(model))


if __name__ == "__main__":
    unittest.main(defaultTest=ways.sanitized("Golden", "Back"))
