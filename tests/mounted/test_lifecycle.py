"""SEMANTICS: how mounts end, and what their readers see of it."""

import mmap
import os
import pathlib
import signal
import subprocess
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import mounted_fs
from mounted_fs import CKFS, LIMIT, Mount, ckfs, is_mounted, processes, run, wait_for_end

SHARD = "fp32-safetensors/" + mounted_fs.Checkpoint.SHARDS[0]
GONE = ("ENOTCONN", "EIO", "ECONNABORTED", "ENODEV", "ENOENT", "EBADF")


class Reader:
    """A program that reads a file again and again, past the page cache."""

    PROGRAM = """
import os, sys
file = os.open(sys.argv[1], os.O_RDONLY)
size = os.fstat(file).st_size
print("reading", flush=True)
while True:
    os.lseek(file, 0, 0)
    while os.read(file, 1 << 20):
        pass
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
"""

    def __init__(self, path):
        self.process = subprocess.Popen(
            [sys.executable, "-c", self.PROGRAM, str(path)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout.readline() == "reading\n"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate(timeout=LIMIT)


class Lifecycle(mounted_fs.TestCase):
    def make(self, options=""):
        return Mount(self.checkpoint.path, self.directory / "mnt", options)

    def test_mount_returns_when_the_mount_answers(self):
        for _ in range(5):
            with self.make() as mount:
                self.assertGreater(len((mount / SHARD).read_bytes()), 0)

    def test_ckfs_umount(self):
        with self.make() as mount:
            mount.unmount()
            self.assertFalse(is_mounted(mount.target))
            self.assertTrue(wait_for_end(mount.pid))

    def test_ckfs_umount_of_a_mount_in_use_serves_its_files_to_the_last(self):
        with self.make() as mount:
            expected = (mount / SHARD).read_bytes()
            with open(mount / SHARD, "rb") as file:
                done = ckfs("umount", mount.target)
                self.assertRegex(done.stdout, r"\A.*/mnt: still in use: [^\n]*\n\Z")
                self.assertFalse(is_mounted(mount.target))
                self.assertEqual(file.read(), expected)
            self.assertTrue(wait_for_end(mount.pid))

    def test_fusermount_and_lazy_unmount(self):
        tools = [["fusermount3", "-u"], ["fusermount3", "-u", "-z"]]
        if os.geteuid() == 0:
            tools += [["umount"], ["umount", "-l"]]
        for tool in tools:
            with self.make() as mount:
                run(*tool, mount.target)
                self.assertTrue(wait_for_end(mount.pid), tool)

    def test_lazy_unmount_serves_open_files_to_their_end(self):
        tool = ["umount", "-l"] if os.geteuid() == 0 else ["fusermount3", "-u", "-z"]
        with self.make() as mount:
            with open(mount / SHARD, "rb") as file:
                run(*tool, mount.target)
                self.assertFalse(is_mounted(mount.target))
                self.assertEqual(mount.target.stat().st_nlink, 2)  # the empty directory below
                read = file.read()
            self.assertTrue(wait_for_end(mount.pid))
        with self.make() as mount:
            self.assertEqual((mount / SHARD).read_bytes(), read)

    def test_signals_unmount(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            with self.make() as mount:
                os.kill(mount.pid, number)
                self.assertTrue(wait_for_end(mount.pid), number)
                self.assertFalse(is_mounted(mount.target))

    def test_a_stop_does_not_depend_on_what_the_caller_ignores_or_blocks(self):
        stops = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]

        def ignore():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)

        def block():
            signal.pthread_sigmask(signal.SIG_BLOCK, stops)

        for prepare in (ignore, block):
            for number in stops:
                target = self.directory / "mnt"
                target.mkdir(exist_ok=True)
                ckfs("mount", self.checkpoint.path, target, preexec_fn=prepare)
                (pid,) = processes(target)
                os.kill(pid, number)
                ended = wait_for_end(pid)
                if not ended:
                    os.kill(pid, signal.SIGKILL)
                self.assertTrue(ended, (prepare.__name__, number))
                self.assertFalse(is_mounted(target))

    def test_signals_that_the_caller_ignores_stay_ignored(self):
        def ignore():
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)

        target = self.directory / "mnt"
        target.mkdir()
        ckfs("mount", self.checkpoint.path, target, preexec_fn=ignore)
        (pid,) = processes(target)
        os.kill(pid, signal.SIGINT)
        os.kill(pid, signal.SIGHUP)
        self.assertGreater(len((target / SHARD).read_bytes()), 0)
        os.kill(pid, signal.SIGTERM)
        self.assertTrue(wait_for_end(pid))

    def test_how_a_helper_ended_is_known_where_the_caller_ignores_its_children(self):
        def ignore():
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)

        target = self.directory / "mnt"
        target.mkdir()
        ckfs("mount", self.checkpoint.path, target, preexec_fn=ignore)
        (pid,) = processes(target)
        powerless = ["setpriv", "--no-new-privs"]
        if os.geteuid() == 0:
            powerless += ["--bounding-set=-sys_admin", "--inh-caps=-all"]
        refused = subprocess.run(
            [*powerless, CKFS, "umount", target],
            preexec_fn=ignore, capture_output=True, text=True, timeout=LIMIT, check=False,
        )  # fmt: skip
        self.assertEqual(refused.returncode, 1, refused)
        self.assertRegex(refused.stderr, r"mnt: cannot be unmounted: .*[Pp]ermi")
        self.assertTrue(is_mounted(target))
        ckfs("umount", target, preexec_fn=ignore)
        self.assertFalse(is_mounted(target))
        self.assertTrue(wait_for_end(pid))

    def test_signals_unmount_at_once_after_mounting(self):
        for _ in range(20):
            with self.make() as mount:
                os.kill(mount.pid, signal.SIGTERM)
                self.assertTrue(wait_for_end(mount.pid))
                self.assertFalse(is_mounted(mount.target))

    def test_foreground_ends_with_exit_code_zero_on_a_signal(self):
        target = self.directory / "mnt"
        target.mkdir()
        daemon = subprocess.Popen([CKFS, "mount", "-f", self.checkpoint.path, target])
        try:
            while not is_mounted(target):
                self.assertIsNone(daemon.poll())
            self.assertIn("source", os.listdir(target))
            daemon.send_signal(signal.SIGTERM)
            self.assertEqual(daemon.wait(LIMIT), 0)
            self.assertFalse(is_mounted(target))
        finally:
            daemon.kill()
            daemon.wait()

    def test_a_signal_leaves_a_mapping_readable(self):
        """A model that is loaded and not yet read: its pages come when they are first used."""
        log = self.directory / "log"
        with self.make(f"log_file={log}") as mount:
            expected = (mount / SHARD).read_bytes()
            with open(mount / SHARD, "rb") as file:
                mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            os.kill(mount.pid, signal.SIGTERM)
            mounted_fs.wait_until_unmounted(mount.target)
            self.assertEqual(mapped[:], expected)
            self.assertIsNone(mounted_fs.error_of(os.kill, mount.pid, 0))
            self.assertIn("1 files are open or mapped", log.read_text())
            mapped.close()
            self.assertTrue(wait_for_end(mount.pid))

    def test_a_second_signal_ends_a_mount_in_use(self):
        with self.make() as mount:
            file = os.open(mount / SHARD, os.O_RDONLY)
            os.kill(mount.pid, signal.SIGTERM)
            mounted_fs.wait_until_unmounted(mount.target)
            self.assertEqual(len(os.pread(file, 10, 1 << 20)), 10)
            os.kill(mount.pid, signal.SIGTERM)
            self.assertTrue(wait_for_end(mount.pid))
            self.assertIn(mounted_fs.error_of(os.close, file), (None, *GONE))

    def test_a_signal_while_files_are_read_hangs_nobody(self):
        for options in ("stop=now", "stop=now,direct"):
            with self.make(options) as mount, Reader(mount / SHARD) as reader:
                os.kill(mount.pid, signal.SIGTERM)
                self.assertTrue(wait_for_end(mount.pid))
                self.assertFalse(is_mounted(mount.target))
                _, errors = reader.process.communicate(timeout=LIMIT)
                self.assertIn("Errno", errors)

    def test_lazy_unmount_while_files_are_read(self):
        with self.make() as mount, Reader(mount / SHARD) as reader:
            mount.clear()
            self.assertFalse(is_mounted(mount.target))
            self.assertIsNone(reader.process.poll())
            reader.process.kill()
            self.assertTrue(wait_for_end(mount.pid))

    def test_killed_readers_leave_a_working_mount(self):
        with self.make("direct") as mount:
            for _ in range(10):
                with Reader(mount / SHARD) as reader:
                    reader.process.kill()
            self.assertEqual(len((mount / SHARD).read_bytes()), os.stat(mount / SHARD).st_size)
            mount.unmount()  # nobody holds it any more

    def test_killed_daemon_and_what_clears_it(self):
        with self.make() as mount:
            expected = (mount / SHARD).read_bytes()
            with open(mount / SHARD, "rb") as file:
                os.kill(mount.pid, signal.SIGKILL)
                self.assertTrue(wait_for_end(mount.pid))
                self.assertTrue(is_mounted(mount.target))
                self.assertIn(mounted_fs.error_of(os.listdir, mount.target), GONE)
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                self.assertIn(mounted_fs.error_of(os.pread, file.fileno(), 10, 1 << 20), GONE)

                mount.unmount()  # although a file is still open
                self.assertFalse(is_mounted(mount.target))
            with self.make() as again:
                self.assertEqual((again / SHARD).read_bytes(), expected)

    def in_own_namespace(self, script):
        """Runs a shell script in a mount namespace of its own, as root there; its output."""
        words = ["unshare", "--mount", "--propagation", "private"]
        if os.geteuid() != 0:
            words += ["--user", "--map-root-user"]
        target, log = self.directory / "mnt", self.directory / "log"
        target.mkdir()
        prologue = """
            set -e
            ckfs=$1 source=$2 mnt=$3 log=$4
            "$ckfs" mount -f -o log_file="$log" "$source" "$mnt" & daemon=$!
            while ! [ -e "$mnt/source/config.json" ]; do kill -0 $daemon; done
        """
        return run(*words, "sh", "-c", prologue + script, "sh", CKFS, self.checkpoint.path, target,
                   log).stdout  # fmt: skip

    def test_a_signal_leaves_what_was_mounted_on_top(self):
        out = self.in_own_namespace("""
            mount -t tmpfs on-top "$mnt"
            echo theirs > "$mnt/file"
            kill -TERM $daemon
            wait $daemon
            cat "$mnt/file"
            grep -c " $mnt " /proc/self/mountinfo
        """)
        self.assertEqual(out, "theirs\n2\n")
        self.assertIn("covered by another mount", (self.directory / "log").read_text())

    def test_a_signal_leaves_what_another_path_leads_to(self):
        # The directory of the mountpoint is renamed, and a link takes its place.
        out = self.in_own_namespace("""
            top=$(dirname "$mnt")/top
            mkdir "$top" "$top/real" "$top/other" "$top/other/mnt"
            mount -t tmpfs on-top "$top/other/mnt"
            "$ckfs" umount "$mnt"; wait $daemon
            mkdir "$top/real/mnt"
            "$ckfs" mount -f -o log_file="$log" "$source" "$top/real/mnt" & daemon=$!
            while ! [ -e "$top/real/mnt/source/config.json" ]; do kill -0 $daemon; done
            mv "$top/real" "$top/moved"
            ln -s other "$top/real"
            kill -TERM $daemon
            wait $daemon
            grep -c "on-top" /proc/self/mountinfo
        """)
        self.assertEqual(out, "1\n")

    def test_a_signal_leaves_a_mount_that_was_moved(self):
        out = self.in_own_namespace("""
            elsewhere=$(dirname "$mnt")/elsewhere
            mkdir "$elsewhere"
            mount --move "$mnt" "$elsewhere" || [ -e "$elsewhere/source" ]  # a user's is moved, too
            touch "$mnt/below"
            kill -TERM $daemon
            wait $daemon
            ls "$mnt"
            grep -c " $elsewhere " /proc/self/mountinfo
            ls "$elsewhere" 2> /dev/null || echo dead
        """)
        self.assertEqual(out, "below\n1\ndead\n")
        self.assertIn("covered by another mount", (self.directory / "log").read_text())

    def test_a_signal_after_a_lazy_unmount_touches_nothing_below(self):
        out = self.in_own_namespace("""
            below=$(dirname "$mnt")/below
            mkdir "$below"
            exec 9< "$mnt/source/config.json"
            umount -l "$mnt"
            mount -t tmpfs next "$mnt"
            kill -TERM $daemon
            wait $daemon
            grep -c " next " /proc/self/mountinfo
        """)
        self.assertEqual(out, "1\n")

    def test_two_mounts_of_one_source(self):
        one = self.mount(name="one")
        two = self.mount(name="two")
        self.assertEqual((one / SHARD).read_bytes(), (two / SHARD).read_bytes())
        one.unmount()
        self.assertGreater(len((two / SHARD).read_bytes()), 0)

    def test_mount_and_unmount_from_many_threads(self):
        errors = []

        def cycle(number):
            try:
                for _ in range(5):
                    target = self.directory / f"mnt{number}"
                    with Mount(self.checkpoint.path, target) as mount:
                        (mount / "source/config.json").read_bytes()
            except Exception as error:  # noqa: BLE001 (told by the test's thread)
                errors.append(error)

        threads = [threading.Thread(target=cycle, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(errors, [])

    def test_the_daemon_keeps_no_file_of_its_caller(self):
        lock = self.directory / "lock"
        with open(lock, "wb") as held:
            os.set_inheritable(held.fileno(), True)
            target = self.directory / "mnt"
            target.mkdir()
            mounted_fs.ckfs("mount", self.checkpoint.path, target, pass_fds=[held.fileno()])
            (pid,) = processes(target)
            descriptors = pathlib.Path(f"/proc/{pid}/fd")
            files = [os.readlink(entry) for entry in descriptors.iterdir()]
            mounted_fs.ckfs("umount", target)
            self.assertTrue(mounted_fs.wait_for_end(pid))
        self.assertNotIn(str(lock), files)

    def test_the_daemon_keeps_the_privileges_that_it_needs_and_no_other(self):
        def status(path):
            lines = pathlib.Path(path).read_text().splitlines()
            return dict(line.split(":\t", 1) for line in lines)

        needed = 1 << 2  # CAP_DAC_READ_SEARCH
        expected = needed & int(status("/proc/self/status")["CapPrm"], 16)
        with self.make() as mount:
            (mount / SHARD).read_bytes()  # so that threads of all kinds are there
            threads = list(pathlib.Path(f"/proc/{mount.pid}/task").iterdir())
            self.assertGreater(len(threads), 3)
            for thread in threads:
                held = status(thread / "status")
                for name in ("CapEff", "CapPrm"):
                    self.assertEqual(int(held[name], 16), expected, name)
                self.assertEqual(int(held["CapInh"], 16), 0)
                self.assertEqual(held["NoNewPrivs"], "1")
                self.assertEqual(held["Seccomp"], "2")
            os.kill(mount.pid, signal.SIGTERM)  # which still unmounts
            self.assertTrue(wait_for_end(mount.pid))
            self.assertFalse(is_mounted(mount.target))

    def test_the_sandbox_can_be_left_away(self):
        for options, words in (("no_sandbox", ()), ("", ("--no-sandbox",))):
            with Mount(self.checkpoint.path, self.directory / "mnt", options, words) as mount:
                status = pathlib.Path(f"/proc/{mount.pid}/status").read_text()
                self.assertIn("Seccomp:\t0\n", status)
                (mount / SHARD).read_bytes()

    def test_a_source_that_is_read_late_and_a_log_work_in_the_sandbox(self):
        log = self.directory / "log"
        model = mounted_fs.Checkpoint(self.directory / "model", megabytes=1)
        with Mount(model.path, self.directory / "mnt", f"log_file={log}") as mount:
            for name, data in mounted_fs.read_tensors((mount / SHARD).read_bytes()).items():
                self.assertEqual(data, mounted_fs.widen(model.tensors[name]), name)
            self.assertEqual(mounted_fs.error_of(os.stat, mount / "bf16-safetensors@x=1"), "ENOENT")
            os.kill(mount.pid, signal.SIGTERM)
            self.assertTrue(wait_for_end(mount.pid))
        self.assertFalse(is_mounted(mount.target))
        self.assertRegex(log.read_text(), "(?s)mounted .*bf16-safetensors.*unmounted")

    def test_a_daemon_of_root_becomes_another_user(self):
        words = ["mount", "-o", "setuid=nobody", self.checkpoint.path, self.directory / "mnt"]
        (self.directory / "mnt").mkdir()
        if os.geteuid() != 0:
            done = ckfs(*words, check=False)
            self.assertRegex(done.stderr, r"nobody: setuid: Operation not permitted|mnt: .*fusermount3")
            self.assertEqual(done.returncode, 1)
            return
        for path in (self.shared, self.directory):
            path.chmod(0o755)
        for options in ("setuid=nobody", "setuid=nobody,allow_other"):
            with Mount(self.checkpoint.path, self.directory / "mnt", options) as mount:
                status = pathlib.Path(f"/proc/{mount.pid}/status").read_text()
                self.assertIn(f"Uid:\t" + "\t".join([str(mounted_fs.NOBODY)] * 4), status)
                done = run("setpriv", f"--reuid={mounted_fs.NOBODY}", f"--regid={mounted_fs.NOBODY}",
                           "--clear-groups", "cat",
                           mount / "source/config.json")
                self.assertEqual(done.stdout, (self.checkpoint.path / "config.json").read_text())

    def test_a_daemon_that_cannot_reach_its_mountpoint_ends_before_it_opens(self):
        if os.geteuid() != 0:
            return  # nobody else becomes another user (the test before says so)
        for path in (self.shared, self.directory):
            path.chmod(0o755)
        target = self.directory / "private" / "mnt"
        target.mkdir(parents=True)
        target.parent.chmod(0o700)
        done = ckfs("mount", "-o", "setuid=nobody", self.checkpoint.path, target, check=False)
        self.assertRegex(done.stderr, r"mnt: .*Permission denied.* \(as nobody\)")
        self.assertEqual(done.returncode, 1)
        # A link there is root's to follow.
        (self.directory / "mnt").mkdir()
        link = target.parent / "link"
        link.symlink_to(self.directory / "mnt")
        ckfs("mount", "-o", "setuid=nobody,allow_other", self.checkpoint.path, link)
        try:
            self.assertIn("source", os.listdir(self.directory / "mnt"))
        finally:
            ckfs("umount", self.directory / "mnt")

    def test_an_empty_name_is_no_user(self):
        (self.directory / "mnt").mkdir()
        done = ckfs("mount", "-o", "setuid=", self.checkpoint.path, self.directory / "mnt",
                    check=False)
        self.assertRegex(done.stderr, "-o setuid: names no user")
        self.assertNotEqual(done.returncode, 0)

    def test_standard_descriptors_may_be_closed(self):
        target = self.directory / "mnt"
        target.mkdir()
        for closed in ((0,), (1,), (2,), (0, 1, 2)):
            # A descriptor of the source or of the mount must not become one of these.
            pid = os.fork()
            if pid == 0:
                for fd in closed:
                    os.close(fd)
                os.execv(mounted_fs.CKFS, [mounted_fs.CKFS, "mount", str(self.checkpoint.path), str(target)])
            _, status = os.waitpid(pid, 0)
            try:
                self.assertEqual(status, 0, closed)
                self.assertIn("bf16-safetensors", os.listdir(target))
            finally:
                ckfs("umount", target, check=False)

    def test_root_mounts_what_belongs_to_somebody_else(self):
        source = self.directory / "private"
        model = mounted_fs.Checkpoint(source, megabytes=1)
        for path in (*source.rglob("*"), source):
            path.chmod(0o700 if path.is_dir() else 0o600)
            if os.geteuid() == 0:
                os.chown(path, mounted_fs.NOBODY, mounted_fs.NOBODY)
        with Mount(source, self.directory / "mnt") as mount:
            for name, data in mounted_fs.read_tensors((mount / SHARD).read_bytes()).items():
                self.assertEqual(data, mounted_fs.widen(model.tensors[name]), name)

    def test_the_daemon_keeps_no_directory_busy(self):
        with self.make() as mount:
            self.assertEqual(os.readlink(f"/proc/{mount.pid}/cwd"), "/")
            self.assertEqual(processes(mount.target), [mount.pid])


if __name__ == "__main__":
    mounted_fs.main()
