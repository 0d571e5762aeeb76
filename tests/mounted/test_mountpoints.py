"""SEMANTICS: where ckfs mounts, where not, and what it says."""

import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import mounted_fs
from mounted_fs import CKFS, ckfs, is_mounted, run


class Mountpoints(mounted_fs.TestCase):
    def refused(self, target, text, source=None, options=None, code=1):
        words = ["-o", options] if options else []
        done = ckfs("mount", *words, source or self.checkpoint.path, target, check=False)
        self.assertEqual(done.returncode, code, done.stderr)
        self.assertEqual(done.stdout, "")
        self.assertRegex(done.stderr, r"\Ackfs: [^\n]*\n\Z")
        self.assertRegex(done.stderr, text)

    def test_absent(self):
        self.refused(self.directory / "absent/deeper", "absent")

    def test_it_is_made_where_only_it_is_missing(self):
        target = self.directory / "made"
        self.refused(target, "no such file", source=self.directory / "nothing")
        self.assertFalse(target.exists(), "left behind by a mount that failed")
        with mounted_fs.Mount(self.checkpoint.path, target) as mount:
            self.assertIn("source", os.listdir(mount.target))
        self.assertEqual(os.listdir(target), [])
        self.refused(target, "no such file", source=self.directory / "nothing")
        self.assertTrue(target.exists(), "it was there before")

    def test_not_a_directory(self):
        (self.directory / "file").write_text("")
        self.refused(self.directory / "file", "file: not a directory")

    def test_not_empty_is_allowed_and_hidden_for_the_time(self):
        target = self.directory / "mnt"
        target.mkdir()
        (target / "before").write_text("here")
        with mounted_fs.Mount(self.checkpoint.path, target) as mount:
            self.assertNotIn("before", os.listdir(mount.target))
        self.assertEqual((target / "before").read_text(), "here")

    def test_a_ckfs_mount_is_not_mounted_over(self):
        mount = self.mount()
        self.refused(mount.target, r"a ckfs mount of .*model is in place \(`ckfs umount .*mnt`\)")
        self.assertIn("source", os.listdir(mount.target))

    def test_within_the_source(self):
        source = mounted_fs.Checkpoint(self.directory / "source", megabytes=1)
        for name in ("", "inner", "assets"):
            (source.path / name).mkdir(exist_ok=True)
            self.refused(source.path / name, "source", source=source.path)
        self.refused(self.directory, "hide its own source", source=source.path)
        self.refused(self.directory, "hide", source=source.shard(0))

    def test_within_the_source_by_a_symbolic_link(self):
        source = mounted_fs.Checkpoint(self.directory / "source", megabytes=1)
        (source.path / "inner").mkdir()
        (self.directory / "link").symlink_to(source.path / "inner")
        self.refused(self.directory / "link", "lies within", source=source.path)

    def test_a_symbolic_link_to_a_directory_is_followed(self):
        (self.directory / "mnt").mkdir()
        (self.directory / "link").symlink_to("mnt")
        ckfs("mount", self.checkpoint.path, self.directory / "link")
        self.assertTrue(is_mounted(self.directory / "mnt"))
        ckfs("umount", self.directory / "link")
        self.assertFalse(is_mounted(self.directory / "mnt"))

    def test_odd_names(self):
        for name in ("with space", "tab\there", "back\\slash", "comma,comma", "ümlaut", "new\nline"):
            (self.directory / name).mkdir()
            source = mounted_fs.Checkpoint(self.directory / f"of {name}", megabytes=1)
            ckfs("mount", source.path, self.directory / name)
            self.assertIn("source", os.listdir(self.directory / name))
            ckfs("umount", str(self.directory / name) + "/")
            self.assertEqual(os.listdir(self.directory / name), [])

    def test_relative_paths(self):
        (self.directory / "mnt").mkdir()
        ckfs("mount", os.path.relpath(self.checkpoint.path, self.directory), "mnt",
             cwd=self.directory)  # fmt: skip
        self.assertIn("source", os.listdir(self.directory / "mnt"))
        ckfs("umount", "mnt", cwd=self.directory)

    def test_umount_of_what_is_no_ckfs_mount(self):
        for target in ("/proc", self.directory, self.directory / "absent"):
            done = ckfs("umount", target, check=False)
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.stderr, r"\Ackfs: .*: not a ckfs mount\n\Z")

    def test_a_source_that_is_none_leaves_no_mount(self):
        target = self.directory / "mnt"
        target.mkdir()
        (self.directory / "empty").mkdir()
        (self.directory / "text").write_text("no checkpoint")
        for name in ("empty", "text", "absent"):
            self.refused(target, name, source=self.directory / name)
            self.assertFalse(is_mounted(target))
            self.assertEqual(mounted_fs.processes(target), [])

    def test_no_device(self):
        if os.geteuid() != 0:
            return self.refused_without_fusermount()
        # In a mount namespace of its own, where /dev has nothing in it.
        (self.directory / "mnt").mkdir()
        script = 'mount -t tmpfs none /dev && exec "$0" mount "$1" "$2"'
        done = run("unshare", "-m", "sh", "-c", script, CKFS, self.checkpoint.path,
                   self.directory / "mnt", check=False)  # fmt: skip
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"\Ackfs: /dev/fuse: no such device: .*modprobe fuse.*\n\Z")

    def refused_without_fusermount(self):
        # mount(2) is not allowed here, and the helper refuses what is not the user's own.
        self.refused("/usr", "usr: .*(fusermount3|permitted)")

    def test_no_permission_to_mount(self):
        if os.geteuid() != 0:
            return self.refused_without_fusermount()
        (self.directory / "mnt").mkdir()
        done = run("setpriv", "--bounding-set=-sys_admin", "--inh-caps=-all", CKFS, "mount",
                   self.checkpoint.path, self.directory / "mnt", check=False)  # fmt: skip
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"\Ackfs: .*mnt: mounting is not permitted: CAP_SYS_ADMIN")
        self.assertFalse(is_mounted(self.directory / "mnt"))

    def test_allow_other(self):
        (self.directory / "mnt").mkdir()
        try:
            allowed = "\nuser_allow_other" in pathlib.Path("/etc/fuse.conf").read_text()
        except OSError:
            allowed = False
        if os.geteuid() != 0 and not allowed:
            self.refused(self.directory / "mnt", "allow_other.*user_allow_other",
                         options="allow_other")  # fmt: skip
            return
        mount = self.mount("allow_other")
        os.chmod(self.directory, 0o755)
        if os.geteuid() == 0:
            done = subprocess.run(["ls", mount.target], user=1234, group=1234, extra_groups=[],
                                  stdout=subprocess.PIPE, text=True, check=True)  # fmt: skip
            self.assertIn("source", done.stdout)

    def test_without_allow_other_others_see_nothing(self):
        mount = self.mount()
        os.chmod(self.directory, 0o755)
        if os.geteuid() == 0:
            done = subprocess.run(["ls", mount.target], user=1234, group=1234, extra_groups=[],
                                  stderr=subprocess.PIPE, text=True, check=False)  # fmt: skip
            self.assertIn("Permission denied", done.stderr)
        else:
            (row,) = [row for row in mounted_fs.mounts() if row[0] == str(mount.target)]
            self.assertNotIn("allow_other", row[3])

    def test_the_kernel_reads_little_ahead_by_itself(self):
        device = os.stat(self.mount().target).st_dev
        path = pathlib.Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb")
        self.assertEqual(int(path.read_text()), 64)


if __name__ == "__main__":
    mounted_fs.main()
