"""No thread can be started (RLIMIT_NPROC, pids.max): a checkpoint of many shards is opened by the
one thread there is, and the lack is reported once. So is it exported. A mount needs some threads:
without, it is refused, and leaves nothing behind; nor where it is memory that ends."""

import os
import resource
import subprocess
import unittest

import fault_support
from fault_support import CKFS, ckfs, is_mounted, mounted_fs, run

# Nobody else's: the limit counts all processes of a user.
USER = 64217


def limit_processes(most):
    resource.setrlimit(resource.RLIMIT_NPROC, (most, most))


def forbid_threads():
    """In the child, before it becomes the program. Root would be exempt."""
    limit_processes(1)
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(USER)
        os.setuid(USER)


class NoThreads(fault_support.TestCase):
    def setUp(self):
        super().setUp()
        model = self.checkpoint.path
        for path in [self.directory, model.parent, model, *model.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)

    def test_export_does_with_one(self):
        model = self.checkpoint.path
        out = self.directory / "out"
        out.mkdir()
        if os.geteuid() == 0:
            os.chown(out, USER, USER)
        run(self.program_for_all(), "export", "--jobs", "4", model, "fp32-safetensors", out,
            preexec_fn=forbid_threads)  # fmt: skip
        ckfs("export", model, "fp32-safetensors", self.directory / "other")
        for path in (self.directory / "other").glob("*.safetensors"):
            self.assertEqual((out / path.name).read_bytes(), path.read_bytes(), path.name)

    def test_inspect_is_the_same_and_says_so_once(self):
        words = ("inspect", "--json", self.checkpoint.path)
        alone = run(self.program_for_all(), *words, preexec_fn=forbid_threads)
        self.assertEqual(alone.stdout, ckfs(*words).stdout)
        self.assertRegex(
            alone.stderr, r"\Ackfs: warning: threads: the system refuses another one \([^\n]*\n\Z"
        )

    def test_mount_is_refused(self):
        target = self.directory / "mnt"
        target.mkdir()
        # Root is exempt until the daemon becomes another user; by then it has its keeper.
        as_root = os.geteuid() == 0
        options = ("-o", "setuid=nobody") if as_root else ()
        for limit in (1, 3):  # none; none left for requests
            done = subprocess.run(
                [CKFS, "mount", "-f", *options, self.checkpoint.path, target],
                preexec_fn=lambda limit=limit: limit_processes(limit),
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60,
                check=False,
            )  # fmt: skip
            self.assertEqual(done.returncode, 1, done.stdout)
            if as_root:
                self.assertRegex(done.stdout, r"ckfs: .*/mnt: no thread can be started to serve it")
            self.assertFalse(is_mounted(target))

    def test_no_mount_is_left_behind_wherever_memory_ends(self):
        target = self.target()
        outcomes = set()
        for size in range(18 << 20, 80 << 20, 1536 << 10):
            done = subprocess.run(
                [CKFS, "mount", self.checkpoint.path, target],
                preexec_fn=lambda size=size: resource.setrlimit(resource.RLIMIT_AS, (size, size)),
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60,
                check=False,
            )  # fmt: skip
            if done.returncode == 127:  # the dynamic loader had no memory: ckfs has not begun
                self.assertIn("error while loading shared libraries", done.stdout)
                continue
            self.assertIn(done.returncode, (0, 1), (size, done.stdout))
            if done.returncode == 1:
                self.assertFalse(is_mounted(target), (size, done.stdout))
                self.assertNotRegex(done.stdout, "exception|std::|terminate|Internal", size)
            else:  # a thread may find no memory after it has answered, which ends the mount, too
                subprocess.run([CKFS, "umount", target], capture_output=True, check=False)
                mounted_fs.wait_until_unmounted(target)
            outcomes.add(done.returncode)
        self.assertEqual(outcomes, {0, 1})


if __name__ == "__main__":
    unittest.main(verbosity=2)
