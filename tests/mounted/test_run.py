"""`ckfs run`: a mount that lives as long as a command."""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import mounted_fs
from mounted_fs import CKFS, LIMIT, is_mounted, wait_until_unmounted

CONFIG = "{}/bf16-safetensors/config.json"


class Run(mounted_fs.TestCase):
    def setUp(self):
        super().setUp()
        temporary = tempfile.TemporaryDirectory(prefix="ckfs-run-test-")
        self.addCleanup(temporary.cleanup)
        self.temporary = pathlib.Path(temporary.name)

    def words(self, *words):
        return [CKFS, "run", self.checkpoint.path, *words]

    def run_(self, *words, **options):
        return subprocess.run(self.words(*words), capture_output=True, text=True, timeout=LIMIT,
                              env={**os.environ, "TMPDIR": str(self.temporary),
                                   "PATH": "/usr/bin:/bin"}, **options)

    def left(self):
        return [path.name for path in self.temporary.iterdir()]

    def test_the_command_reads_the_views_and_nothing_is_left(self):
        done = self.run_("--", "cat", CONFIG)
        self.assertEqual(done.stderr, "")
        shown = subprocess.run([CKFS, "cat", self.checkpoint.path, "bf16-safetensors/config.json"],
                               capture_output=True, text=True)
        self.assertEqual(done.stdout, shown.stdout)
        self.assertEqual(done.returncode, 0)
        self.assertEqual(self.left(), [])

    def test_the_directory_is_in_the_environment(self):
        done = self.run_("--", "sh", "-c", 'echo "$CKFS_MOUNT"; ls "$CKFS_MOUNT"; echo "$1"', "-",
                         "--{}--{}")
        lines = done.stdout.splitlines()
        self.assertEqual(lines[-1], f"--{lines[0]}--{lines[0]}")
        self.assertIn("bf16-safetensors", lines)
        self.assertFalse(is_mounted(lines[0]))

    def test_the_exit_code_is_the_commands(self):
        for script, code in (("exit 3", 3), ("kill -9 $$", 137), ("exit 0", 0)):
            self.assertEqual(self.run_("--", "sh", "-c", script).returncode, code)
        missing = self.run_("--", "no-such-program")
        self.assertEqual(missing.returncode, 127)
        self.assertEqual(missing.stderr, "ckfs: no-such-program: No such file or directory\n")
        self.assertEqual(self.run_("--", "/etc/passwd").returncode, 126)
        self.assertEqual(self.left(), [])

    def test_where_nothing_is_mounted_nothing_runs(self):
        done = subprocess.run([CKFS, "run", "/no/such", "--", "echo", "ran"], capture_output=True,
                              text=True, env={**os.environ, "TMPDIR": str(self.temporary)})
        self.assertEqual((done.returncode, done.stdout), (125, ""))
        self.assertRegex(done.stderr, "^ckfs: /no/such: [^\n]+\n$")
        self.assertEqual(self.left(), [])
        self.assertEqual(subprocess.run([CKFS, "run", self.checkpoint.path],
                                        capture_output=True).returncode, 2)

    def test_the_command_has_the_streams_and_descriptors_of_the_caller(self):
        reading, writing = os.pipe()
        done = self.run_("--", "sh", "-c", f"cat >&{writing}", input="through", pass_fds=[writing])
        os.close(writing)
        with open(reading) as pipe:
            self.assertEqual(pipe.read(), "through")  # ends: the daemon does not have it
        self.assertEqual(done.returncode, 0)

    def started(self):
        child = subprocess.Popen(
            self.words("--", "sh", "-c", "trap 'echo ended; exit 5' TERM; echo {}; "
                       "while read line; do :; done"),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "TMPDIR": str(self.temporary)})
        self.addCleanup(child.stdin.close)
        self.addCleanup(child.stdout.close)
        mountpoint = child.stdout.readline().strip()
        self.assertTrue(is_mounted(mountpoint))
        return child, mountpoint

    def test_sigterm_is_the_commands(self):
        child, mountpoint = self.started()
        child.send_signal(signal.SIGTERM)
        # Its input stays open: at the end of that the command would end by itself.
        self.assertEqual(child.stdout.readline(), "ended\n")
        self.assertEqual(child.wait(LIMIT), 5)
        self.assertFalse(is_mounted(mountpoint))
        self.assertEqual(self.left(), [])

    def test_a_killed_run_leaves_no_mount(self):
        child, mountpoint = self.started()
        child.kill()
        child.wait(LIMIT)
        child.stdin.close()  # so that the command ends, too
        wait_until_unmounted(mountpoint)


if __name__ == "__main__":
    mounted_fs.main()
