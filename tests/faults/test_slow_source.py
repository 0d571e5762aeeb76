"""A source that takes 5 ms for each read, as a network does: what is read is right, each byte of the
source is asked for once, and a mount and a copy end within a bound."""

import os
import random
import signal
import subprocess
import threading
import time
import unittest

import fault_support
from fault_support import mounted_fs

MILLISECONDS = 5
SHARDS = 60
BOUND = 30  # seconds; one 4 KiB read after the other takes longer


class SlowSource(fault_support.TestCase):
    def setUp(self):
        super().setUp()
        self.source = self.counting(self.checkpoint.path)

    def check(self, data, tensors):
        for name, tensor in mounted_fs.read_tensors(data).items():
            self.assertEqual(tensor, mounted_fs.widen(tensors[name]), name)

    def test_read_in_order_is_right_and_asked_for_once(self):
        mount = self.mount(f"log_file={self.log}", source=self.source.path)
        shards = [mount / "fp32-safetensors" / name for name in mounted_fs.Checkpoint.SHARDS]
        self.source.reset()
        self.source.delay(MILLISECONDS)
        begin = time.monotonic()
        for shard in shards:
            self.check(shard.read_bytes(), self.checkpoint.tensors)
        self.assertLess(time.monotonic() - begin, BOUND)
        needed = sum(map(len, self.checkpoint.tensors.values()))
        self.assertLessEqual(self.source.counts()["bytes"], 1.02 * needed)

    def test_read_anywhere_by_many_is_right(self):
        mount = self.mount(f"direct,log_file={self.log}", source=self.source.path)
        path = mount / "fp32-safetensors" / mounted_fs.Checkpoint.SHARDS[0]
        data = path.read_bytes()
        self.check(data, self.checkpoint.tensors)
        self.source.delay(MILLISECONDS)
        wrong = []

        def read(seed):
            numbers = random.Random(seed)
            descriptor = os.open(path, os.O_RDONLY)
            for _ in range(20):
                at = numbers.randrange(len(data))
                size = numbers.randrange(1, 1 << numbers.randrange(1, 20))
                if os.pread(descriptor, size, at) != data[at : at + size]:
                    wrong.append((at, size))
            os.close(descriptor)

        threads = [threading.Thread(target=read, args=(seed,)) for seed in range(8)]
        begin = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])
        self.assertLess(time.monotonic() - begin, BOUND)

    def test_a_mount_that_was_interrupted_before_it_stood_is_none(self):
        self.source.delay(300)
        target = self.target()
        caller = subprocess.Popen([mounted_fs.CKFS, "mount", self.source.path, target,
                                   "-o", f"log_file={self.log}"])  # fmt: skip
        while not self.source.counts()["bytes"]:
            self.assertIsNone(caller.poll(), "it ended before it read anything")
            time.sleep(0.01)
        caller.send_signal(signal.SIGINT)
        self.assertEqual(caller.wait(mounted_fs.LIMIT), -signal.SIGINT)
        left = mounted_fs.processes(target)
        self.assertNotEqual(left, [], "the checkpoint was open too soon")
        for process in left:
            self.assertTrue(mounted_fs.wait_for_end(process))
        self.assertFalse(mounted_fs.is_mounted(target))

    def test_of_many_shards_is_mounted_within_the_bound(self):
        directory = self.directory / "shards"
        directory.mkdir()
        for k in range(SHARDS):
            fault_support.write_safetensors(
                directory / f"model-{k + 1:05d}-of-{SHARDS:05d}.safetensors",
                {f"layer.{k}.weight": ("BF16", [4], bytes([k] * 8))})  # fmt: skip
        source = self.counting(directory, "many")
        source.delay(MILLISECONDS)
        begin = time.monotonic()
        mount = self.mount(f"log_file={self.log}", source=source.path)
        self.assertLess(time.monotonic() - begin, BOUND)
        names = os.listdir(mount / "fp32-safetensors")
        self.assertEqual(len([n for n in names if n.endswith(".safetensors")]), SHARDS)


if __name__ == "__main__":
    unittest.main(verbosity=2)
