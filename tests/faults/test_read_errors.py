"""A range of the source cannot be read, for a while or for good: who needs it gets an error, all
others their bytes, the log says where, and nothing is remembered once the source is well again.
Short reads change nothing."""

import errno
import os
import pathlib
import unittest
from concurrent.futures import ThreadPoolExecutor

import fault_support
from fault_support import GOLDEN, ckfs, header_of, mounted_fs, pread_all

SHARDS = mounted_fs.Checkpoint.SHARDS
VIEW = "fp32-safetensors"
BAD = "model.layers.2.00002.weight"  # the third of the five tensors of the second shard
PAGE = 4096


class ReadErrors(fault_support.TestCase):
    options = "direct"

    def setUp(self):
        super().setUp()
        self.source = self.counting(self.checkpoint.path)
        self.target = self.logged_mount(self.source.path, self.options)
        # Not the tensor's first and last bytes: a page cache reads whole pages, and those at the
        # ends belong to the neighbours too.
        self.shard, begin, end = fault_support.place_of(self.checkpoint.path, BAD)
        self.assertEqual(self.shard, SHARDS[1])
        self.bad = (begin + 4 * PAGE, end - 4 * PAGE)

    def read_tensor(self, name, shard=None):
        path = self.target / VIEW / (shard or self.shard)
        _, _, begin, end = header_of(path)[1][name]
        return pread_all(path, begin, end - begin)

    def assert_tensor_fails(self, name):
        with self.assertRaises(OSError) as raised:
            self.read_tensor(name)
        self.assertEqual(raised.exception.errno, errno.EIO)

    def assert_right(self, names):
        for name in names:
            expected = mounted_fs.widen(self.checkpoint.tensors[name])
            shard = SHARDS[int(name.split(".")[3]) - 1]
            self.assertEqual(self.read_tensor(name, shard), expected, name)

    def others(self):
        return [name for name in self.checkpoint.tensors if name != BAD]

    def test_an_unreadable_range_fails_its_tensor_only(self):
        self.source.fail(self.shard, errno.EIO, *self.bad)
        for _ in range(2):
            self.assert_tensor_fails(BAD)
            self.assert_right(self.others())
        self.assertGreater(self.source.counts()["failed_reads"], 0)

    def test_the_whole_file_cannot_be_read_to_its_end_but_up_to_there(self):
        self.source.fail(self.shard, errno.EIO, *self.bad)
        path = self.target / VIEW / self.shard
        _, _, begin, _ = header_of(path)[1][BAD]
        got = bytearray()
        descriptor = os.open(path, os.O_RDONLY)
        self.addCleanup(os.close, descriptor)
        with self.assertRaises(OSError) as raised:
            while part := os.read(descriptor, 100_000):
                got += part
        self.assertEqual(raised.exception.errno, errno.EIO)
        self.assertGreater(len(got), begin - (1 << 20))
        self.source.clear()
        self.assertEqual(path.read_bytes()[: len(got)], bytes(got))

    def test_the_log_names_file_offset_and_tensor(self):
        self.source.fail(self.shard, errno.EIO, *self.bad)
        self.assert_tensor_fails(BAD)
        lines = self.log_lines(" error ", self.shard, f'"{BAD}"')
        self.assertGreaterEqual(len(lines), 1, self.log.read_text())
        self.assertRegex(lines[0], rf"{self.shard}: offset \d+: Input/output error")

    def test_other_errors_of_the_source_are_input_output_errors(self):
        self.source.fail(self.shard, errno.ENXIO, *self.bad)
        self.assert_tensor_fails(BAD)
        self.assert_right(self.others())

    def test_many_readers_of_it_all_fail_and_do_not_flood_the_log(self):
        self.source.fail(self.shard, errno.EIO, *self.bad)
        path = self.target / VIEW / self.shard
        _, _, begin, end = header_of(path)[1][BAD]
        middle = (begin + end) // 2
        with ThreadPoolExecutor(16) as pool:
            errors = list(pool.map(
                lambda _: mounted_fs.error_of(pread_all, path, middle, 10_000), range(400)))  # fmt: skip
        self.assertEqual(set(errors), {"EIO"})
        self.assertLess(len(self.log_lines(" error ")), 20)
        self.assert_right(self.others())

    def test_a_source_that_recovers_is_read_again(self):
        path = self.target / VIEW / self.shard
        descriptor = os.open(path, os.O_RDONLY)  # stays open over the fault
        self.addCleanup(os.close, descriptor)
        _, _, begin, end = header_of(path)[1][BAD]
        middle = (begin + end) // 2
        for _ in range(3):
            self.source.fail("*", errno.EIO)
            self.assertEqual(mounted_fs.error_of(os.pread, descriptor, 5000, middle), "EIO")
            self.source.clear()
            expected = mounted_fs.widen(self.checkpoint.tensors[BAD])
            self.assertEqual(os.pread(descriptor, 5000, middle),
                             expected[middle - begin : middle - begin + 5000])  # fmt: skip
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        self.assert_right(self.checkpoint.tensors)

    def test_short_reads_give_the_same_bytes(self):
        self.source.short(40_001)
        self.assert_right(self.checkpoint.tensors)
        self.assertGreater(self.source.counts()["requests"], 6_000_000 // 40_001)

    def test_the_daemon_outlives_it_all(self):
        self.source.fail("*", errno.EIO)
        for shard in SHARDS:
            self.assertEqual(
                mounted_fs.error_of(pread_all, self.target / VIEW / shard, 1 << 20, 100_000), "EIO"
            )
        self.assertIn(VIEW, os.listdir(self.target.target))
        self.assertEqual(self.target.status()["version"], 1)
        ckfs("stats", self.target.target)
        self.assertEqual(mounted_fs.processes(self.target.target), [self.target.pid])


class CachedReadErrors(ReadErrors):
    options = "mtime=1234567890"  # any option that leaves the mount cached


class CompanionErrors(fault_support.TestCase):
    def test_a_scale_that_cannot_be_read_fails_the_weights_of_its_tensor(self):
        golden = GOLDEN / "deepseek-v3-fp8" / "source"
        weight = "model.layers.1.mlp.experts.1.down_proj.weight"
        shard, begin, end = fault_support.place_of(golden, weight + "_scale_inv")
        home = fault_support.place_of(golden, weight)[0]
        source = self.counting(golden)
        mount = self.logged_mount(source.path, "direct")
        shown = mount / "bf16-safetensors" / home
        _, tensors = header_of(shown)

        def read(name):
            _, _, first, last = tensors[name]
            return pread_all(shown, first, last - first)

        sound = {name: read(name) for name in tensors}
        source.fail(shard, errno.EIO, begin, end)
        mount.unmount()  # what was read may still be held
        mount = self.logged_mount(source.path, "direct", name="again")
        shown = mount / "bf16-safetensors" / home
        failed = {name for name in tensors if mounted_fs.error_of(read, name) == "EIO"}
        self.assertEqual(failed, {weight})
        for name in tensors:
            if name != weight:
                self.assertEqual(read(name), sound[name], name)
        self.assertTrue(self.log_lines(shard, f'"{weight}"'), self.log.read_text())
        source.clear()
        self.assertEqual(read(weight), sound[weight])


class VerbErrors(fault_support.TestCase):
    ENGINES = (["--io", "uring"], ["--io", "pread"])

    def bad_source(self):
        source = self.counting(self.checkpoint.path)
        self.shard, self.begin, end = fault_support.place_of(self.checkpoint.path, BAD)
        source.fail(self.shard, errno.EIO, self.begin + 1000, end - 1000)
        return source

    def test_cat_stops_with_one_line(self):
        source = self.bad_source()
        with open(self.directory / "whole", "wb") as sink:
            ckfs("cat", self.checkpoint.path, f"{VIEW}/{SHARDS[0]}", stdout=sink)
        for engine in self.ENGINES:
            with open(self.directory / "got", "wb") as sink:
                done = ckfs("cat", *engine, "--log-level", "off", source.path,
                            f"{VIEW}/{self.shard}", stdout=sink, check=False)  # fmt: skip
            self.assert_refused(done, rf"{self.shard}: offset \d+: Input/output error")
            with open(self.directory / "got", "wb") as sink:
                ckfs("cat", *engine, source.path, f"{VIEW}/{SHARDS[0]}", stdout=sink)
            self.assertEqual((self.directory / "got").read_bytes(),
                             (self.directory / "whole").read_bytes())  # fmt: skip

    def test_export_stops_keeps_what_is_whole_and_resumes(self):
        source = self.bad_source()
        out = self.directory / "out"
        done = ckfs("export", "--log-level", "off", source.path, VIEW, out, check=False)
        self.assert_refused(done, rf"{self.shard}: offset \d+: Input/output error")
        self.assertFalse((out / self.shard).exists(), "half a file under its final name")
        source.clear()
        ckfs("export", source.path, VIEW, out)
        reference = self.directory / "reference"
        ckfs("export", self.checkpoint.path, VIEW, reference)
        names = [n for n in fault_support.files_below(reference) if not n.startswith(".ckfs")]
        self.assertIn(self.shard, names)
        for name in names:
            self.assertEqual((out / name).read_bytes(), (reference / name).read_bytes(), name)

    def test_short_reads_give_the_same_bytes(self):
        golden = GOLDEN / "deepseek-v3-fp8" / "source"
        source = self.counting(golden)
        for engine in (*self.ENGINES, ["--io", "uring", "--tile-bytes", "4096"]):
            for size in (4097, 511):
                source.short(size)
                for view in ("bf16-safetensors", VIEW):
                    got = self.directory / "-".join([*engine, str(size), view]).replace("--", "")
                    ckfs("export", *engine, source.path, view, got)
                    for name in os.listdir(golden):
                        if name.endswith(".safetensors"):
                            self.assertEqual((got / name).read_bytes(),
                                             self.reference(golden, view, name))  # fmt: skip

    def reference(self, golden, view, name):
        out = self.directory / f"reference-{view}"
        if not out.exists():
            ckfs("export", golden, view, out)
        return pathlib.Path(out, name).read_bytes()

    def test_headers_that_cannot_be_read_are_told_at_once(self):
        source = self.counting(self.checkpoint.path)
        for name in (SHARDS[1], "config.json", "model.safetensors.index.json"):
            source.fail(name, errno.EIO)
            self.assert_mount_refused(source.path, rf"{name}: .*Input/output error")
            source.clear()
        for size in (1, 7, 100):
            source.short(size)
            ckfs("inspect", source.path)


if __name__ == "__main__":
    unittest.main(verbosity=2)
