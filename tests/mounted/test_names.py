"""SEMANTICS: readdir, lookup, parameterised names."""

import ctypes
import json
import os
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import mounted_fs
from mounted_fs import libc

VIEWS = ["bf16-safetensors", "dcp", "fp16-safetensors", "fp32-consolidated", "fp32-safetensors",
         "source"]


def raw_listing(path):
    """[(name, d_ino, d_type, telldir after it)] in the kernel's order, with '.' and '..'."""

    class Dirent(ctypes.Structure):
        _fields_ = [
            ("d_ino", ctypes.c_uint64),
            ("d_off", ctypes.c_int64),
            ("d_reclen", ctypes.c_uint16),
            ("d_type", ctypes.c_uint8),
            ("d_name", ctypes.c_char * 256),
        ]

    libc.opendir.restype = ctypes.c_void_p
    libc.readdir.restype = ctypes.POINTER(Dirent)
    for function in (libc.readdir, libc.closedir):
        function.argtypes = [ctypes.c_void_p]
    stream = libc.opendir(os.fsencode(path))
    found = []
    while entry := libc.readdir(stream):
        record = entry.contents
        found.append((record.d_name.decode(), record.d_ino, record.d_type, record.d_off))
    libc.closedir(stream)
    return found


def listing_from(path, offset):
    """Names from a position that an earlier reader was told."""
    libc.opendir.restype = ctypes.c_void_p
    libc.seekdir.argtypes = [ctypes.c_void_p, ctypes.c_long]
    libc.closedir.argtypes = [ctypes.c_void_p]
    stream = libc.opendir(os.fsencode(path))
    libc.seekdir(stream, offset)
    names = []
    libc.readdir.argtypes = [ctypes.c_void_p]
    while entry := libc.readdir(stream):
        names.append(entry.contents.d_name.decode())
    libc.closedir(stream)
    return names


class Names(mounted_fs.TestCase):
    def test_root_has_the_views_and_the_control_directory(self):
        mount = self.mount()
        self.assertEqual(sorted(os.listdir(mount.target)), [".ckfs", *VIEWS])

    def test_listing_is_sorted_with_inodes_and_types(self):
        mount = self.mount()
        for directory in ("", "bf16-safetensors", "source", "source/assets", ".ckfs"):
            listing = raw_listing(mount / directory)
            names = [name for name, *_ in listing]
            self.assertEqual(names, [".", "..", *sorted(names[2:])])
            for name, inode, kind, _ in listing[2:]:
                status = os.lstat(mount / directory / name)
                self.assertEqual(status.st_ino, inode, name)
                self.assertEqual(kind, 4 if os.path.isdir(mount / directory / name) else 8, name)

    def test_listing_goes_on_at_a_remembered_position(self):
        mount = self.mount()
        for directory in ("", "source"):
            listing = raw_listing(mount / directory)
            names = [name for name, *_ in listing]
            for number, (*_, offset) in enumerate(listing):
                self.assertEqual(listing_from(mount / directory, offset), names[number + 1 :])

    def test_views_mirror_the_shards_and_carry_side_files(self):
        mount = self.mount()
        shards = list(mounted_fs.Checkpoint.SHARDS)
        side = ["config.json", "model.safetensors.index.json", "tokenizer.json"]
        for view in ("bf16-safetensors", "fp16-safetensors", "fp32-safetensors"):
            names = sorted(
                name for name in os.listdir(mount / view) if not os.path.isdir(mount / view / name)
            )
            self.assertEqual(names, sorted(shards + side))
        self.assertEqual((mount / "source/assets/notes/read.txt").read_bytes(), b"notes\n")

    def test_names_that_are_not_there(self):
        mount = self.mount()
        for name in ("x", ".git", "source/x", "bf16-safetensors@x=1", "bf16-safetensors@", "@",
                     "bf16-safetensors@max_shard=0x", "source/assets/x", "fp32-safetensors@cast=all",
                     "a" * 255):  # fmt: skip
            self.fails("ENOENT", os.stat, mount / name)
            self.fails("ENOENT", os.stat, mount / name)  # the kernel's own memory of it
        self.fails("ENOTDIR", os.stat, mount / "source/config.json/x")

    def test_names_that_are_too_long(self):
        mount = self.mount()
        for directory in (mount, mount / "source"):
            self.fails("ENOENT", os.stat, directory / ("n" * 255))
            for length in (256, 1000):
                self.fails("ENAMETOOLONG", os.stat, directory / ("n" * length))

    def test_a_parameterised_view_appears_on_lookup(self):
        mount = self.mount()
        view = mount / "fp32-safetensors@max_shard=2MB"
        shards = sorted(view.glob("*.safetensors"))
        self.assertGreater(len(shards), 2)
        tensors = {}
        for shard in shards:
            tensors.update(mounted_fs.read_tensors(shard.read_bytes()))
        expected = {name: mounted_fs.widen(data) for name, data in self.checkpoint.tensors.items()}
        self.assertEqual(tensors, expected)
        self.assertNotIn(view.name, os.listdir(mount.target))

    def test_every_spelling_has_the_same_inodes(self):
        mount = self.mount()

        def inodes(view):
            return {name: os.stat(mount / view / name).st_ino for name in os.listdir(mount / view)}

        self.assertEqual(inodes("bf16-safetensors"), inodes("bf16-safetensors@cast=all"))
        self.assertEqual(inodes("bf16-safetensors"), inodes("bf16-safetensors@experts=source"))
        one = inodes("fp32-safetensors@max_shard=2MB")
        self.assertEqual(one, inodes("fp32-safetensors@max_shard=2000000"))
        self.assertEqual(one, inodes("fp32-safetensors@max_shard=2000KB"))
        self.assertNotEqual(one, inodes("fp32-safetensors"))

    def test_a_refused_name_is_explained_in_the_log_once(self):
        log = self.directory / "log"
        mount = self.mount(f"log_file={log}")
        for _ in range(3):
            self.fails("ENOENT", os.stat, mount / "bf16-safetensors@max_shard=lots")
            self.fails("ENOENT", os.stat, mount / "no-view")
        lines = [line for line in log.read_text().splitlines() if "lots" in line]
        self.assertEqual(len(lines), 1, lines)
        self.assertNotIn("no-view", log.read_text())

    def test_hundreds_of_parameterised_views(self):
        mount = self.mount()
        first = None
        for number in range(300):
            view = mount / f"bf16-safetensors@max_shard={2_000_000 + number}"
            inode = os.stat(view / "config.json").st_ino
            first = first or inode
        again = mount / "bf16-safetensors@max_shard=2000000"
        self.assertEqual(os.stat(again / "config.json").st_ino, first)
        self.assertEqual((again / "tokenizer.json").read_bytes(), b'{"version": "1.0"}\n')

        def held():
            views = json.loads((mount / ".ckfs/views.json").read_text())["views"]
            return sum("@" in view["name"] for view in views)

        # The kernel forgets what it is asked to forget when it comes to it.
        deadline = time.monotonic() + mounted_fs.LIMIT
        while held() > 64 and time.monotonic() < deadline:
            time.sleep(0.01)
        self.assertLessEqual(held(), 64)


if __name__ == "__main__":
    mounted_fs.main()
