"""A tensor in hundreds of boxes, from hundreds of files, read through a mount: in order, anywhere,
and by many threads at once on one descriptor; and 46,000 tensors in each of twelve views."""

import array
import os
import pathlib
import random
import re
import sys
import threading

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS / "support"))
import mounted_fs
from mounted_fs import run

PIECES, FILES, COLUMNS = 700, 300, 1021


class Boxes(mounted_fs.TestCase):
    """make_dcp.py's tensor: the bits of element k are the number k."""

    options = ""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.source = cls.shared / "dcp"
        run(sys.executable, TESTS / "tools/make_dcp.py", cls.source, "--pieces", PIECES,
            "--bytes", PIECES * COLUMNS * 4, "--files", FILES)  # fmt: skip
        cls.shared.chmod(0o755)
        numbers = range(PIECES * COLUMNS)
        cls.fp32 = array.array("I", numbers).tobytes()
        # To the nearest, ties to even.
        cls.bf16 = array.array("H", ((k + 0x7FFF + (k >> 16 & 1)) >> 16 for k in numbers)).tobytes()

    def opened(self, view):
        """(descriptor, where the tensor begins)"""
        self.target = getattr(self, "target", None) or self.mount(self.options, source=self.source)
        descriptor = os.open(self.target / view / "model.safetensors", os.O_RDONLY)
        self.addCleanup(os.close, descriptor)
        return descriptor, 8 + int.from_bytes(os.pread(descriptor, 8, 0), "little")

    def test_in_order_have_their_bytes(self):
        for view, data in (("fp32-safetensors", self.fp32), ("bf16-safetensors", self.bf16)):
            descriptor, begin = self.opened(view)
            got = b"".join(iter(lambda: os.read(descriptor, 1 << 20), b""))
            self.assertTrue(got[begin:] == data, view)

    def test_anywhere_have_their_bytes(self):
        numbers = random.Random(5)
        for view, data in (("fp32-safetensors", self.fp32), ("bf16-safetensors", self.bf16)):
            descriptor, begin = self.opened(view)
            for _ in range(200):
                at = numbers.randrange(len(data))
                size = min(numbers.randrange(1, 40_000), len(data) - at)
                self.assertTrue(os.pread(descriptor, size, begin + at) == data[at : at + size],
                                (view, at, size))  # fmt: skip

    def test_read_by_eight_threads_on_one_descriptor_have_their_bytes(self):
        descriptor, begin = self.opened("bf16-safetensors")
        wrong = []

        def read(seed):
            numbers = random.Random(seed)
            for _ in range(80):
                at = numbers.randrange(len(self.bf16))
                size = min(numbers.randrange(1, 1 << numbers.randrange(1, 20)), len(self.bf16) - at)
                if os.pread(descriptor, size, begin + at) != self.bf16[at : at + size]:
                    wrong.append((at, size))
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

        threads = [threading.Thread(target=read, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])


class DirectBoxes(Boxes):
    """Every read reaches the daemon."""

    options = "direct"


class Arrays(mounted_fs.TestCase):
    """1,025 arrays in 45,395 chunks, of which only the names say what model they are."""

    def test_all_views_are_listed_in_150_mb(self):
        source = self.shared / "item"
        run(sys.executable, TESTS / "tools/make_orbax_scale.py", source)
        target = self.mount(source=source)
        listed = [name for directory, _, names in os.walk(target / ".")
                  for name in names if os.lstat(os.path.join(directory, name)).st_size]  # fmt: skip
        self.assertGreater(len(listed), 1000)
        views = {"bf16-safetensors", "fp32-safetensors", "maxtext-scanned", "maxtext-unscanned"}
        self.assertLessEqual(views, set(os.listdir(target / ".")))
        status = pathlib.Path(f"/proc/{target.pid}/status").read_text()
        peak = int(re.search(r"VmHWM:\s*(\d+) kB", status).group(1)) * 1024
        self.assertLess(peak, 150_000_000)


if __name__ == "__main__":
    mounted_fs.main()
