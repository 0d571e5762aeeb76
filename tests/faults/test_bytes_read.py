"""Source bytes read : bytes needed, when a whole view is read from its first byte to its last.

Counted below ckfs. Needed are the bytes of all tensors of the source, scales included, once each.
Headers, the index and config.json are not tensor data and not counted on either side.
"""

import json
import os
import pathlib
import random
import unittest

import fault_support
from fault_support import ckfs, files_below, header_of, run

MOST = 1.02


def plain(path):
    """A BF16 model with the shapes that models have: matrices and, between them, small norms."""
    path.mkdir()
    numbers = random.Random(7)
    for shard in (1, 2):
        tensors = {}
        for layer in range(4):
            for name, shape in (("norm", [512]), ("up", [1408, 512]), ("down", [512, 1408])):
                size = 2
                for extent in shape:
                    size *= extent
                tensors[f"l{shard}.{layer}.{name}"] = ("BF16", shape, numbers.randbytes(size))
        fault_support.write_safetensors(path / f"model-{shard:05d}-of-00002.safetensors", tensors)
    (path / "config.json").write_text('{"torch_dtype": "bfloat16"}\n')
    return path


class BytesRead(fault_support.TestCase):
    VIEWS = ("bf16-safetensors", "fp32-safetensors")
    ENGINES = (("--io", "uring"), ("--io", "pread", "--threads", "8"))

    def under_test(self, directory):
        self.of = directory
        self.base, self.needed = {}, 0
        for path in directory.glob("*.safetensors"):
            self.base[path.name], tensors = header_of(path)
            self.needed += sum(end - begin for _, _, begin, end in tensors.values())
        self.assertGreater(self.needed, 5_000_000)
        return self.counting(directory)

    def data_bytes(self, source):
        """Tensor data bytes that were read since the last reset, however often."""
        read = 0
        for name, offset, size in source.log():
            if name in self.base:
                read += max(0, offset + size - max(offset, self.base[name]))
        return read

    def check(self, source, what):
        ratio = self.data_bytes(source) / self.needed
        print(f"{what}: {ratio:.4f}")
        self.assertGreaterEqual(ratio, 1, what)  # less would mean that something was made up
        self.assertLessEqual(ratio, MOST, what)
        source.reset()

    def by_cat_and_export(self, source):
        for view in self.VIEWS:
            for engine in self.ENGINES:
                source.reset()
                names = [entry["path"] for entry in
                         json.loads(ckfs("ls", "--json", source.path, view).stdout)["entries"]]  # fmt: skip
                for name in names:
                    with open(os.devnull, "wb") as sink:
                        ckfs("cat", *engine, source.path, f"{view}/{name}", stdout=sink)
                self.check(source, f"cat {view} {engine}")
                ckfs("export", *engine, "--jobs", "2", source.path, view,
                     self.directory / f"out-{view}-{engine[1]}")  # fmt: skip
                self.check(source, f"export {view} {engine}")

    def by_mounts(self, source):
        for options in ("direct", "mtime=1"):  # the second leaves a mount cached
            for view in self.VIEWS:
                for size in (128 << 10, 1 << 20):
                    mount = self.logged_mount(source.path, options, name=f"{options}{view}{size}")
                    names = files_below(mount / view)
                    source.reset()
                    for name in names:
                        self.read(mount / view / name, size)
                    self.check(source, f"mount {options} {view} {size}")
                    mount.unmount()

    def read(self, path, size):
        with open(path, "rb", buffering=0) as file:
            while file.read(size):
                pass

    def by_the_kernels_small_readahead(self, source):
        """cp by an ordinary user: 128 KiB at a time, several requests under way."""
        view = self.VIEWS[0]
        mount = self.logged_mount(source.path, name="small")
        device = os.stat(mount.target).st_dev
        knob = pathlib.Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb")
        if os.access(knob, os.W_OK):  # an ordinary user's mount has this size already
            knob.write_text("128")
        source.reset()
        run("cp", "-r", "--no-preserve=mode", mount / view, self.directory / "copy")
        self.check(source, f"cp {view} 128 KiB of readahead")
        mount.unmount()

    def by_all_ways(self, source):
        self.by_cat_and_export(source)
        self.by_mounts(source)
        self.by_the_kernels_small_readahead(source)

    def test_fp8_with_scales(self):
        demo = fault_support.make_demo(self.directory / "demo", 1024)
        self.by_all_ways(self.under_test(demo))

    def test_plain(self):
        self.by_all_ways(self.under_test(plain(self.directory / "plain")))

    def test_within_64_mebibytes_of_memory_by_several_readers(self):
        demo = fault_support.make_demo(self.directory / "demo", 1024)
        source = self.under_test(demo)
        mount = self.logged_mount(source.path, "direct,memory=64MiB")
        names = files_below(mount / self.VIEWS[0])
        source.reset()
        run("sh", "-c", 'for f; do dd if="$f" of=/dev/null bs=1M status=none & done; wait', "sh",
            *(mount / self.VIEWS[0] / name for name in names))  # fmt: skip
        self.check(source, "all files at once")


if __name__ == "__main__":
    unittest.main(verbosity=2)
