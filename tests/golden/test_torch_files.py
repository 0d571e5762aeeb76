#!/usr/bin/env python3
"""ZeRO, FSDP and torch checkpoints written by DeepSpeed and torch, against what the tools made of
them.

Every view comes out of `ckfs cat`, `ckfs export` and a mount, with both readers, 1 and 8 threads,
tiles of the normal size and of 4 KiB, every two of these together in some run (ways.RUNS): all must
give the same bytes, and these must be the reference's: whole safetensors files where the tool writes them, tensors otherwise.
"""
import hashlib
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1] / "tools"),
                str(pathlib.Path(__file__).resolve().parent)]
import digest  # noqa: E402
import torch_zip  # noqa: E402
import ways  # noqa: E402

DATA = ways.DATA.parent
CASES = sorted(f"{path.parts[-3]}/{path.parts[-2]}" for family in ("deepspeed", "fsdp", "torch")
               for path in DATA.glob(f"{family}/*/expected.json"))


def expected_of(case):
    return json.loads((DATA / case / "expected.json").read_text())


def views_of(case):
    expected = expected_of(case)
    return sorted({*expected["tensors"], *expected["files"], *expected["bins"]})


def sources_of(case):
    """What can be named to ckfs as this checkpoint: a folder, or each of its torch files."""
    source = DATA / case / "source"
    files = sorted(path for path in source.iterdir() if path.is_file())
    if case.startswith("torch/") and not any(
            path.name == ".metadata" or path.suffix in (".json", ".distcp") for path in files):
        return files or [source]
    return [source]


def choices_of(case):
    """Options that say what of the source is meant."""
    config = DATA / case / "source-config"
    return ["--config", str(config)] if config.is_dir() else []


def bin_differences(expected, ties, out):
    """Lines that say where the torch files in `out` are not what `expected` says of them."""
    got = {path.name: torch_zip.read(path) for path in sorted(out.glob("*.bin"))}
    if sorted(got) != sorted(expected):
        yield f"files {sorted(got)} != {sorted(expected)}"
        return
    for file, tensors in expected.items():
        if list(got[file]) != list(tensors):
            yield f"{file}: order {list(got[file])} != {list(tensors)}"
            continue
        for name, want in tensors.items():
            tensor = got[file][name]
            have = {"dtype": tensor.dtype, "shape": tensor.shape,
                    "sha256": hashlib.sha256(tensor.data).hexdigest()}
            for key, value in have.items():
                if value != want[key]:
                    yield f"{file}: {name}: {key} {value} != {want[key]}"
        first = {}
        for name, tensor in got[file].items():
            shared = first.setdefault(tensor.storage, name)
            if shared != name and ties.get(name) != shared:
                yield f"{file}: {name} shares the storage of {shared}"
        for alias, name in ties.items():
            if alias in got[file] and got[file][alias].storage != got[file][name].storage:
                yield f"{file}: {alias} does not share the storage of {name}"


def differences(expected, view, out):
    """Lines that say where the view in `out` is not what expected.json says of it."""
    if view in expected["bins"]:
        yield from bin_differences(expected["bins"][view], expected["ties"].get(view, {}), out)
    if view in expected["tensors"]:
        yield from digest.differences(expected["tensors"][view], str(out))
    for file, want in expected["files"].get(view, {}).items():
        path = out / file
        if not path.is_file():
            yield f"{file}: missing"
        elif hashlib.sha256(path.read_bytes()).hexdigest() != want:
            yield f"{file}: other bytes than the tool's"
    allowed = {*expected["files"].get(view, {}), *expected["bins"].get(view, {})}
    for path in out.iterdir() if allowed else ():
        if path.name not in allowed:
            yield f"{path.name}: the tool writes no such file"


class WorkDirectory(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="ckfs-golden-")
        self.addCleanup(temporary.cleanup)
        self.work = pathlib.Path(temporary.name)

    def fetch(self, source, views, way, engine=()):
        """{view: {path: bytes}} and the directories, by one way."""
        out = self.work / "out"
        shutil.rmtree(out, ignore_errors=True)
        if way == "mount":  # one mount for all of them
            with ways.mounted(source, self.work / "mnt", *engine) as mountpoint:
                for view in views:
                    shutil.copytree(mountpoint / view, out / view)
        else:
            for view in views:
                (out / view).mkdir(parents=True)
                ways.WAYS[way](source, view, out / view, self.work, list(engine))
        return out


class Golden(WorkDirectory):
    def check(self, family):
        for case in CASES:
            if not case.startswith(family):
                continue
            expected, views = expected_of(case), views_of(case)
            for source in sources_of(case):
                first = None
                for way, engine in ways.golden_runs():
                    with self.subTest(case=case, source=source.name, way=way,
                                      engine=" ".join(engine)):
                        out = self.fetch(source, views, way, [*engine, *choices_of(case)])
                        got = {view: ways.files_of(out / view) for view in views}
                        if first is None:
                            first = got
                            lines = [f"{view}: {line}" for view in views
                                     for line in differences(expected, view, out / view)]
                            self.assertEqual([], lines)
                        self.assertTrue(first == got, "other bytes than before")

    def test_zero_checkpoints_have_the_bytes_of_the_tool_by_every_way(self):
        self.check("deepspeed/")

    def test_fsdp_checkpoints_have_the_bytes_of_the_tool_by_every_way(self):
        self.check("fsdp/")

    def test_torch_checkpoints_have_the_bytes_of_the_tool_by_every_way(self):
        self.check("torch/")


class Refused(unittest.TestCase):
    """Checkpoints that no view may show, and what the one line of the error names."""

    CASES = {
        "fsdp/partial-placement": ("model.layers.0.partial.weight", "Partial"),
        "fsdp/rank-missing": ("model_world_size_2_rank_1.pt", "missing"),
    }

    def test_is_said_in_one_line(self):
        for case, words in self.CASES.items():
            for verb in (["inspect"], ["ls"]):
                with self.subTest(case=case, verb=verb):
                    done = subprocess.run([ways.CKFS, *verb, DATA / case / "source"],
                                          stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                          stdin=subprocess.DEVNULL)
                    self.assertNotEqual(0, done.returncode)
                    self.assertEqual(b"", done.stdout)
                    said = done.stderr.decode().strip()
                    self.assertEqual(1, len(said.splitlines()), said)
                    for word in words:
                        self.assertIn(word, said)


class Directory(WorkDirectory):
    def test_with_one_torch_file_is_that_checkpoint(self):
        for case in CASES:
            sources = sources_of(case)
            if not case.startswith("torch/") or len(sources) > 1 or sources[0].is_dir():
                continue
            with self.subTest(case=case):
                of_file = self.fetch(sources[0], ["safetensors"], "export")
                want = ways.files_of(of_file / "safetensors")
                of_folder = self.fetch(sources[0].parent, ["safetensors"], "export")
                self.assertTrue(want == ways.files_of(of_folder / "safetensors"))

    def test_named_by_its_tag_is_the_checkpoint_of_that_tag(self):
        source = DATA / "deepspeed" / "zero2-bf16-w2" / "source"
        latest = (source / "latest").read_text()
        by_root = self.fetch(source, ["fp32-consolidated"], "export")
        want = ways.files_of(by_root)
        self.assertTrue(want == ways.files_of(
            self.fetch(source / latest, ["fp32-consolidated"], "export")))
        (older,) = {path.name for path in source.iterdir() if path.is_dir()} - {latest}
        other = ways.run("cat", source, "fp32-consolidated/model.safetensors", "--tag", older)
        self.assertNotEqual(want["fp32-consolidated/model.safetensors"], other)
        self.assertEqual(other, ways.run("cat", source / older,
                                         "fp32-consolidated/model.safetensors"))


class Consolidated(WorkDirectory):
    """Of sources that zero_to_fp32 does not know, and parameters that it has no fixture for."""

    def test_of_torch_files_holds_the_tensors_of_the_fp32_view(self):
        for case in CASES:
            if case.startswith("torch/"):
                for source in sources_of(case):
                    with self.subTest(case=case, source=source.name):
                        out = self.fetch(source, ["fp32-consolidated"], "export")
                        self.assertEqual([], list(digest.differences(
                            expected_of(case)["tensors"]["fp32-safetensors"],
                            str(out / "fp32-consolidated"))))

    def test_as_bin_holds_the_tensors_of_the_safetensors_form(self):
        for case in CASES:
            for source in sources_of(case)[:1]:
                with self.subTest(case=case):
                    view = "fp32-consolidated@format=bin,max_shard=2KB"
                    out = self.fetch(source, [view], "export", choices_of(case)) / view
                    tensors = {}
                    for path in sorted(out.glob("*.bin")):
                        tensors.update(torch_zip.read(path))
                    got = {name: [t.dtype, t.shape, hashlib.sha256(t.data).hexdigest()]
                           for name, t in tensors.items()}
                    plain = self.fetch(source, ["fp32-consolidated"], "export", choices_of(case))
                    want = {name: [t["dtype"], t["shape"], t["sha256"]] for name, t in
                            digest.digest(str(plain / "fp32-consolidated"),
                                          lambda *_: False).items()}
                    self.assertEqual(want, got)

    def test_without_frozen_lacks_the_frozen_parameters_alone(self):
        for case in ("zero2-bf16-w4-tied-frozen", "zero3-bf16-w4-tied-frozen"):
            with self.subTest(case=case):
                source = DATA / "deepspeed" / case / "source"
                fixture = json.loads((DATA / "deepspeed" / case / "fixture.json").read_text())
                whole = expected_of(f"deepspeed/{case}")["tensors"]["fp32-consolidated"]
                out = self.fetch(source, ["fp32-consolidated@exclude_frozen=1"], "export")
                got = digest.digest(str(out / "fp32-consolidated@exclude_frozen=1"),
                                    lambda *_: False)
                self.assertEqual({}, {n: t for n, t in got.items() if whole[n] != t})
                left_out = set(whole) - set(got)
                self.assertTrue(left_out)
                # What is left out has no fp32 master, and every parameter that has one is there.
                self.assertFalse(left_out & set(fixture["extents"]))
                self.assertTrue({"base.weight", "base.bias"} <= left_out, left_out)

    def test_frozen_of_the_module_are_shown_when_asked_for(self):
        case = DATA / "deepspeed" / "zero1-fp16-w2"
        tool = expected_of("deepspeed/zero1-fp16-w2")["tensors"]["fp32-consolidated"]
        out = self.fetch(case / "source", ["fp32-consolidated@frozen=module"], "export")
        got = digest.digest(str(out / "fp32-consolidated@frozen=module"), lambda *_: False)
        self.assertEqual(tool, {name: got[name] for name in tool})
        more = set(got) - set(tool)
        self.assertTrue(more)
        self.assertEqual({"F32"}, {got[name]["dtype"] for name in more})
        report = ways.run("inspect", case / "source").decode()
        for name in more:
            self.assertIn(name, report)


if __name__ == "__main__":
    unittest.main()
