#!/usr/bin/env python3
"""Copies of a view by the tools people use: each gives the bytes of `ckfs export`, and rsync finds
nothing to do a second time. For minutes, and with killed readers among them: tests/slow/test_soak.py.
"""
import concurrent.futures
import mmap
import os
import pathlib
import shutil
import subprocess
import unittest

from support import WorkDirectory, make_demo, mounted, run

VIEW = "bf16-safetensors"


def command(*arguments):
    done = subprocess.run(list(map(str, arguments)), stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise AssertionError(f"{arguments}: exit {done.returncode}: {done.stderr}")
    return done.stdout


def by_cp(source, target):
    command("cp", source, target)


def by_dd_direct(source, target):
    command("dd", f"if={source}", f"of={target}", "iflag=direct", "bs=1M")


def by_dd_small(source, target):
    command("dd", f"if={source}", f"of={target}", "bs=5000")


def by_mmap(source, target):
    with open(source, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapping:
        pathlib.Path(target).write_bytes(mapping)


def by_private_mmap(source, target):
    with open(source, "rb") as file, mmap.mmap(
            file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ) as mapping:
        pathlib.Path(target).write_bytes(mapping)


def by_sendfile(source, target):
    with open(source, "rb") as reader, open(target, "wb") as writer:
        offset, size = 0, os.fstat(reader.fileno()).st_size
        while offset < size:
            offset += os.sendfile(writer.fileno(), reader.fileno(), offset, size - offset)


def by_python(source, target):
    shutil.copyfile(source, target)


COPIERS = [by_cp, by_dd_direct, by_dd_small, by_mmap, by_private_mmap, by_sendfile, by_python]


class Exported(WorkDirectory):
    """A checkpoint in `source`, and in `content` the files of its view as `ckfs export` writes them."""

    def setUp(self):
        super().setUp()
        self.source = make_demo(self.work / "source")
        exported = self.work / "exported"
        run("export", self.source, VIEW, exported)
        self.content = {path.name: path.read_bytes() for path in exported.iterdir()}


class Copies(Exported):
    def check(self, directory):
        self.assertEqual(set(self.content), {path.name for path in directory.iterdir()})
        for name, content in self.content.items():
            self.assertTrue(content == (directory / name).read_bytes(), name)

    def copy_all(self, copier, view, out):
        out.mkdir()
        for name in self.content:
            copier(view / name, out / name)
        self.check(out)

    def test_by_each_tool_are_the_exported_bytes(self):
        for copier in COPIERS:
            with self.subTest(copier=copier.__name__), \
                    mounted(self.source, self.work / "mnt") as mnt:
                self.copy_all(copier, mnt / VIEW, self.work / f"cold-{copier.__name__}")
                self.copy_all(copier, mnt / VIEW, self.work / f"cached-{copier.__name__}")

    def test_of_a_direct_mount_are_the_exported_bytes(self):
        with mounted(self.source, self.work / "mnt", "-o", "direct") as mnt:
            for copier in (by_cp, by_dd_direct, by_dd_small, by_python):
                self.copy_all(copier, mnt / VIEW, self.work / f"direct-{copier.__name__}")

    def test_by_all_tools_at_once_are_the_exported_bytes(self):
        with mounted(self.source, self.work / "mnt", "--memory", "64MiB") as mnt, \
                concurrent.futures.ThreadPoolExecutor(len(COPIERS)) as pool:
            jobs = [pool.submit(self.copy_all, copier, mnt / VIEW, self.work / copier.__name__)
                    for copier in COPIERS]
            for job in jobs:
                job.result()


class Rsync(WorkDirectory):
    def sync(self, source, target, *options):
        """The files that rsync transferred."""
        told = command("rsync", "-a", "--out-format=%n", *options, f"{source}/", f"{target}/")
        return [line for line in told.splitlines() if not line.endswith("/")]

    def test_transfers_nothing_twice(self):
        source, copy = make_demo(self.work / "source"), self.work / "copy"
        with mounted(source, self.work / "mnt") as mnt:
            everything = self.sync(mnt / VIEW, copy)
            self.assertEqual(sorted(path.name for path in (mnt / VIEW).iterdir()),
                             sorted(everything))
            self.assertEqual([], self.sync(mnt / VIEW, copy))
            self.assertEqual([], self.sync(mnt / VIEW, copy, "--checksum"))
        with mounted(source, self.work / "mnt") as mnt:
            self.assertEqual([], self.sync(mnt / VIEW, copy))
            self.assertEqual([], self.sync(mnt / VIEW, copy, "--checksum"))

    def test_transfers_nothing_from_a_copied_source_with_the_same_mtimes(self):
        source, copy = make_demo(self.work / "source"), self.work / "copy"
        with mounted(source, self.work / "mnt") as mnt:
            self.sync(mnt / VIEW, copy)
        elsewhere = self.work / "elsewhere"
        command("cp", "-a", source, elsewhere)
        with mounted(elsewhere, self.work / "mnt") as mnt:
            self.assertEqual([], self.sync(mnt / VIEW, copy))
            self.assertEqual([], self.sync(mnt / VIEW, copy, "--checksum"))

    def test_finds_an_export_complete(self):
        source, copy = make_demo(self.work / "source"), self.work / "copy"
        run("export", source, VIEW, copy)
        with mounted(source, self.work / "mnt") as mnt:
            self.assertEqual([], self.sync(mnt / VIEW, copy))


if __name__ == "__main__":
    unittest.main()
