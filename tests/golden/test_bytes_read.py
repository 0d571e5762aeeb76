#!/usr/bin/env python3
"""What is read of a ZeRO checkpoint: the fp32 partitions, once, and never a byte of the
Adam moments that lie beside them, neither to mount, nor to list, nor to read a view.

The checkpoints are seen through a counting source that makes every other read of a storage fail.
"""
import json
import os
import pathlib
import sys
import tempfile
import unittest
import zipfile

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "golden"), str(TESTS / "support"), str(TESTS / "tools")]
import digest  # noqa: E402
import ways  # noqa: E402
from counting_source import CountingSource  # noqa: E402

DATA = ways.DATA.parent / "deepspeed"
CASES = [path.parent for path in sorted(DATA.glob("*/fixture.json"))]
WITH_EXTENTS = [case for case in CASES if "extents" in json.loads(
    (case / "fixture.json").read_text())]
VIEW = "fp32-consolidated"


def storages(path):
    """[(begin, end)] of the storages of a torch zip file. zipfile reads its directory only."""
    found = []
    with open(path, "rb") as file, zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            if "/data/" in info.filename and info.file_size:
                file.seek(info.header_offset + 26)
                name, extra = (int.from_bytes(file.read(2), "little") for _ in range(2))
                begin = info.header_offset + 30 + name + extra
                found.append((begin, begin + info.file_size))
    return found


def wanted(case):
    """{rank file: [(begin, end)]} of the parameters' bytes, merged."""
    fixture = json.loads((case / "fixture.json").read_text())
    found = {}
    for extents in fixture["extents"].values():
        for extent in extents:
            name = f"{fixture['latest']}/{extent['file']}"
            found.setdefault(name, []).append(
                (extent["offset"], extent["offset"] + extent["length"]))
    return {name: merged(ranges) for name, ranges in found.items()}


def copied(case):
    """{rank file: bytes} that are read a second time, for the copies of tied tensors."""
    fixture = json.loads((case / "fixture.json").read_text())
    expected = json.loads((case / "expected.json").read_text())
    found = {}
    for name in expected["ties"].get(f"{VIEW}@format=bin", {}).values():
        for extent in fixture["extents"][name]:
            path = f"{fixture['latest']}/{extent['file']}"
            found[path] = found.get(path, 0) + extent["length"]
    return found


def merged(ranges):
    result = []
    for begin, end in sorted(ranges):
        if result and begin <= result[-1][1]:
            result[-1] = (result[-1][0], max(end, result[-1][1]))
        else:
            result.append((begin, end))
    return result


def outside(storage, ranges):
    """The pieces of the storage that are in none of the ranges."""
    begin, end = storage
    for from_, to in ranges:
        if to <= begin or from_ >= end:
            continue
        if begin < from_:
            yield begin, from_
        begin = max(begin, to)
    if begin < end:
        yield begin, end


class WorkDirectory(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="ckfs-golden-")
        self.addCleanup(temporary.cleanup)
        self.work = pathlib.Path(temporary.name)

    def counting(self, directory):
        mountpoint = self.work / f"counted{len(list(self.work.glob('counted*')))}"
        source = CountingSource(directory, mountpoint)
        self.addCleanup(source.close)
        return source

    def check_tensors(self, case, out):
        expected = json.loads((case / "expected.json").read_text())["tensors"][VIEW]
        self.assertEqual([], list(digest.differences(expected, str(out / VIEW))))


class AdamMoments(WorkDirectory):
    def poisoned(self, case):
        source = self.counting(case / "source")
        spared, poisoned = wanted(case), 0
        for path in sorted((case / "source").rglob("*_optim_states.pt")):
            name = str(path.relative_to(case / "source"))
            for storage in storages(path):
                for begin, end in outside(storage, spared.get(name, [])):
                    source.poison(name, begin, end)
                    poisoned += end - begin
        self.assertGreater(poisoned, 0)
        return source

    def test_are_never_read(self):
        for case in WITH_EXTENTS:
            for engine in (["--io", "uring"], ["--io", "pread", "--tile-bytes", "4096"]):
                with self.subTest(case=case.name, engine=" ".join(engine)):
                    source = self.poisoned(case)
                    out = self.work / f"{case.name}{len(engine)}"
                    for view in (VIEW, f"{VIEW}@format=bin", "bf16-safetensors"):
                        (out / view).mkdir(parents=True)
                        ways.by_mount(source.path, view, out / view, self.work, engine)
                    ways.run("inspect", source.path)
                    ways.run("export", source.path, VIEW, out / "exported", *engine)
                    self.check_tensors(case, out)
                    counts = source.counts()
                    self.assertEqual([], counts["poisoned"])
                    source.close()

    def test_of_a_universal_checkpoint_are_never_read(self):
        for case in CASES:
            if not case.name.startswith("universal"):
                continue
            with self.subTest(case=case.name):
                source = self.counting(case / "source")
                for path in (case / "source").rglob("exp_avg*.pt"):
                    source.poison(str(path.relative_to(case / "source")))
                out = self.work / case.name
                (out / VIEW).mkdir(parents=True)
                ways.by_export(source.path, VIEW, out / VIEW, self.work, [])
                self.check_tensors(case, out)
                read = [name for name, file in source.counts()["files"].items()
                        if "exp_avg" in name and file["requests"]]
                self.assertEqual([], read)
                source.close()


class Partitions(WorkDirectory):
    def test_are_read_once_by_one_who_reads_the_view_in_order(self):
        for case in WITH_EXTENTS:
            with self.subTest(case=case.name):
                source = self.counting(case / "source")
                with ways.mounted(source.path, self.work / "mnt") as mnt:
                    (path,) = (mnt / VIEW).glob("*.safetensors")
                    source.reset()
                    with open(path, "rb", buffering=0) as file:
                        while file.read(1 << 20):
                            pass
                    counts = source.counts()["files"]
                for name, ranges in wanted(case).items():
                    needed = sum(end - begin for begin, end in ranges) + copied(case).get(name, 0)
                    self.assertEqual(needed, counts[name]["bytes"], name)
                    self.assertEqual([list(r) for r in ranges], counts[name]["ranges"], name)
                self.assertEqual(set(), {name for name in counts if "_optim_states" in name
                                         and counts[name]["bytes"]} - set(wanted(case)))
                source.close()

    def test_of_ranks_left_over_from_a_larger_world_are_not_read(self):
        case = DATA / "stale-rank-files"
        (folder,) = (path for path in (case / "source").iterdir() if path.is_dir())
        source = self.counting(case / "source")
        stale = [path for path in folder.glob("*_optim_states.pt")
                 if int(path.name.split("pp_rank_")[1].split("_")[0]) >= 2]
        self.assertTrue(stale)
        for path in stale:
            for begin, end in storages(path):
                source.poison(str(path.relative_to(case / "source")), begin, end)
        out = self.work / "out"
        (out / VIEW).mkdir(parents=True)
        ways.by_mount(source.path, VIEW, out / VIEW, self.work, [])
        self.check_tensors(case, out)
        self.assertEqual(0, source.counts()["poisoned_reads"])


class Mounting(WorkDirectory):
    def test_and_listing_read_no_storage(self):
        for case in CASES:
            if case.name == "zero2-bf16-w2-legacy-stream":  # not zip; its storages have headers
                continue
            with self.subTest(case=case.name):
                source = self.counting(case / "source")
                for path in sorted((case / "source").rglob("*.pt")):
                    for begin, end in storages(path):
                        source.poison(str(path.relative_to(case / "source")), begin, end)
                with ways.mounted(source.path, self.work / "mnt") as mnt:
                    names = [os.path.join(folder, name) for folder, _, files in os.walk(mnt)
                             for name in files]
                    self.assertTrue(all(os.stat(name).st_size >= 0 for name in names))
                    self.assertTrue(any(VIEW in name for name in names))
                self.assertEqual([], source.counts()["poisoned"])
                source.close()


if __name__ == "__main__":
    unittest.main()
