#!/usr/bin/env python3
"""ckfs.open() with the standard library alone: a Mapping of tensors, files, copies, errors, signals."""
import ast
import io
import json
import mmap
import os
import pickle
import signal
import struct
import subprocess
import sys
import threading
import unittest

import support
from support import FP8, PLAIN, ROOT

import ckfs

NUMBERS = bytes(range(256)) * 16


class Mapping(support.TestCase):
    def test_has_the_tensors_of_the_exported_files(self):
        out = self.work() / "out"
        with ckfs.open(FP8) as model:
            model.export(out)
            expected = {}
            for path in out.glob("*.safetensors"):
                expected.update(support.read_safetensors(path))
            self.assertEqual(set(model), set(expected))
            self.assertEqual(len(model), len(expected))
            for name, tensor in model.items():
                dtype, shape, content = expected[name]
                self.assertEqual((tensor.name, tensor.dtype, tensor.shape, tensor.nbytes),
                                 (name, dtype, shape, len(content)))
                self.assertEqual(tensor.tobytes(), content, name)
                self.assertIn(name, model)
            self.assertEqual([tensor.name for tensor in model.values()], list(model))
            self.assertEqual(list(model.keys()), list(model))

    def test_reads_nothing_before_bytes_are_asked_for(self):
        model = ckfs.open(FP8, io="pread")
        before = model.checkpoint.statistics()["source_bytes"]
        for name, tensor in model.items():
            repr(tensor), tensor.shape, tensor.file, name in model
        self.assertEqual(model.checkpoint.statistics()["source_bytes"], before)

    def test_tells_what_it_is(self):
        model = ckfs.open(PLAIN)
        self.assertEqual(model.view, "bf16-safetensors@cast=quantized")
        self.assertIn(model.view, repr(model))
        tensor = model["model.norm.weight"]
        self.assertRegex(repr(tensor), r"<ckfs.Tensor 'model.norm.weight' BF16 \[\d+\] bit-exact>")
        self.assertEqual(tensor.exactness, "bit-exact")
        self.assertIn(tensor.file, [file.path for file in model.files()])
        self.assertEqual(len(tensor), tensor.shape[0])
        self.assertEqual(tensor.ndim, 1)
        self.assertEqual(tensor.numel * 2, tensor.nbytes)

    def test_has_tensors_as_they_are_stored_if_no_view_is_named(self):
        stored = {"a": ("F32", [2], bytes(8)), "b": ("BF16", [2], b"1234"), "c": ("F64", [1], bytes(8)),
                  "d": ("F16", [2], b"1234"), "e": ("I32", [1], b"1234")}
        model = ckfs.open(self.source(**stored))
        self.assertEqual({tensor.name: tensor.dtype for tensor in model.values()},
                         {name: dtype for name, (dtype, _, _) in stored.items()})
        self.assertEqual(ckfs.open(FP8).view, "bf16-safetensors")
        torch = ckfs.open(ROOT / "tests/data/torch/zip-dtypes/source/pytorch_model.bin")
        self.assertEqual(torch.view, "safetensors")
        with self.assertRaisesRegex(ckfs.UnsupportedError, "bf16-safetensors"):
            ckfs.open(self.broken())

    def broken(self):
        """Codes without the scales that would make values of them."""
        source = self.source(**{"a.weight": ("F8_E4M3", [2, 2], b"0123")})
        (source / "config.json").write_text('{"quantization_config": {"quant_method": "fp8"}}')
        return source

    def test_gives_views_by_name_and_reports(self):
        checkpoint = ckfs.Checkpoint(FP8, memory="64MiB", threads=1)
        self.assertTrue(checkpoint.views()["fp32-safetensors"])
        wide = checkpoint.view("fp32-safetensors@max_shard=1MB")
        self.assertEqual(wide.view, "fp32-safetensors@max_shard=1MB")
        self.assertEqual(wide["model.norm.weight"].dtype, "F32")
        self.assertEqual(checkpoint.inspect()["source"], str(FP8))
        self.assertEqual(len(wide.describe()["arrays"]), len(wide))


class Budgets(support.TestCase):
    def test_are_shared_by_sources(self):
        budget = ckfs.Budget("64MiB")
        self.assertEqual((budget.held, budget.peak), (0, 0))
        first, second = (ckfs.open(FP8, "bf16-safetensors", budget=budget, threads=k) for k in (1, 2))
        path = next(file.path for file in first.files() if file.tensors)

        def read(model):
            with model.open_file(path) as file:
                return file.read()

        expected = read(first)
        peak = budget.peak
        self.assertGreater(peak, 0)
        self.assertEqual(second.checkpoint.statistics()["memory_budget"], 64 << 20)
        self.assertEqual(second.checkpoint.statistics()["memory_peak"], peak)
        self.assertEqual(read(second), expected)
        self.assertLessEqual(budget.held, 64 << 20)
        self.assertLessEqual(budget.peak, 64 << 20)
        del budget
        self.assertEqual(read(first), expected)

    def test_are_told_apart_where_models_are_kept(self):
        path = FP8 / "model-00001-of-00003.safetensors"
        one, other = ckfs.Budget("64MiB"), ckfs.Budget("64MiB")
        self.assertNotEqual(repr(one), repr(other))
        with ckfs.safe_open(path, framework="pt", budget=one) as a, \
                ckfs.safe_open(path, framework="pt", budget=other) as b, \
                ckfs.safe_open(path, framework="pt", budget=one) as c:
            self.assertIsNot(a._model, b._model)
            self.assertIs(a._model, c._model)

    def test_are_set_apart_for_servers(self):
        self.assertEqual(ckfs.Budget("256MiB", for_servers="64MiB").peak, 0)

    def test_that_are_too_small_are_refused(self):
        for words, text in (({"memory": "1MiB"}, "too little"), ({"for_servers": 1}, "budget: 1 for servers")):
            with self.assertRaisesRegex(ckfs.InvalidArgumentError, text):
                ckfs.Budget(**words)
        with self.assertRaisesRegex(ckfs.InvalidArgumentError, "budget: a ckfs.Budget is wanted, not str"):
            ckfs.open(FP8, budget="64MiB")
        with self.assertRaisesRegex(ckfs.InvalidArgumentError, "memory: the budget says it"):
            ckfs.open(FP8, budget=ckfs.Budget("64MiB"), memory="64MiB")


class Rows(support.TestCase):
    def setUp(self):
        self.tensor = ckfs.open(self.source(t=("U8", [64, 4, 16], NUMBERS)))["t"]

    def test_are_read_alone(self):
        row = 64
        for rows in (slice(0, 64), slice(3, 9), slice(60, 100), slice(-2, None), slice(5, 5),
                     slice(9, 3)):
            begin, end, _ = rows.indices(64)
            part = self.tensor[rows]
            self.assertEqual(part.shape, (max(0, end - begin), 4, 16))
            self.assertEqual(part.tobytes(), NUMBERS[begin * row:end * row])
        self.assertEqual(self.tensor[7].shape, (4, 16))
        self.assertEqual(self.tensor[-1].tobytes(), NUMBERS[-row:])
        self.assertEqual(self.tensor[10:20][2:4].tobytes(), NUMBERS[12 * row:14 * row])
        self.assertEqual(self.tensor[10:20][3].tobytes(), NUMBERS[13 * row:14 * row])

    def test_that_are_none_are_refused(self):
        for row in (64, -65):
            with self.assertRaises(IndexError):
                self.tensor[row]
        with self.assertRaises(ckfs.InvalidArgumentError):
            self.tensor[::2]
        with self.assertRaises(TypeError):
            self.tensor[1, 2]
        with self.assertRaises(ckfs.InvalidArgumentError):
            self.tensor[3][0]

    def test_of_a_large_source_cost_what_they_have(self):
        source = self.source(t=("U8", [4096, 4096], bytes(4096 * 4096)))
        model = ckfs.open(source, io="pread")
        before = model.checkpoint.statistics()["source_bytes"]
        model["t"][1000:1002].tobytes()
        self.assertLessEqual(model.checkpoint.statistics()["source_bytes"] - before, 4 * 4096)


class Places(support.TestCase):
    def test_of_all_kinds_are_filled(self):
        model = ckfs.open(self.source(t=("U8", [64, 64], NUMBERS), none=("F32", [0, 2], b"")))
        out = bytearray(4096)
        model["t"].into(out)
        self.assertEqual(out, NUMBERS)
        page = mmap.mmap(-1, 4096)
        model["t"].into(page)
        self.assertEqual(page[:], NUMBERS)
        wide = memoryview(bytearray(4096)).cast("d")
        model["t"].into(wide)
        self.assertEqual(wide.tobytes(), NUMBERS)
        model["none"].into(bytearray())
        self.assertEqual(model["none"].tobytes(), b"")
        one, two = bytearray(4096), bytearray()
        model.read_into({"none": two, "t": one})
        self.assertEqual(one, NUMBERS)

    def test_that_do_not_fit_are_refused(self):
        tensor = ckfs.open(self.source(t=("U8", [64, 64], NUMBERS)))["t"]
        with self.assertRaisesRegex(ckfs.InvalidArgumentError, "4096 bytes do not go into 4095"):
            tensor.into(bytearray(4095))
        with self.assertRaisesRegex(ckfs.InvalidArgumentError, "not writable"):
            tensor.into(bytes(4096))
        with self.assertRaisesRegex(ckfs.InvalidArgumentError, "contiguous"):
            tensor.into(memoryview(bytearray(8192))[::2])


class Files(support.TestCase):
    def test_are_files(self):
        model = ckfs.open(PLAIN, "source")
        self.assertEqual(len(model), 0)
        for file in model.files():
            expected = (PLAIN / file.path).read_bytes()
            with model.open_file(file.path) as opened:
                self.assertIsInstance(opened, io.BufferedReader)
                self.assertEqual(opened.read(), expected)
                opened.seek(-1, os.SEEK_END)
                self.assertEqual(opened.read(), expected[-1:])
                opened.seek(3)
                self.assertEqual(opened.read(5), expected[3:8])
                self.assertEqual(opened.tell(), 8)
            with self.assertRaises(ValueError):
                opened.read()
        with self.assertRaises(ckfs.NotFoundError):
            model.open_file("no/such")


class Copies(support.TestCase):
    def test_are_written_compared_and_summed(self):
        out = self.work() / "out"
        seen = []
        told = ckfs.export(FP8, "bf16-safetensors", out, jobs=2,
                           progress=lambda done, total: seen.append((done, total)))
        self.assertTrue(told["finished"])
        self.assertEqual(seen[-1][0], seen[-1][1])
        self.assertTrue(ckfs.verify(FP8, "bf16-safetensors", out)["equal"])
        sums = ckfs.digest(FP8, "bf16-safetensors", "sha256", "xxh128")
        for path, digests in sums.items():
            by_tool = subprocess.run(["sha256sum", out / path], capture_output=True, check=True)
            self.assertEqual(digests["sha256"], by_tool.stdout.decode().split()[0])
            self.assertEqual(len(digests["xxh128"]), 32)
        (out / "config.json").write_text("{}")
        told = ckfs.verify(FP8, "bf16-safetensors", out, progress=True)
        self.assertFalse(told["equal"])
        self.assertEqual(told["differences"][0]["path"], "config.json")
        with self.assertRaises(ckfs.InvalidArgumentError):
            ckfs.export(FP8, "fp32-safetensors", out)


class Errors(support.TestCase):
    def test_have_a_code_and_the_errno(self):
        with self.assertRaises(ckfs.NotFoundError) as raised:
            ckfs.open("/no/such/checkpoint")
        self.assertEqual(raised.exception.code, "not_found")
        self.assertEqual(raised.exception.errno, 0)  # no call of the system has failed
        self.assertRegex(str(raised.exception), "^/no/such/checkpoint: ")
        model = ckfs.open(PLAIN)
        with self.assertRaises(KeyError) as missing:
            model["model.norm.weigh"]
        self.assertIsInstance(missing.exception, ckfs.Error)
        self.assertIn("did you mean model.norm.weight?", str(missing.exception))
        self.assertIsNone(model.get("no such"))
        self.assertNotIn("no such", model)
        self.assertNotIn(7, model)
        for wrong in ({"memory": "1"}, {"mem": "1GiB"}, {"io": "fast"}):
            with self.assertRaises(ValueError):
                ckfs.open(PLAIN, **wrong)
        with self.assertRaises(ckfs.NotFoundError):
            ckfs.open(PLAIN, "bf17-safetensors")

    def test_can_be_pickled_and_models_not(self):
        for error in (ckfs.StaleError("a: b", 5), ckfs.TensorNotFoundError("c: d")):
            again = pickle.loads(pickle.dumps(error))
            self.assertEqual((type(again), str(again), again.errno, again.code),
                             (type(error), str(error), error.errno, error.code))
        with self.assertRaisesRegex(TypeError, "belongs to its process"):
            pickle.dumps(ckfs.open(PLAIN))

    def test_come_from_a_source_that_changes(self):
        source = self.source(t=("U8", [4096], NUMBERS))
        model = ckfs.open(source)
        ckfs.set_log(level="off")
        self.addCleanup(ckfs.set_log)
        os.truncate(source / "model.safetensors", 100)
        with self.assertRaises(ckfs.StaleError) as raised:
            model["t"].tobytes()
        self.assertIsInstance(raised.exception, OSError)

    def test_come_from_what_is_closed(self):
        with ckfs.open(PLAIN) as model:
            tensor = model["model.norm.weight"]
        for use in (lambda: model["model.norm.weight"], tensor.tobytes, model.files, model.describe,
                    lambda: model.digest()):
            with self.assertRaisesRegex(ckfs.InvalidArgumentError, "closed"):
                use()

    def test_come_from_a_fork(self):
        model = ckfs.open(PLAIN)
        expected = model["model.norm.weight"].tobytes()
        child = os.fork()
        if child == 0:
            signal.alarm(30)
            try:
                try:
                    model["model.norm.weight"].tobytes()
                except ckfs.InvalidArgumentError as error:
                    code = 0 if "after a fork" in str(error) else 2
                del model
                again = ckfs.open(PLAIN)["model.norm.weight"].tobytes()
                os._exit(code if again == expected else 3)
            finally:
                os._exit(1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertEqual(model["model.norm.weight"].tobytes(), expected)


class Log(support.TestCase):
    def test_goes_where_it_is_told(self):
        lines = []
        ckfs.set_log(lambda level, line: lines.append((level, line)))
        self.addCleanup(ckfs.set_log)
        source = self.source(t=("U8", [4096], NUMBERS))
        model = ckfs.open(source)
        os.truncate(source / "model.safetensors", 100)
        with self.assertRaises(ckfs.StaleError):
            model["t"].tobytes()
        self.assertTrue(any("model.safetensors" in line for _, line in lines), lines)
        self.assertLessEqual({level for level, _ in lines}, {"warning", "error"})


class Interrupts(support.TestCase):
    # Says on a line when it works; the source takes seconds to be summed.
    PROGRAM = """
import os, sys, ckfs
class Begun(Exception): pass
def progress(done, total):
    if done:
        print("begun", flush=True)
try:
    ckfs.digest(sys.argv[1], "fp32-safetensors", progress=progress)
    print("ended")
except KeyboardInterrupt:
    print("interrupted", flush=True)
model = ckfs.open(sys.argv[1], "fp32-safetensors")
print("again", model["t"][:1].nbytes)
"""

    def test_end_long_work(self):
        source = self.work()
        header = json.dumps({"t": {"dtype": "BF16", "shape": [1 << 15, 1 << 15],
                                   "data_offsets": [0, 1 << 31]}}).encode()
        header += b" " * (-len(header) % 8)
        with open(source / "model.safetensors", "wb") as file:
            file.write(struct.pack("<Q", len(header)) + header)
            file.truncate(8 + len(header) + (1 << 31))
        child = subprocess.Popen([sys.executable, "-c", self.PROGRAM, source],
                                 stdout=subprocess.PIPE, text=True)
        self.assertEqual(child.stdout.readline(), "begun\n")
        child.send_signal(signal.SIGINT)
        rest, _ = child.communicate(timeout=60)
        told = [line for line in rest.splitlines() if line != "begun"]
        self.assertEqual(told, ["interrupted", f"again {4 << 15}"])
        self.assertEqual(child.returncode, 0)


class Threads(support.TestCase):
    def test_share_a_model(self):
        model = ckfs.open(FP8, memory="64MiB")
        expected = {name: tensor.tobytes() for name, tensor in model.items()}
        wrong = []

        def read(first):
            for name in list(expected)[first::2]:
                if model[name].tobytes() != expected[name]:
                    wrong.append(name)

        threads = [threading.Thread(target=read, args=(k % 2,)) for k in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])


class Package(unittest.TestCase):
    def test_needs_nothing_but_the_standard_library(self):
        done = subprocess.run(
            [sys.executable, "-c", "import sys, ckfs; print([name for name in sys.modules if "
             "name.split('.')[0] in ('numpy', 'torch', 'jax', 'fsspec', 'ml_dtypes')])"],
            capture_output=True, text=True, check=True)
        self.assertEqual(done.stdout, "[]\n")

    def test_is_syntax_of_python_3_9(self):
        for path in sorted((ROOT / "src/python/ckfs").glob("*.py")):
            ast.parse(path.read_text(), feature_version=(3, 9))

    def test_has_types(self):
        self.assertTrue((ROOT / "src/python/ckfs/py.typed").is_file())


if __name__ == "__main__":
    unittest.main()
