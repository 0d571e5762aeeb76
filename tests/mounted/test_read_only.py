"""SEMANTICS: whatever would change something is EROFS."""

import ctypes
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import mounted_fs
from mounted_fs import libc

SHARD = "bf16-safetensors/" + mounted_fs.Checkpoint.SHARDS[0]


class ReadOnly(mounted_fs.TestCase):
    def setUp(self):
        super().setUp()
        self.target = self.mount().target
        self.path = self.target / SHARD

    def changes(self):
        """(name, call) of everything that changes a filesystem."""
        path, new = self.path, self.target / "source/new"
        yield "open for writing", lambda: os.open(path, os.O_WRONLY)
        yield "open for both", lambda: os.open(path, os.O_RDWR)
        yield "open and truncate", lambda: os.open(path, os.O_WRONLY | os.O_TRUNC)
        yield "open to append", lambda: os.open(path, os.O_WRONLY | os.O_APPEND)
        yield "create", lambda: os.open(new, os.O_WRONLY | os.O_CREAT)
        yield "create in the root", lambda: os.open(self.target / "new", os.O_RDWR | os.O_CREAT)
        yield "create anew", lambda: os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        yield "temporary file", lambda: os.open(self.target, os.O_TMPFILE | os.O_RDWR)
        yield "truncate", lambda: os.truncate(path, 0)
        yield "unlink", lambda: os.unlink(path)
        yield "rmdir", lambda: os.rmdir(self.target / "source")
        yield "mkdir", lambda: os.mkdir(new)
        yield "mkfifo", lambda: os.mkfifo(new)
        yield "symlink", lambda: os.symlink("x", new)
        yield "link", lambda: os.link(path, new)
        yield "rename", lambda: os.rename(path, new)
        yield "chmod", lambda: os.chmod(path, 0o600)
        yield "chown", lambda: os.chown(path, os.geteuid(), os.getegid())
        yield "utime", lambda: os.utime(path)
        yield "setxattr", lambda: os.setxattr(path, "user.x", b"1")
        yield "removexattr", lambda: os.removexattr(path, "user.ckfs.view")

    def test_every_change_is_refused(self):
        # O_TMPFILE is refused for want of an implementation before the mount is looked at.
        exceptions = {"temporary file": ("EROFS", "EOPNOTSUPP")}
        for name, call in self.changes():
            wanted = exceptions.get(name, ("EROFS",))
            self.assertIn(mounted_fs.error_of(call), wanted, name)

    def test_descriptors_opened_for_reading_do_not_write(self):
        descriptor = os.open(self.path, os.O_RDONLY)
        self.addCleanup(os.close, descriptor)
        self.fails("EBADF", os.write, descriptor, b"x")
        self.fails("EINVAL", os.ftruncate, descriptor, 0)
        self.assertEqual(libc.fallocate(descriptor, 0, ctypes.c_int64(0), ctypes.c_int64(10)), -1)
        self.assertEqual(ctypes.get_errno(), 9)  # EBADF

    def test_access_tells_the_same(self):
        self.assertTrue(os.access(self.path, os.R_OK))
        self.assertFalse(os.access(self.path, os.W_OK))
        self.assertFalse(os.access(self.path, os.X_OK))
        self.assertTrue(os.access(self.path.parent, os.R_OK | os.X_OK))
        self.assertFalse(os.access(self.path.parent, os.W_OK))

    def test_a_mount_that_root_made_writable_still_refuses(self):
        if os.geteuid() != 0:
            self.fails("EROFS", os.unlink, self.path)  # an ordinary user cannot even try
            return
        before = self.path.read_bytes()
        mounted_fs.run("mount", "-i", "-o", "remount,rw", self.target)
        for name, call in self.changes():
            if name in ("temporary file", "rename", "link"):
                continue
            self.assertIn(mounted_fs.error_of(call), ("EROFS", "EACCES"), name)
        self.fails("EROFS", os.rename, self.path, str(self.path) + ".new")
        self.fails("EROFS", os.link, self.path, str(self.path) + ".new")
        self.assertEqual(self.path.read_bytes(), before)


if __name__ == "__main__":
    mounted_fs.main()
