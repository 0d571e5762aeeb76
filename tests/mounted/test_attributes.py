"""SEMANTICS: sizes, times, inodes, modes, extended attributes, statfs."""

import os
import pathlib
import shutil
import stat
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import mounted_fs

SHARD = "bf16-safetensors/" + mounted_fs.Checkpoint.SHARDS[0]


def tree(top):
    """{path: (kind, size, mtime, inode)} of everything below `top` but .ckfs."""
    found = {}
    for directory, folders, files in os.walk(top):
        folders[:] = [name for name in folders if name != ".ckfs"]
        for name in folders + files:
            path = pathlib.Path(directory, name)
            status = os.lstat(path)
            found[str(path.relative_to(top))] = (
                stat.S_IFMT(status.st_mode), status.st_size, status.st_mtime_ns, status.st_ino,
            )  # fmt: skip
    return found


class Attributes(mounted_fs.TestCase):
    def test_size_is_the_number_of_bytes(self):
        mount = self.mount()
        for path in tree(mount.target):
            if not os.path.isdir(mount / path):
                self.assertEqual(len((mount / path).read_bytes()), os.stat(mount / path).st_size)

    def test_blocks_and_block_size(self):
        mount = self.mount()
        for path, (kind, size, *_) in tree(mount.target).items():
            if kind != stat.S_IFREG:
                continue
            status = os.stat(mount / path)
            self.assertEqual(status.st_blocks, (size + 511) // 512, path)
            self.assertEqual(status.st_blksize, 1 << 20, path)

    def test_mtime_is_the_newest_of_the_source_in_whole_seconds(self):
        mount = self.mount()
        for path in tree(mount.target):
            status = os.stat(mount / path)
            self.assertEqual(status.st_mtime_ns, 1_700_000_000 * 10**9, path)
            self.assertEqual(status.st_ctime_ns, status.st_mtime_ns, path)

    def test_mtime_option(self):
        mount = self.mount("mtime=1234567890")
        for path in ("", "source", SHARD, "source/config.json"):
            self.assertEqual(os.stat(mount / path).st_mtime, 1234567890)

    def modes(self, mount):
        """{(kind, permissions)} of everything in the mount."""
        modes = {os.lstat(mount / path).st_mode for path in ["", ".ckfs", *tree(mount.target)]}
        return {(stat.S_IFMT(mode), stat.S_IMODE(mode)) for mode in modes}

    def test_modes_links_and_owner(self):
        mount = self.mount("umask=022")
        self.assertEqual(self.modes(mount), {(stat.S_IFDIR, 0o755), (stat.S_IFREG, 0o644)})
        for path in tree(mount.target):
            status = os.stat(mount / path)
            self.assertEqual(status.st_nlink, 1, path)
            self.assertEqual((status.st_uid, status.st_gid), (os.geteuid(), os.getegid()), path)

    def test_modes_are_less_the_umask(self):
        mount = self.mount("umask=027")
        self.assertEqual(self.modes(mount), {(stat.S_IFDIR, 0o750), (stat.S_IFREG, 0o640)})

    def test_the_umask_is_that_of_who_mounts(self):
        before = os.umask(0o077)
        self.addCleanup(os.umask, before)
        mount = self.mount()
        self.assertEqual(self.modes(mount), {(stat.S_IFDIR, 0o700), (stat.S_IFREG, 0o600)})

    def test_copies_belong_to_their_owner(self):
        mount = self.mount()
        view = mount / "bf16-safetensors"
        copies = {
            "cp": ["cp", "-r", view, "{}"],
            "cp-a": ["cp", "-a", view, "{}"],
            "rsync": ["rsync", "-a", f"{view}/", "{}"],
            "tar": ["sh", "-c", 'mkdir "$1" && tar -C "$0" -c . | tar -C "$1" -xp', view, "{}"],
        }
        for name, command in copies.items():
            copy = self.directory / name
            subprocess.run([str(word).format(copy) for word in command], check=True)
            with open(copy / "config.json", "ab") as file:
                file.write(b"\n")
            (copy / "new").write_bytes(b"")
            shutil.rmtree(copy)

    def test_inodes_leave_the_upper_bits_to_overlayfs(self):
        inodes = {inode for *_, inode in tree(self.mount().target).values()}
        self.assertGreater(len(inodes), 20)
        self.assertLess(max(inodes), 1 << 62)

    def test_everything_is_the_same_after_a_remount(self):
        with mounted_fs.Mount(self.checkpoint.path, self.directory / "one") as mount:
            before = tree(mount.target)
        with mounted_fs.Mount(self.checkpoint.path, self.directory / "two") as mount:
            self.assertEqual(tree(mount.target), before)
        self.assertGreater(len(before), 20)

    def test_everything_is_the_same_from_a_copied_source(self):
        copy = self.directory / "copy"
        shutil.copytree(self.checkpoint.path, copy)  # keeps mtimes
        with mounted_fs.Mount(self.checkpoint.path, self.directory / "one") as mount:
            before = tree(mount.target)
        with mounted_fs.Mount(copy, self.directory / "two") as mount:
            self.assertEqual(tree(mount.target), before)

    def test_extended_attributes(self):
        mount = self.mount()
        name = mounted_fs.Checkpoint.SHARDS[0]
        expected = {"bf16-safetensors": b"bit-exact", "fp32-safetensors": b"exact",
                    "fp16-safetensors": b"lossy", "source": b"bit-exact"}  # fmt: skip
        for view, exactness in expected.items():
            path = mount / view / name
            self.assertEqual(os.getxattr(path, "user.ckfs.exactness"), exactness)
            self.assertEqual(os.getxattr(path, "user.ckfs.source"), name.encode())
            self.assertEqual(os.getxattr(path, "user.ckfs.view"), view.encode())
            self.assertEqual(
                sorted(os.listxattr(path)),
                ["user.ckfs.exactness", "user.ckfs.source", "user.ckfs.view"],
            )
        self.assertEqual(os.getxattr(mount / "source", "user.ckfs.view"), b"source")

    def test_other_extended_attributes_are_not_there(self):
        mount = self.mount()
        for name in ("user.other", "user.ckfs.other", "security.capability", "user.ckfs."):
            self.fails("ENODATA", os.getxattr, mount / SHARD, name)
        self.assertEqual(os.listxattr(mount.target), [])

    def test_statfs_below_a_view_is_the_views(self):
        mount = self.mount()
        for view in ("source", "fp32-safetensors"):
            sizes = [
                os.stat(os.path.join(directory, name)).st_size
                for directory, _, names in os.walk(mount / view)
                for name in names
            ]
            status = os.statvfs(mount / view)
            self.assertEqual(status.f_blocks, (sum(sizes) + 511) // 512)
            self.assertEqual(status.f_frsize, 512)
            self.assertEqual(status.f_files, len(sizes))
            self.assertEqual((status.f_bfree, status.f_bavail, status.f_ffree), (0, 0, 0))
            self.assertEqual(status.f_namemax, 255)
            self.assertTrue(status.f_flag & os.ST_RDONLY)

    def test_statfs_of_the_root_is_the_sum_of_the_views_looked_into(self):
        mount = self.mount()
        self.assertEqual(os.statvfs(mount.target).f_blocks, 0)
        one = os.statvfs(mount / "source").f_blocks
        self.assertEqual(os.statvfs(mount.target).f_blocks, one)
        two = os.statvfs(mount / "fp32-safetensors").f_blocks
        self.assertAlmostEqual(os.statvfs(mount.target).f_blocks, one + two, delta=1)

    def test_device_and_type_in_the_mount_table(self):
        mount = self.mount()
        (row,) = [row for row in mounted_fs.mounts() if row[0] == str(mount.target)]
        self.assertEqual(row[1:3], ("fuse.ckfs", str(self.checkpoint.path)))
        for word in ("ro", "nosuid", "nodev", "default_permissions"):
            self.assertIn(word, row[3].split(","))


if __name__ == "__main__":
    mounted_fs.main()
