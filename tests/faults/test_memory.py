"""--memory is a budget: sixteen, and sixty-four, readers of a source ten times its size stay within
it, and who does not read holds none of it.

The source is sparse FP8 with scales; what the daemon held at its peak is the kernel's own account of
it (VmHWM, without pages of files)."""

import os
import pathlib
import select
import struct
import subprocess
import time
import unittest
from concurrent.futures import ThreadPoolExecutor

import fault_support
from fault_support import mounted_fs

MEBIBYTE = 1 << 20
BUDGET = 64 * MEBIBYTE
CATALOG = 1 * MEBIBYTE  # two hundred bytes for each of some forty tensors, and room
SLACK = 64_000_000
IDLE = 32_000_000  # what a mount that nobody reads may hold beside its catalog
ROWS, COLUMNS, BLOCK = 4096, 8192, 128


def big_checkpoint(path):
    """Six shards of three FP8 matrices, 32 MiB each, and their scales: all ones."""
    path.mkdir()
    blocks = [ROWS // BLOCK, COLUMNS // BLOCK]
    scales = struct.pack("<f", 1.0) * (blocks[0] * blocks[1])
    shapes = {}
    for name in "abc":
        shapes[f"{name}.weight"] = ("F8_E4M3", [ROWS, COLUMNS], ROWS * COLUMNS)
        shapes[f"{name}.weight_scale_inv"] = ("F32", blocks, len(scales))
    for shard in range(6):
        held = {f"model.layers.{shard}.{name}": entry for name, entry in shapes.items()}
        header = mounted_fs.safetensors_header(held)
        with open(path / f"model-{shard + 1:05d}-of-00006.safetensors", "wb") as file:
            file.write(header)
            at = len(header)
            for name, (_, _, size) in held.items():
                if name.endswith("scale_inv"):
                    file.seek(at)
                    file.write(scales)
                else:
                    file.seek(at + ROWS * COLUMNS - 1)
                    file.write(b"\x38")  # the code of 1.0, in a sea of zeros
                at += size
    (path / "config.json").write_text(
        '{"torch_dtype": "bfloat16", "quantization_config": '
        f'{{"quant_method": "fp8", "weight_block_size": [{BLOCK}, {BLOCK}]}}}}\n'
    )
    return path


def status_of(pid):
    lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return {name: int(text.split()[0]) * 1024 for name, text in fields.items()
            if text.strip().endswith("kB")}  # fmt: skip


def resident(pid):
    """Memory of the process now, without pages of files."""
    status = status_of(pid)
    return status["VmRSS"] - status["RssFile"] - status["RssShmem"]


class Memory(fault_support.TestCase):
    # Mapped pages of the source are the page cache's, but VmHWM counts them (io/file_mappings.h).
    MAPPED = 64 * MEBIBYTE
    LIMIT = BUDGET + CATALOG + SLACK + MAPPED

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.big = big_checkpoint(cls.shared / "big")

    def read_everything(self, mount, view, threads, size):
        """Each file is read by several of the threads, from different places."""
        shards = sorted(path for path in (mount / view).iterdir() if path.suffix == ".safetensors")
        parts = []
        for path in shards:
            length = path.stat().st_size
            step = -(-length // 4)
            parts += [(path, begin, min(begin + step, length)) for begin in range(0, length, step)]

        def read(part):
            path, at, end = part
            descriptor = os.open(path, os.O_RDONLY)
            try:
                buffer = bytearray(size)
                last = b""
                while at < end:
                    got = os.preadv(descriptor, [memoryview(buffer)[: min(size, end - at)]], at)
                    self.assertGreater(got, 0)
                    last = bytes(buffer[got - 2 : got])
                    at += got
                return end, last
            finally:
                os.close(descriptor)

        with ThreadPoolExecutor(threads) as pool:
            found = list(pool.map(read, parts))
        return sum(path.stat().st_size for path in shards), found

    def check(self, view, options, size, one, readers=16):
        mount = self.mount(f"{options}memory=64MiB,log_file={self.log}", source=self.big)
        total, found = self.read_everything(mount, view, readers, size)
        self.assertGreater(total, 1_200_000_000)
        # The last element of each matrix is a one, all others are zeros.
        self.assertIn(one, [last for _, last in found])
        status = status_of(mount.pid)
        held = status["VmHWM"] - status["RssFile"]
        print(f"{view} {options or 'cached,'} {size}: {held / MEBIBYTE:.1f} MiB")
        self.assertLessEqual(held, self.LIMIT)
        told = mount.status()
        self.assertEqual(told["memory_budget"], BUDGET)
        self.assertLessEqual(told["memory_peak"], BUDGET)
        mount.unmount()

    def test_sixteen_direct_readers(self):
        self.check("bf16-safetensors", "direct,", MEBIBYTE, b"\x80\x3f")

    def test_sixteen_readers_with_large_requests(self):
        self.check("fp32-safetensors", "direct,", 16 * MEBIBYTE, b"\x80\x3f")

    def test_sixteen_cached_readers(self):
        self.check("bf16-safetensors", "", 128 << 10, b"\x80\x3f")

    def test_sixty_four_readers(self):
        self.check("bf16-safetensors", "direct,", MEBIBYTE, b"\x80\x3f", readers=64)

    def test_an_idle_mount_gives_memory_back(self):
        """The budget is large, so that all that was computed could be kept."""
        mount = self.mount(f"direct,memory=1GiB,log_file={self.log}", source=self.big)
        os.listdir(mount / "bf16-safetensors")
        before = resident(mount.pid)
        self.read_everything(mount, "bf16-safetensors", 16, MEBIBYTE)
        busy = resident(mount.pid)
        deadline = time.monotonic() + mounted_fs.LIMIT
        while (kept := resident(mount.pid)) > before + IDLE and time.monotonic() < deadline:
            select.select([], [], [], 0.1)
        print(f"idle: {before / MEBIBYTE:.1f} MiB, {busy / MEBIBYTE:.1f} MiB when busy,"
              f" then {kept / MEBIBYTE:.1f} MiB")
        self.assertLessEqual(kept, before + IDLE)
        mount.unmount()

    def test_export_with_sixteen_jobs(self):
        out = self.directory / "out"
        command = [fault_support.CKFS, "export", "--memory", "64MiB", "--jobs", "16",
                   self.big, "bf16-safetensors", out]  # fmt: skip
        with subprocess.Popen([str(word) for word in command]) as process:
            _, code, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(code)
        self.assertEqual(process.returncode, 0)
        # The whole peak: some MB of the program's own file are in it.
        held = usage.ru_maxrss * 1024
        print(f"export: {held / MEBIBYTE:.1f} MiB")
        self.assertLessEqual(held, self.LIMIT)


if __name__ == "__main__":
    unittest.main(verbosity=2)
