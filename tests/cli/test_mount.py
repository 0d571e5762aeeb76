"""`ckfs mount` as a program: the daemon, the log, and what a failure leaves."""

import json
import os
import pathlib
import resource
import signal
import unittest

import cli_support
import json_schema
from cli_support import CKFS, LIMIT, mounted_fs, run, start


class Mount(cli_support.TestCase):
    def setUp(self):
        super().setUp()
        self.target = self.directory / "mnt"
        self.target.mkdir()

    def test_the_daemon_leaves_the_terminal_and_keeps_its_command_line(self):
        self.done("mount", self.source, self.target)
        try:
            (pid,) = mounted_fs.processes(self.target)
            process = pathlib.Path(f"/proc/{pid}")
            words = (process / "cmdline").read_bytes().decode().split("\0")[:-1]
            self.assertEqual(words, [CKFS, "mount", str(self.source), str(self.target)])
            self.assertEqual(os.readlink(process / "cwd"), "/")
            for number in (0, 1, 2):
                self.assertEqual(os.readlink(process / f"fd/{number}"), "/dev/null")
            self.assertEqual(os.getsid(pid), pid)
        finally:
            self.done("umount", self.target)
        self.assertTrue(mounted_fs.wait_for_end(pid))

    def test_a_low_soft_limit_of_descriptors_is_raised(self):
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, limits[1]))
        try:
            self.done("mount", self.source, self.target)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        try:
            (pid,) = mounted_fs.processes(self.target)
            self.assertEqual(resource.prlimit(pid, resource.RLIMIT_NOFILE), (limits[1], limits[1]))
        finally:
            self.done("umount", self.target)

    def test_relative_paths(self):
        here = self.directory
        (here / "model").symlink_to(self.source)
        self.done("mount", "model", "./mnt/", "--log-file", "log", cwd=here)
        try:
            self.assertIn("source", os.listdir(self.target))
            self.assertGreater((here / "log").stat().st_size, 0)
            self.assertIn(b"bytes to readers", self.done("stats", "mnt", cwd=here))
        finally:
            self.done("umount", "mnt", cwd=here)

    def test_a_log_file_is_a_file(self):
        where = self.directory
        os.mkfifo(where / "fifo")
        os.mkdir(where / "directory")
        for name, reason in (("fifo", "not a regular file"), ("directory", "Is a directory"),
                             ("none/log", "No such file")):
            for words in ([], ["-f"]):
                self.fails(1, reason, "mount", self.source, self.target, *words, "--log-file",
                           where / name)
        (where / "link").symlink_to("real")
        self.done("ls", self.source, "--log-file", where / "link")  # the user's own link
        self.assertTrue((where / "real").exists())
        os.chown(where / "link", 65534, 65534, follow_symlinks=False)
        self.fails(1, "link of another user", "ls", self.source, "--log-file", where / "link")

    def test_level_debug_shows_each_request(self):
        log = self.directory / "log"
        self.done("mount", self.source, self.target, "-o", f"log_file={log},log_level=debug")
        (self.target / "source/config.json").read_bytes()
        self.done("umount", self.target)
        for line in (r'lookup inode 1: "source"', r"open inode \d+",
                     r"read inode \d+: \d+ bytes at 0"):
            self.assertRegex(log.read_text(), f"debug {self.target}: {line}")

    def test_without_the_verb(self):
        self.done(self.source, self.target, "-o", "rw,nosuid,nodev,user=root,memory=64MiB,io=pread",
                  "-o", "mtime=1234567890,x-systemd.automount")
        try:
            status = os.stat(self.target / "source/config.json")
            self.assertEqual(status.st_mtime_ns, 1_234_567_890 * 10**9)
            self.assertIn(b'"memory_budget": 67108864', self.done("stats", "--json", self.target))
            self.assertIn(b'"io": "pread"', self.done("stats", "--json", self.target))
        finally:
            self.done("umount", self.target)

    def test_a_bad_source_leaves_no_mount(self):
        (self.source / "..").resolve()
        empty = self.directory / "empty"
        empty.mkdir()
        for words in ([], ["-f"]):
            self.fails(1, "empty", "mount", empty, self.target, *words)
            self.assertFalse(mounted_fs.is_mounted(self.target))

    def test_what_the_system_lacks_is_reported_of_a_mount_that_stands(self):
        # This system may lack them, too, and a program with sanitizers is not confined.
        landlock, seccomp = cli_support.LANDLOCK, (cli_support.SECCOMP,)
        for number, (calls, words) in enumerate([
                (landlock, "Landlock( and seccomp)?"), (seccomp, "(Landlock and )?seccomp"),
                (landlock + seccomp, "Landlock and seccomp")]):
            lacking = {"preexec_fn": cli_support.without(*calls)}
            empty = self.directory / f"empty{number}"
            empty.mkdir()
            self.fails(1, "empty", "mount", empty, self.target, **lacking)
            log = self.directory / f"log{number}"
            out = self.done("mount", self.source, self.target, "--log-file", log, **lacking)
            self.assertEqual(out, b"")
            self.done("umount", self.target)
            self.assertRegex(log.read_text(), rf"\A[^\n]*/mnt: mounted [^\n]*\n[^\n]*/mnt: "
                             rf"confined without {words}, which this system does not have\n")

    def test_a_bad_mountpoint_is_1(self):
        for words in ([], ["-f"]):
            self.fails(1, "absent", "mount", self.source, self.directory / "absent/deeper", *words)

    def test_makes_its_mountpoint_and_removes_it_where_it_fails(self):
        target = self.directory / "made"
        for words in ([], ["-f"]):
            self.fails(1, "no such file", "mount", self.directory / "nothing", target, *words)
            self.assertFalse(target.exists())
        self.done("mount", self.source, target)
        self.assertTrue(mounted_fs.is_mounted(target))
        self.done("umount", target)
        self.assertTrue(target.is_dir())

    def test_a_killed_daemon_is_told_and_cleared(self):
        self.done("mount", self.source, self.target)
        (pid,) = mounted_fs.processes(self.target)
        os.kill(pid, signal.SIGKILL)
        self.assertTrue(mounted_fs.wait_for_end(pid))
        self.fails(1, "daemon is dead", "stats", self.target)
        self.assertIn(f"BROKEN mounts: {self.target}: its daemon is dead", self.examined())
        self.assertIn({"mountpoint": str(self.target), "source": str(self.source), "state": "dead",
                       "views": []}, json.loads(self.done("list", "--json"))["mounts"])
        # A new mount takes its place.
        self.done("mount", self.source, self.target)
        self.assertIn("source", os.listdir(self.target))
        self.done("umount", self.target)
        self.assertFalse(mounted_fs.is_mounted(self.target))
        self.assertFalse(mounted_fs.is_mounted(self.target))

    def test_list_names_mounts_sources_and_views_that_are_read(self):
        self.done("mount", self.source, self.target)
        self.addCleanup(mounted_fs.ckfs, "umount", self.target)
        (self.target / "bf16-safetensors/model-00001-of-00002.safetensors").read_bytes()
        told = json.loads(self.done("list", "--json"))
        schema = json.loads((cli_support.ROOT / "docs/schema/list.json").read_text())
        self.assertEqual(json_schema.problems(told, schema), [])
        self.assertIn({"mountpoint": str(self.target), "source": str(self.source), "state": "alive",
                       "views": ["bf16-safetensors"]}, told["mounts"])
        self.assertIn(f"alive  {self.target}  of {self.source}  (bf16-safetensors)\n",
                      self.done("list").decode())
        self.assertIn(f"{self.target}\n", self.done("list", "-q").decode())

    def test_a_stopped_daemon_holds_nobody_up(self):
        self.done("mount", self.source, self.target)
        (pid,) = mounted_fs.processes(self.target)
        os.kill(pid, signal.SIGSTOP)
        try:
            self.assertIn(f"BROKEN mounts: {self.target}: its daemon does not answer",
                          self.examined())
            self.fails(1, "whose daemon does not answer", "mount", self.source, self.target)
            self.done("umount", self.target)
            self.assertFalse(mounted_fs.is_mounted(self.target))
        finally:
            os.kill(pid, signal.SIGCONT)
        self.assertTrue(mounted_fs.wait_for_end(pid))

    def examined(self):
        """What `ckfs doctor` says; not all of it is of this mount."""
        return run("doctor").stdout.decode()

    def test_what_opening_has_to_say_comes_to_the_user_and_into_the_log(self):
        source = cli_support.ROOT / "tests/data/torch/zip-wrapped-training-checkpoint/source"
        log = self.directory / "log"
        mounted = mounted_fs.ckfs("mount", source, self.target, "--log-file", log)
        self.addCleanup(mounted_fs.ckfs, "umount", self.target)
        lines = mounted.stderr.splitlines()
        self.assertEqual(len(lines), 6, lines)
        self.assertRegex(lines[0], r"\Ackfs: warning: .*/source: epoch: .*left out\Z")
        self.assertRegex(lines[-1], "2 more such notes")
        for line in lines:
            self.assertIn(line.removeprefix("ckfs: warning: "), log.read_text())

    def test_nothing_but_the_source_is_said_to_be_so(self):
        source = self.directory / "odd"
        source.mkdir()
        header = mounted_fs.safetensors_header({"a.weight": ("F8_E8M0", [4], 4)})
        (source / "model.safetensors").write_bytes(header + bytes(4))
        (source / "config.json").write_text('{"quantization_config": {"quant_method": "odd"}}')
        mounted = mounted_fs.ckfs("mount", source, self.target)
        self.addCleanup(mounted_fs.ckfs, "umount", self.target)
        self.assertEqual(sorted(os.listdir(self.target)), [".ckfs", "source"])
        self.assertRegex(mounted.stderr, r"\Ackfs: warning: .*only source/ can be shown: ")

    def test_foreground_ends_with_0_on_a_signal(self):
        program = start("mount", "-f", self.source, self.target, "--log-level", "warn")
        try:
            while not mounted_fs.is_mounted(self.target):
                self.assertIsNone(program.poll())
            self.assertIn("source", os.listdir(self.target))
            program.send_signal(signal.SIGINT)
            out, err = program.communicate(timeout=LIMIT)
            self.assertEqual((program.returncode, out), (0, b""), err)
        finally:
            program.kill()
            program.wait()


class DaemonLog(cli_support.TestCase):
    """Where the daemon's log goes, in a namespace with a /dev of its own; so as root only."""

    PROLOGUE = """
        set -e
        ckfs=$1 source=$2 mnt=$3 dev=$4
        # Mounts of other tests, which may lie below /dev.
        awk '$0 ~ / - fuse.ckfs /{print $5}' /proc/self/mountinfo | while read at; do
          umount -l "$at"
        done
        mount -t tmpfs none "$dev"
        mknod -m 666 "$dev/fuse" c 10 229
        mknod -m 666 "$dev/null" c 1 3
        mknod -m 666 "$dev/urandom" c 1 9
        mount --bind "$dev" /dev
    """
    LISTEN = """
        python3 -c '
import socket
log = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
log.bind("/dev/log")
print("ready", flush=True)
print(log.recv(65536), flush=True)
' > "$dev/received" & listener=$!
        until grep -q ready "$dev/received"; do kill -0 $listener; done
    """
    RUN = """
        "$ckfs" mount "$source" "$mnt"
        ls "$mnt" > /dev/null
        "$ckfs" umount "$mnt"
    """

    def setUp(self):
        super().setUp()
        for name in ("mnt", "dev", "state"):
            (self.directory / name).mkdir()
        self.target = self.directory / "mnt"
        self.state = self.directory / "state"

    def script(self, text):
        environment = {**os.environ, "XDG_STATE_HOME": str(self.state)}
        words = ["unshare", "--mount", "--propagation", "private", "sh", "-c",
                 self.PROLOGUE + text, "sh", CKFS, self.source, self.target,
                 self.directory / "dev"]  # fmt: skip
        return mounted_fs.run(*words, env=environment).stdout

    def test_goes_to_the_system_log(self):
        out = self.script(self.LISTEN + self.RUN + 'wait $listener; cat "$dev/received"')
        self.assertNotIn("no system log", out)
        self.assertRegex(out, r"ckfs\[\d+\]: .*/mnt: mounted")
        self.assertEqual(list(self.state.iterdir()), [])

    def test_goes_to_a_file_where_there_is_no_system_log(self):
        out = self.script(self.RUN)
        log = self.state / "ckfs/ckfs.log"
        self.assertEqual(out, "")
        self.assertRegex(log.read_text(), r"info .*/mnt: mounted")
        self.assertEqual(log.stat().st_mode & 0o777, 0o600)
        self.assertEqual(log.parent.stat().st_mode & 0o777, 0o700)
        out = self.script(self.RUN.replace("mount ", "mount -v ", 1))
        self.assertEqual(out, f"{self.target}: there is no system log: the log goes to {log}\n")
        self.assertEqual(log.read_text().count(": mounted"), 2)

    def test_umount_all_ends_every_mount(self):
        # In a mount namespace of its own: other mounts of this machine are none of this test's.
        out = self.script("""
            mkdir "$mnt/../a" "$mnt/../b"
            "$ckfs" mount "$source" "$mnt/../a"
            "$ckfs" mount "$source" "$mnt/../b"
            "$ckfs" list -q
            "$ckfs" umount --all
            "$ckfs" list
            "$ckfs" umount --all
            echo ended
        """)
        self.assertEqual(out, f"{self.directory}/a\n{self.directory}/b\nended\n")

    def test_follows_no_link_and_waits_for_no_fifo(self):
        elsewhere = self.directory / "elsewhere"
        elsewhere.write_text("")
        log = self.state / "ckfs/ckfs.log"
        log.parent.mkdir()
        for plant in (lambda: (os.symlink(elsewhere, log),
                               os.chown(log, 65534, 65534, follow_symlinks=False)),
                      lambda: os.mkfifo(log),
                      lambda: os.link(elsewhere, log)):  # fmt: skip
            plant()
            out = self.script(self.RUN)
            self.assertRegex(out, r"\A[^\n]*no system log, and no log[^\n]*cannot write[^\n]*\n\Z")
            self.assertEqual(elsewhere.read_text(), "")
            log.unlink()
        log.parent.rmdir()
        log.parent.symlink_to(self.directory / "mnt")
        self.assertIn("and no log", self.script(self.RUN))


if __name__ == "__main__":
    unittest.main(verbosity=2)
