"""mount.ckfs, called as mount(8) calls it: without PATH, with mount's own flags and options."""

import os
import pathlib
import re
import signal
import subprocess
import sys
import textwrap
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import mounted_fs
from mounted_fs import CKFS, LIMIT, ROOT, is_mounted


class Helper(mounted_fs.TestCase):
    def setUp(self):
        super().setUp()
        # The helper looks for ckfs beside itself: PREFIX/sbin/mount.ckfs, PREFIX/bin/ckfs.
        (self.directory / "prefix/sbin").mkdir(parents=True)
        (self.directory / "prefix/bin").mkdir()
        self.program = self.directory / "prefix/sbin/mount.ckfs"
        self.program.write_bytes((ROOT / "mount-helpers/mount.ckfs").read_bytes())
        self.program.chmod(0o755)
        (self.directory / "prefix/bin/ckfs").symlink_to(CKFS)
        self.target = self.directory / "mnt"
        self.target.mkdir()

    def helper(self, *words):
        return subprocess.run([self.program, *words], env={}, cwd="/", timeout=LIMIT, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)  # fmt: skip

    def works(self, *words):
        done = self.helper(self.checkpoint.path, self.target, *words)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertTrue(is_mounted(self.target))
        (pid,) = mounted_fs.processes(self.target)
        size = os.stat(self.target / "source/config.json")
        mounted_fs.ckfs("umount", self.target)
        self.assertTrue(mounted_fs.wait_for_end(pid))
        return size

    def test_options_of_fstab_are_dropped(self):
        self.works()
        self.works("-o", "rw")
        self.works("-o", "rw,user,noauto,nofail,_netdev,x-systemd.automount,X-mount.mkdir=0755")
        self.works("-s", "-n", "-v", "-t", "ckfs", "-o", "ro,nosuid,nodev,noatime,defaults")

    def test_options_of_ckfs_are_passed_on(self):
        self.assertEqual(self.works("-o", "rw,mtime=1234567890").st_mtime, 1234567890)
        self.assertEqual(self.works("-o", "mtime=5", "-o", "noauto").st_mtime, 5)

    def test_fake_mounts_nothing(self):
        done = self.helper(self.checkpoint.path, self.target, "-f", "-v", "-o", "direct")
        self.assertEqual(done.returncode, 0)
        self.assertIn(f"mount -o direct {self.checkpoint.path} {self.target}", done.stdout)
        self.assertFalse(is_mounted(self.target))

    def test_failures_are_mounts_own_exit_codes(self):
        self.assertEqual(self.helper().returncode, 1)
        self.assertEqual(self.helper(self.checkpoint.path).returncode, 1)
        self.assertEqual(self.helper(self.checkpoint.path, self.target, "-Z").returncode, 1)
        remount = self.helper(self.checkpoint.path, self.target, "-o", "remount,ro")
        self.assertEqual(remount.returncode, 1)
        self.assertIn("cannot be changed", remount.stderr)
        absent = self.helper(self.directory / "absent", self.target)
        self.assertEqual(absent.returncode, 32)
        self.assertRegex(absent.stderr, r"\Ackfs: .*absent.*\n\Z")
        unknown = self.helper(self.checkpoint.path, self.target, "-o", "allow_othr")
        self.assertEqual(unknown.returncode, 1)
        self.assertIn("allow_othr", unknown.stderr)

    def test_ckfs_itself_is_missing(self):
        (self.directory / "prefix/bin/ckfs").unlink()
        done = self.helper(self.checkpoint.path, self.target, "-f")
        if done.returncode == 0:  # one is installed on this machine
            self.assertTrue(os.path.exists("/usr/bin/ckfs") or os.path.exists("/usr/local/bin/ckfs"))
        else:
            self.assertEqual(done.returncode, 32)
            self.assertRegex(done.stderr, r"\Amount.ckfs: ckfs: not found .*\n\Z")

    # The tools look for their helpers in /usr/sbin only, and this machine's is not ours to write to:
    # a namespace in which ours lies over it, and ckfs over /usr/local/bin.
    INSTALLED = """
        prefix=$1
        for folder in sbin local/bin; do
          mount -t overlay -o lowerdir=$prefix/${folder##*/}:/usr/$folder ckfs /usr/$folder || exit 9
        done
        shift
        "$@"
    """

    def mount_command(self, *words):
        """mount(8) with `words`, then a look at the root and umount(8): what that printed."""
        script = 'mount "$@" && ls "$0" && umount "$0"'
        return mounted_fs.run(
            "unshare", "--mount", "--propagation", "private", "sh", "-c", self.INSTALLED, "sh",
            self.directory / "prefix", "sh", "-c", script, self.target, *words, check=False,
        )  # fmt: skip

    def test_mount_finds_the_helper(self):
        if os.geteuid() != 0:  # whom mount(8) lets do nothing that fstab does not
            words = ["mount", "-t", "ckfs", self.checkpoint.path, self.target]
            refused = mounted_fs.run(*words, check=False)
            self.assertNotEqual(refused.returncode, 0)
            self.assertFalse(is_mounted(self.target))
            return
        options = "direct,nosuid,nofail"
        done = self.mount_command("-t", "ckfs", "-o", options, self.checkpoint.path, self.target)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("bf16-safetensors\n", done.stdout)

        table = self.directory / "fstab"
        table.write_text(f"{self.checkpoint.path} {self.target} ckfs ro,noauto,user,mtime=7 0 0\n")
        done = self.mount_command("-T", table, self.target)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("bf16-safetensors\n", done.stdout)

        done = self.mount_command("-t", "ckfs", self.directory / "absent", self.target)
        self.assertEqual(done.returncode, 32)
        self.assertRegex(done.stderr, r"\Ackfs: .*absent.*\n\Z")


class Sidecar(mounted_fs.TestCase):
    """The command of mount-helpers/kubernetes/loader-pod.yaml, in the directories of this test."""

    MANIFEST = ROOT / "mount-helpers/kubernetes/loader-pod.yaml"

    def setUp(self):
        super().setUp()
        if os.geteuid() != 0:
            self.skipTest("allow_other needs root, or a line in /etc/fuse.conf")
        (self.directory / "bin").mkdir()
        (self.directory / "bin/ckfs").symlink_to(CKFS)
        self.views = self.directory / "views"
        self.views.mkdir()

    def script(self):
        block = re.search(r"command:\n +- sh\n +- -c\n +- >-\n((?: {10}.*\n)+)", self.MANIFEST.read_text())
        words = textwrap.dedent(block[1]).replace("\n", " ")
        return words.replace("/views", str(self.views)).replace("/source", str(self.checkpoint.path))

    def start(self):
        path = f"{self.directory / 'bin'}:{os.environ['PATH']}"
        daemon = subprocess.Popen(["sh", "-c", self.script()], env={**os.environ, "PATH": path})
        self.addCleanup(daemon.wait, LIMIT)
        self.addCleanup(daemon.kill)
        deadline = time.monotonic() + LIMIT
        served = self.views / "model/source/config.json"
        while mounted_fs.error_of(served.read_bytes):  # stat() also answers of a dead mount
            self.assertIsNone(daemon.poll(), "the sidecar ended")
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)
        return daemon

    def test_starts_in_a_new_volume_and_after_it_was_killed(self):
        for _ in range(2):
            daemon = self.start()
            daemon.send_signal(signal.SIGKILL)
            daemon.wait(LIMIT)
            self.assertTrue(is_mounted(self.views / "model"))
        daemon = self.start()
        mounted_fs.ckfs("umount", self.views / "model")
        self.assertEqual(daemon.wait(LIMIT), 0)


if __name__ == "__main__":
    mounted_fs.main()
