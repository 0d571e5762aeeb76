#!/usr/bin/env python3
"""Orbax checkpoints as a source, against what Orbax restores of them.

The view `safetensors` of every golden case comes out of `ckfs cat`, `ckfs export` and a mount, with
both readers, 1 and 8 threads, tiles of the normal size and of 4 KiB, in 64 MiB.
"""
import pathlib
import random
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import orbax_cases as orbax  # noqa: E402
import ways  # noqa: E402

MEMORY = ["--memory", "64MiB"]


def tensors_of(directory):
    found = {}
    for path in sorted(directory.glob("*.safetensors")):
        found |= orbax.safetensors(path)
    return found


class OrbaxSources(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="ckfs-orbax-")
        self.addCleanup(temporary.cleanup)
        self.work = pathlib.Path(temporary.name)

    def test_cases_are_there(self):
        self.assertEqual(len(orbax.CASES), 33, orbax.CASES)

    def test_every_array_by_every_way(self):
        for number, case in enumerate(orbax.CASES):
            want = orbax.expected_in_safetensors(case)
            self.assertTrue(want)
            for run, (way, engine) in enumerate(ways.golden_runs()):
                with self.subTest(case=case, way=way, engine=engine):
                    work = self.work / f"{number}-{run}"
                    out = work / "out"
                    out.mkdir(parents=True)
                    ways.WAYS[way](orbax.source_of(case), "safetensors", out, work,
                                   [*engine, *MEMORY, *orbax.options_of(case)])
                    self.assertEqual(tensors_of(out), want)

    def test_random_reads_are_parts_of_the_whole(self):
        rng = random.Random(12)
        for case in [("sharded_v3_many_files", "arrays"), ("odd_zarr2", "arrays"),
                     ("tall_tree", "arrays")]:
            source = orbax.source_of(case)
            with self.subTest(case=case), ways.mounted(source, self.work / case[0],
                                                       "--tile-bytes", "4096", *MEMORY) as mount:
                path, = (mount / "safetensors").glob("*.safetensors")
                whole = subprocess.run(["cat", path], check=True, capture_output=True).stdout
                with open(path, "rb", buffering=0) as file:
                    for _ in range(300):
                        begin = rng.randrange(len(whole))
                        size = rng.choice([1, 7, 100, 5000])
                        file.seek(begin)
                        self.assertEqual(file.read(size), whole[begin:begin + size])


if __name__ == "__main__":
    unittest.main()
