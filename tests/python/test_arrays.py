#!/usr/bin/env python3
"""Tensors as those of numpy and torch, by DLPack, into modules; safe_open() and fsspec: next to what
safetensors' own library reads from an exported copy."""
import gc
import json
import os
import subprocess
import sys
import unittest
import unittest.mock

import fsspec
import numpy
import safetensors
import safetensors.torch
import support
import torch
from support import DATA, FP8, PLAIN, ROOT

import ckfs
from ckfs import _fsspec

fsspec.register_implementation("ckfs", _fsspec.CkfsFileSystem, clobber=True)

DTYPES = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "I16": torch.int16, "U16": torch.uint16,
    "I32": torch.int32, "U32": torch.uint32, "I64": torch.int64, "U64": torch.uint64,
    "F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64,
    "C64": torch.complex64, "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}


def bits(tensor):
    """Bit patterns, which equal NaNs have, too."""
    return tensor.contiguous().view(torch.uint8) if tensor.ndim else tensor.reshape(1).view(torch.uint8)


class Exported(support.TestCase):
    """A view and its exported copy."""

    @classmethod
    def setUpClass(cls):
        import tempfile

        directory = tempfile.TemporaryDirectory(prefix="ckfs-python-")
        cls.addClassCleanup(directory.cleanup)
        cls.out = os.path.join(directory.name, "out")
        cls.model = ckfs.open(FP8)
        cls.model.export(cls.out)
        cls.shards = sorted(name for name in os.listdir(cls.out) if name.endswith(".safetensors"))


class Torch(Exported):
    def test_has_what_safetensors_loads(self):
        count = 0
        for shard in self.shards:
            for name, expected in safetensors.torch.load_file(f"{self.out}/{shard}").items():
                got = self.model[name].torch()
                self.assertEqual((got.dtype, got.shape), (expected.dtype, expected.shape))
                self.assertTrue(torch.equal(bits(got), bits(expected)), name)
                count += 1
        self.assertEqual(count, len(self.model))

    def test_decodes_as_torch_does(self):
        """By torch's own arithmetic: codes times the scale of their block, rounded to BF16."""
        index = json.loads((FP8 / "model.safetensors.index.json").read_text())["weight_map"]
        name = next(name for name in index if name.endswith("_scale_inv"))[:-len("_scale_inv")]
        with safetensors.safe_open(FP8 / index[name], "pt") as file:
            codes = file.get_tensor(name).float()
        with safetensors.safe_open(FP8 / index[name + "_scale_inv"], "pt") as file:
            scales = file.get_tensor(name + "_scale_inv")
        block = json.loads((FP8 / "config.json").read_text())["quantization_config"][
            "weight_block_size"]
        for dim in (0, 1):
            scales = scales.repeat_interleave(block[dim], dim)
        expected = (codes * scales[:codes.shape[0], :codes.shape[1]]).to(torch.bfloat16)
        self.assertTrue(torch.equal(self.model[name].torch(), expected))
        self.assertTrue(torch.equal(self.model[name][3:7].torch(), expected[3:7]))
        self.assertTrue(torch.equal(self.model[name][2].torch(), expected[2]))

    def test_iterates_in_order_reading_ahead(self):
        for ahead in (1, 10_000, 1 << 30):
            got = list(self.model.iter_torch(ahead=ahead))
            self.assertEqual([name for name, _ in got], list(self.model))
            for name, tensor in got:
                self.assertTrue(torch.equal(bits(tensor), bits(self.model[name].torch())))
        names = list(self.model)[:3][::-1]
        self.assertEqual([name for name, _ in self.model.iter_torch(names)], names)
        with self.assertRaises(KeyError):
            list(self.model.iter_torch(["no such"]))


class EndedEarly(support.TestCase):
    def test_iteration_reads_no_more(self):
        source, size = self.work(), 1 << 28
        header = json.dumps({"small": {"dtype": "BF16", "shape": [4], "data_offsets": [0, 8]},
                             "big": {"dtype": "BF16", "shape": [1 << 13, 1 << 14],
                                     "data_offsets": [8, 8 + size]}}).encode()
        header += b" " * (-len(header) % 8)
        with open(source / "model.safetensors", "wb") as file:
            file.write(len(header).to_bytes(8, "little") + header)
            file.truncate(8 + len(header) + 8 + size)
        model = ckfs.open(source, "fp32-safetensors", io="pread")
        for name, value in model.iter_torch(["small", "big", "small"], ahead=1):
            self.assertEqual((name, value.tolist()), ("small", [0, 0, 0, 0]))
            break
        self.assertLess(model.checkpoint.statistics()["source_bytes"], size // 2)
        self.assertEqual([name for name, _ in model.iter_torch(["small", "small"], ahead=1)],
                         ["small", "small"])


class Dtypes(support.TestCase):
    def test_are_those_of_safetensors(self):
        tensors, content = {}, bytes(range(48))
        for name, dtype in DTYPES.items():
            data = bytes(48) if name == "BOOL" else content
            tensors[name] = (name, [48 // dtype.itemsize], data)
        source = self.source(**tensors)
        model = ckfs.open(source)
        loaded = safetensors.torch.load_file(source / "model.safetensors")
        for name, dtype in DTYPES.items():
            with self.subTest(name):
                got = model[name].torch()
                self.assertEqual(got.dtype, dtype)
                self.assertTrue(torch.equal(bits(got), bits(loaded[name])))
                if name in ("BF16", "F8_E4M3", "F8_E5M2"):
                    array = model[name].numpy(codes=True)
                    self.assertEqual(array.dtype, f"uint{8 * dtype.itemsize}")
                    self.assertEqual(array.tobytes(), content)
                else:
                    array = model[name].numpy()
                    self.assertEqual(array.tobytes(), tensors[name][2])
                    self.assertTrue(numpy.array_equal(array, loaded[name].numpy(), equal_nan=True))
                    self.assertEqual(numpy.asarray(model[name]).tobytes(), array.tobytes())

    def test_of_arrays_are_filled_where_they_are(self):
        content = bytes(range(48))
        tensor = ckfs.open(self.source(t=("F32", [3, 4], content)))["t"]
        place = numpy.zeros((3, 4), "f4")
        tensor.into(place)
        self.assertEqual(place.tobytes(), content)
        frozen, apart = numpy.zeros((3, 4), "f4"), numpy.zeros((3, 8), "f4")[:, ::2]
        frozen.flags.writeable = False
        for wrong in (frozen, apart, numpy.asfortranarray(place)):
            with self.assertRaisesRegex(ckfs.InvalidArgumentError, "not writable and contiguous"):
                tensor.into(wrong)

    def test_that_numpy_lacks_are_not_guessed(self):
        model = ckfs.open(PLAIN)
        try:
            import ml_dtypes
        except ImportError:
            with self.assertRaisesRegex(ckfs.UnsupportedError, "pip install ml_dtypes"):
                model["model.norm.weight"].numpy()
        else:
            self.assertEqual(model["model.norm.weight"].numpy().dtype, ml_dtypes.bfloat16)


class Dlpack(support.TestCase):
    def test_goes_to_torch_and_numpy_without_either(self):
        content = bytes(range(240))
        model = ckfs.open(self.source(f=("F32", [3, 4, 5], content), i=("I16", [120], content),
                                      b=("BF16", [10, 12], content), s=("F64", [], content[:8]),
                                      e=("F32", [0, 4], b"")))
        for name in ("f", "i", "b", "s", "e"):
            got = torch.from_dlpack(model[name])
            self.assertTrue(torch.equal(bits(got), bits(model[name].torch())), name)
            self.assertEqual(got.shape, model[name].shape)
        self.assertEqual(numpy.from_dlpack(model["f"]).tobytes(), content)
        self.assertEqual(torch.from_dlpack(model["f"][1:]).flatten().numpy().tobytes(), content[80:])
        self.assertEqual(model["f"].__dlpack_device__(), (1, 0))

    def test_is_a_copy_in_memory_of_the_cpu(self):
        tensor = ckfs.open(self.source(f=("F32", [2], bytes(8))))["f"]
        with self.assertRaises(BufferError):
            tensor.__dlpack__(dl_device=(2, 0))
        with self.assertRaises(BufferError):
            tensor.__dlpack__(copy=False)
        self.assertEqual(torch.from_dlpack(tensor).tolist(), [0, 0])

    def test_lives_as_long_as_its_array(self):
        model = ckfs.open(self.source(f=("U8", [1 << 20], b"\7" * (1 << 20))))
        arrays = [torch.from_dlpack(model["f"]) for _ in range(8)]
        model["f"].__dlpack__()  # nothing takes it
        del model
        gc.collect()
        self.assertTrue(all((array == 7).all() for array in arrays))


class Modules(support.TestCase):
    class Net(torch.nn.Module):
        def __init__(self, dtype=torch.float32):
            super().__init__()
            self.one = torch.nn.Linear(4, 8, dtype=dtype)
            self.register_buffer("steps", torch.zeros(3, dtype=torch.int64))
            self.two = torch.nn.Linear(8, 4, dtype=dtype)

    def checkpoint(self, **more):
        torch.manual_seed(3)
        state = {name: torch.randn_like(value) if value.is_floating_point() else value + 7
                 for name, value in self.Net().state_dict().items()}
        state.update(more)
        source = self.work()
        safetensors.torch.save_file(state, source / "model.safetensors")
        return source, state

    def test_are_filled_in_their_places(self):
        source, state = self.checkpoint()
        net = self.Net()
        places = {name: value.data_ptr() for name, value in net.state_dict().items()}
        seen = []
        result = ckfs.open(source).load_into(net, progress=lambda *now: seen.append(now))
        self.assertEqual(result, ([], []))
        for name, value in net.state_dict().items():
            self.assertTrue(torch.equal(value, state[name]), name)
            self.assertEqual(value.data_ptr(), places[name])
        self.assertEqual(seen[-1][0], seen[-1][1])

    def test_of_other_dtypes_are_filled_as_torch_does(self):
        source, state = self.checkpoint()
        net, twin = self.Net(torch.bfloat16), self.Net(torch.bfloat16)
        ckfs.open(source).load_into(net)
        twin.load_state_dict(state)
        for name, value in net.state_dict().items():
            self.assertTrue(torch.equal(value, twin.state_dict()[name]), name)

    def test_say_what_does_not_fit(self):
        source, _ = self.checkpoint(more=torch.zeros(2))
        model = ckfs.open(source)
        with self.assertRaisesRegex(ckfs.InvalidArgumentError, "unexpected more"):
            model.load_into(self.Net())
        self.assertEqual(model.load_into(self.Net(), strict=False).unexpected_keys, ["more"])
        places = {"one.weight": torch.zeros(8, 4), "other": torch.zeros(1)}
        with self.assertRaisesRegex(ckfs.InvalidArgumentError, "missing other; unexpected"):
            model.load_into(places)
        with self.assertRaisesRegex(ckfs.InvalidArgumentError, r"shape \[8, 4\] does not fit \[4, 8\]"):
            model.load_into({"one.weight": torch.zeros(4, 8)}, strict=False)
        with self.assertRaisesRegex(ckfs.InvalidArgumentError, "to_empty"):
            model.load_into({"one.weight": torch.zeros(8, 4, device="meta")}, strict=False)
        strided = torch.zeros(4, 8).t()
        model.load_into({"one.weight": strided}, strict=False)
        self.assertTrue(torch.equal(strided, model["one.weight"].torch()))

    def test_of_memory_that_is_not_their_values_are_filled_by_value(self):
        """A conjugated view, and a slice with strides: torch's own copy is the reference."""
        source = self.work()
        values = torch.complex(torch.arange(6.).reshape(2, 3), torch.ones(2, 3))
        safetensors.torch.save_file({"c": values}, source / "model.safetensors")
        model = ckfs.open(source)
        place = torch.zeros(2, 3, dtype=torch.complex64).conj()
        model.load_into({"c": place})
        self.assertTrue(torch.equal(place, values))
        base = torch.zeros(2, 6, dtype=torch.complex64)
        model.load_into({"c": base[:, ::2]})
        self.assertTrue(torch.equal(base[:, ::2], values))
        self.assertFalse(base[:, 1::2].any())
        for wrong in (place, base[:, ::2], torch.zeros(2, 3, dtype=torch.complex64).to_sparse(),
                      torch.zeros(2, 3, dtype=torch.complex64, device="meta")):
            with self.assertRaisesRegex(ckfs.InvalidArgumentError, "contiguous tensor of the CPU"):
                model["c"].into(wrong)

    def test_may_hold_what_is_no_tensor(self):
        source, state = self.checkpoint()

        class Counting(self.Net):
            def get_extra_state(self):
                return {"count": 3}

            def set_extra_state(self, state):
                pass

        model = ckfs.open(source)
        with self.assertRaisesRegex(ckfs.InvalidArgumentError, "missing _extra_state"):
            model.load_into(Counting())
        net = Counting()
        self.assertEqual(model.load_into(net, strict=False).missing_keys, ["_extra_state"])
        self.assertTrue(torch.equal(net.two.bias, state["two.bias"]))
        with self.assertRaisesRegex(ckfs.InvalidArgumentError, "one.bias: the target is a ndarray"):
            model.load_into({"one.bias": numpy.zeros(8, "f4")}, strict=False)

    def test_miss_a_tensor_that_only_begins_where_another_does(self):
        source = self.work()
        safetensors.torch.save_file({"q": torch.ones(2, 4)}, source / "model.safetensors")
        fused = torch.zeros(6, 4)
        model = ckfs.open(source)
        with self.assertRaisesRegex(ckfs.InvalidArgumentError, "missing qkv"):
            model.load_into({"q": fused[:2], "qkv": fused})
        result = model.load_into({"q": fused[:2], "qkv": fused}, strict=False)
        self.assertEqual(result.missing_keys, ["qkv"])
        self.assertEqual(fused.sum(), 8)

    def test_of_one_place_under_two_names_have_the_last_as_in_torch(self):
        for first, last in ((torch.ones(4), torch.full((4,), 2.)),
                            (torch.ones(4), torch.full((4,), 2., dtype=torch.float16)),
                            (torch.ones(4, dtype=torch.float16), torch.full((4,), 2.))):
            source = self.work()
            safetensors.torch.save_file({"a": first, "b": last}, source / "model.safetensors")
            place = torch.zeros(4)
            ckfs.open(source).load_into({"b": place, "a": place})
            self.assertTrue(torch.equal(place, first.float()))
            ckfs.open(source).load_into({"a": place, "b": place})
            self.assertTrue(torch.equal(place, last.float()))

    def test_may_share_a_tensor_under_two_names(self):
        source, state = self.checkpoint()
        net = self.Net()
        net.head = torch.nn.Linear(4, 8)
        net.head.weight, net.head.bias = net.one.weight, net.one.bias
        ckfs.open(source).load_into(net)
        self.assertTrue(torch.equal(net.head.weight, state["one.weight"]))


class SafeOpen(Exported):
    def test_is_safetensors_own(self):
        for shard in self.shards:
            with ckfs.safe_open(FP8 / shard, framework="pt") as ours, \
                    safetensors.safe_open(f"{self.out}/{shard}", framework="pt") as theirs:
                self.assertEqual(ours.keys(), list(theirs.keys()))
                self.assertEqual(ours.offset_keys(), list(theirs.offset_keys()))
                self.assertEqual(ours.metadata(), theirs.metadata())
                for name in theirs.keys():
                    self.assertTrue(torch.equal(bits(ours.get_tensor(name)),
                                                bits(theirs.get_tensor(name))), name)
                    mine, other = ours.get_slice(name), theirs.get_slice(name)
                    self.assertEqual(mine.get_shape(), other.get_shape())
                    self.assertEqual(mine.get_dtype(), other.get_dtype())
                    keys = [slice(1, 3), slice(None), slice(-2, None), slice(0, 0)]
                    if len(other.get_shape()) == 2:
                        keys += [(slice(1, 5), slice(2, 7)), (slice(None), slice(0, 3)), 1]
                    for key in keys:
                        self.assertTrue(torch.equal(bits(mine[key]), bits(other[key])), (name, key))
                with self.assertRaises(KeyError):
                    ours.get_tensor("no such")

    def test_shows_all_of_a_directory_and_opens_it_once(self):
        with ckfs.safe_open(FP8, framework="np", view="fp32-safetensors") as file:
            self.assertEqual(sorted(self.model), file.keys())
            self.assertEqual(file.get_tensor("model.norm.weight").dtype, numpy.float32)
            with ckfs.safe_open(str(FP8), framework="pt", view="fp32-safetensors") as again:
                self.assertIs(file._model, again._model)

    def test_refuses_what_it_does_not_have(self):
        with self.assertRaisesRegex(ckfs.InvalidArgumentError, "framework: 'tf'"):
            ckfs.safe_open(FP8, framework="tf")
        with self.assertRaisesRegex(ckfs.NotFoundError, "has no file .*open the directory"):
            ckfs.safe_open(FP8 / self.shards[0], view="fp32-safetensors@max_shard=5GB")
        with self.assertRaises(ckfs.NotFoundError):
            ckfs.safe_open("/no/such/file.safetensors")

    def test_serves_transformers(self):
        """A patch of one name makes transformers' own loader read the view."""
        program = """
import sys, torch, ckfs, transformers
import transformers.modeling_utils
assert transformers.modeling_utils.safe_open
plain = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16)
transformers.modeling_utils.safe_open = ckfs.safe_open
patched = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16)
bits = lambda model: {name: value.view(torch.uint8) for name, value in model.state_dict().items()}
plain, patched = bits(plain), bits(patched)
print(plain.keys() == patched.keys() and all(torch.equal(plain[name], patched[name]) for name in plain))
"""
        done = subprocess.run([sys.executable, "-c", program, PLAIN], capture_output=True, text=True)
        self.assertEqual(done.stdout, "True\n", done.stderr)


class Fsspec(support.TestCase):
    def test_opens_chained_urls(self):
        with fsspec.open(f"ckfs://source/config.json::{PLAIN}") as file:
            self.assertEqual(file.read(), (PLAIN / "config.json").read_bytes())

    def test_takes_a_source_as_a_path_or_a_location_and_nothing_else(self):
        for protocol in (None, "file", "local"):
            system = _fsspec.CkfsFileSystem(str(PLAIN), protocol)
            self.assertIn("source", system.ls("", detail=False))
        for protocol, source in (("gcs", "gs://bucket/a"), ("s3a", "s3://bucket/a"),
                                 ("hf", "hf://bucket/a")):
            with unittest.mock.patch.object(_fsspec, "Checkpoint") as opened:
                _fsspec.CkfsFileSystem("bucket/a", protocol, skip_instance_cache=True)
            opened.assert_called_once_with(source)
        with self.assertRaisesRegex(ckfs.InvalidArgumentError, "memory://bucket/a: not a source"):
            _fsspec.CkfsFileSystem("bucket/a", "memory")
        with self.assertRaisesRegex(ckfs.InvalidArgumentError, r"options of s3 \(key\) do not reach"):
            _fsspec.CkfsFileSystem("bucket/a", "s3", {"key": "k"})
        with self.assertRaisesRegex(ckfs.InvalidArgumentError, "no source"):
            fsspec.filesystem("ckfs")

    def test_gives_options_and_parameters(self):
        url = f"ckfs://bf16-safetensors@max_shard=1MB/model.safetensors.index.json::{FP8}"
        with fsspec.open(url, "rt", ckfs={"options": {"memory": "64MiB"}}) as file:
            index = json.load(file)
        self.assertEqual(set(index["weight_map"]), set(ckfs.open(FP8)))
        system = fsspec.filesystem("ckfs", fo=str(FP8), options={"memory": "64MiB"})
        with self.assertRaises(FileNotFoundError) as raised:
            system.open("bf16-safetensors/none.json")
        self.assertEqual(raised.exception.errno, 2)
        with self.assertRaises(FileNotFoundError):
            system.open("bf17-safetensors/config.json")
        with self.assertRaises(IsADirectoryError):
            system.open("bf16-safetensors")
        self.assertEqual(system.ls("bf16-safetensors/config.json", detail=False),
                         ["bf16-safetensors/config.json"])

    def test_has_directories_in_directories(self):
        source = self.source(t=("U8", [4], b"1234"))
        for path in ("assets/notes/read.txt", "assets/one.txt", "assets/notes/more/two.txt"):
            (source / path).parent.mkdir(parents=True, exist_ok=True)
            (source / path).write_text(path)
        system = fsspec.filesystem("ckfs", fo=str(source))
        self.assertEqual(sorted(system.ls("source/assets", detail=False)),
                         ["source/assets/notes", "source/assets/one.txt"])
        self.assertEqual(system.info("source/assets/notes")["type"], "directory")
        self.assertEqual(sorted(system.find("source/assets")),
                         ["source/assets/notes/more/two.txt", "source/assets/notes/read.txt",
                          "source/assets/one.txt"])
        self.assertEqual(system.glob("source/assets/**/two.txt"), ["source/assets/notes/more/two.txt"])

    def test_lists_and_reads_ranges(self):
        system = fsspec.filesystem("ckfs", fo=str(FP8))
        self.assertIn("bf16-safetensors", system.ls("", detail=False))
        model = ckfs.open(FP8)
        listed = {entry["name"]: entry["size"] for entry in system.ls("ckfs://bf16-safetensors")}
        self.assertEqual(listed, {f"bf16-safetensors/{file.path}": file.size
                                  for file in model.files()})
        name = next(name for name in listed if name.endswith(".safetensors"))
        with model.open_file(name.partition("/")[2]) as file:
            content = file.read()
        self.assertEqual(system.cat(name), content)
        self.assertEqual(system.cat_ranges([name] * 3, [0, 100, -10], [8, 300, None]),
                         [content[:8], content[100:300], content[-10:]])
        self.assertEqual(system.info(name)["size"], len(content))
        self.assertTrue(system.isdir("bf16-safetensors"))
        self.assertFalse(system.exists("bf16-safetensors/no"))
        self.assertFalse(system.exists("no-such-view/config.json"))
        with self.assertRaises(OSError):
            system.open(name, "wb")
        copy = self.work() / "copy"
        system.get("bf16-safetensors", str(copy), recursive=True)
        self.assertTrue(model.verify(copy)["equal"])


if __name__ == "__main__":
    unittest.main()
