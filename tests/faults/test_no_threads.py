"""No thread can be started (RLIMIT_NPROC, pids.max): a checkpoint of many shards is opened by the
one thread there is, and the lack is reported once. So is it exported."""

import os
import resource
import unittest

import fault_support
from fault_support import ckfs, run

# Nobody else's: the limit counts all processes of a user.
USER = 64217


def forbid_threads():
    """In the child, before it becomes the program. Root would be exempt."""
    resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(USER)
        os.setuid(USER)


class NoThreads(fault_support.TestCase):
    def test_export_does_with_one(self):
        model = self.checkpoint.path
        out = self.directory / "out"
        out.mkdir()
        if os.geteuid() == 0:
            os.chown(out, USER, USER)
        for path in [self.directory, model.parent, model, *model.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)
        run(self.program_for_all(), "export", "--jobs", "4", model, "fp32-safetensors", out,
            preexec_fn=forbid_threads)  # fmt: skip
        ckfs("export", model, "fp32-safetensors", self.directory / "other")
        for path in (self.directory / "other").glob("*.safetensors"):
            self.assertEqual((out / path.name).read_bytes(), path.read_bytes(), path.name)

    def test_inspect_is_the_same_and_says_so_once(self):
        model = self.checkpoint.path
        for path in [self.directory, model.parent, model, *model.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)
        words = ("inspect", "--json", model)
        alone = run(self.program_for_all(), *words, preexec_fn=forbid_threads)
        self.assertEqual(alone.stdout, ckfs(*words).stdout)
        self.assertRegex(
            alone.stderr, r"\Ackfs: warning: threads: the system refuses another one \([^\n]*\n\Z"
        )


if __name__ == "__main__":
    unittest.main(verbosity=2)
