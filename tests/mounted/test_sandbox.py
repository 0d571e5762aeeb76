"""SECURITY: what a daemon could do if a stranger's file had taken it over. System calls are made in the
mounted daemon itself, as a debugger does; nothing in the program helps with that."""

import contextlib
import ctypes
import errno
import os
import pathlib
import platform
import re
import signal
import struct
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import mounted_fs

ARM = platform.machine() == "aarch64"
# Names of system calls, their numbers on x86-64 and on aarch64.
CALLS = {"openat": (257, 56), "close": (3, 57), "execve": (59, 221), "clone": (56, 220), "socket": (41, 198),
         "kill": (62, 129), "ptrace": (101, 117), "mount": (165, 40), "unlinkat": (263, 35),
         "fchmodat": (268, 53), "mkdirat": (258, 34), "mmap": (9, 222), "setuid": (105, 146),
         "bpf": (321, 280), "getpid": (39, 172), "fsetxattr": (190, 7), "prlimit64": (302, 261),
         "io_uring_setup": (425, 425), "io_uring_register": (427, 427)}
INSTRUCTION = b"\x01\x00\x00\xd4" if ARM else b"\x0f\x05"
# Of the registers that PTRACE_GETREGSET gives, in words: arguments, number, result, place, stack.
ARGUMENTS, NUMBER, RESULT, PLACE, STACK = (
    ((0, 1, 2, 3, 4, 5), 8, 0, 32, 31) if ARM else ((14, 13, 12, 7, 9, 8), 10, 10, 16, 19))
ORIGINAL = None if ARM else 15  # of a call that the stop interrupted: it must not begin again within ours
ATTACH, DETACH, STEP, GET, SET, GENERAL = 16, 17, 9, 0x4204, 0x4205, 1
AT_FDCWD = -100
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
libc.ptrace.restype = ctypes.c_long


def ptrace(request, process, address=None, data=None):
    if libc.ptrace(request, process, address, data) != 0:
        raise OSError(ctypes.get_errno(), "ptrace")


class Inside:
    """A stopped process, in which system calls are made."""

    def __init__(self, process):
        self.process = process
        self.memory = open(f"/proc/{process}/mem", "r+b", buffering=0)
        self.saved = self.registers()
        self.place = self.find_instruction()

    def registers(self, new=None):
        words = (ctypes.c_uint64 * 34)(*(new or ()))
        size = 8 * (34 if ARM else 27)
        vector = struct.pack("PN", ctypes.addressof(words), size)
        ptrace(SET if new else GET, self.process, GENERAL, ctypes.create_string_buffer(vector))
        return list(words)

    def find_instruction(self):
        maps = pathlib.Path(f"/proc/{self.process}/maps").read_text()
        for begin, end in re.findall(r"^(\w+)-(\w+) r-xp .*/libc[^/]*\.so", maps, re.M):
            self.memory.seek(int(begin, 16))
            at = self.memory.read(int(end, 16) - int(begin, 16)).find(INSTRUCTION)
            if at >= 0:
                return int(begin, 16) + at
        raise AssertionError("libc makes no system calls")

    def call(self, name, *arguments):
        """Its result, or the name of the error. Texts are put below the stack."""
        words = list(self.saved)
        free = words[STACK] - 65536
        for register, value in zip(ARGUMENTS, arguments):
            if isinstance(value, (str, os.PathLike)):
                self.memory.seek(free)
                self.memory.write(os.fsencode(value) + b"\0")
                value, free = free, free + 4096
            words[register] = value % (1 << 64)
        for register in ARGUMENTS[len(arguments):]:
            words[register] = 0
        words[NUMBER] = CALLS[name][ARM]
        words[PLACE] = self.place
        if ORIGINAL is not None:
            words[ORIGINAL] = (1 << 64) - 1
        self.registers(words)
        ptrace(STEP, self.process)
        os.waitpid(self.process, 0x40000000)  # __WALL
        result = ctypes.c_int64(self.registers()[RESULT]).value
        self.registers(self.saved)
        return errno.errorcode[-result] if -4096 < result < 0 else result


def refuse_capset():
    """As the seccomp profile of a container may: for this process and what it starts."""
    number, refused, allowed = (91 if ARM else 126), 0x00050000 | errno.EPERM, 0x7FFF0000
    # Load the number; skip one unless it is capset's; the two answers (linux/filter.h).
    filters = struct.pack("HBBI" * 4, 0x20, 0, 0, 0, 0x15, 0, 1, number, 0x06, 0, 0, refused, 0x06, 0, 0, allowed)
    held = ctypes.create_string_buffer(filters)
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", 4, ctypes.addressof(held)))
    if libc.prctl(22, 2, program) != 0:  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
        raise OSError(ctypes.get_errno(), "prctl")


@contextlib.contextmanager
def inside(process):
    ptrace(ATTACH, process)
    try:
        os.waitpid(process, 0x40000000)
        held = Inside(process)
        try:
            yield held
        finally:
            held.registers(held.saved)
            held.memory.close()
    finally:
        ptrace(DETACH, process)


class Sandbox(mounted_fs.TestCase):
    def setUp(self):
        super().setUp()
        self.model = mounted_fs.Checkpoint(self.directory / "model", megabytes=1)
        self.secret = self.directory / "secret"
        self.secret.write_text("mine")
        log = self.directory / "log"
        with mounted_fs.Mount(self.model.path, self.directory / "mnt", "", ["--log-file", log]) as mount:
            process = mount.pid
        self.assertTrue(mounted_fs.wait_for_end(process))
        self.lacking = re.search("confined without (.*), which", log.read_text())

    def mounted(self, *words):
        return mounted_fs.Mount(self.model.path, self.directory / "mnt", "", words)

    def is_confined(self):
        """Whether there is something to look for; else the daemon has said what the system lacks."""
        if self.lacking:
            self.assertIn(self.lacking[1], ("Landlock", "seccomp", "Landlock and seccomp"))
            print(f"not confined: no {self.lacking[1]} here", file=sys.stderr)
        return not self.lacking

    def opened(self, process, path, flags=os.O_RDONLY):
        """True, or the name of the error."""
        result = process.call("openat", AT_FDCWD, path, flags, 0o600)
        if isinstance(result, int):
            process.call("close", result)
            return True
        return result

    def test_a_daemon_that_was_taken_over_reads_the_source_and_nothing_else(self):
        if not self.is_confined():
            return
        with self.mounted() as mount, inside(mount.pid) as daemon:
            self.assertEqual(daemon.call("getpid"), mount.pid)
            self.assertIs(self.opened(daemon, self.model.shard(0)), True)
            for path in (self.secret, "/etc/passwd", "/proc/self/environ", "/bin/sh",
                         f"/proc/{os.getpid()}/maps", self.directory):
                self.assertEqual(self.opened(daemon, path), "EACCES", path)

    def test_it_writes_nowhere(self):
        if not self.is_confined():
            return
        with self.mounted() as mount, inside(mount.pid) as daemon:
            for path in (self.secret, self.model.shard(0), self.directory / "new", "/tmp/ckfs-new"):
                for flags in (os.O_WRONLY | os.O_CREAT, os.O_RDWR, os.O_WRONLY | os.O_TRUNC):
                    self.assertIn(self.opened(daemon, path, flags), ("EACCES", "ENOENT"), path)
            self.assertEqual(daemon.call("unlinkat", AT_FDCWD, self.secret, 0), "EACCES")
            self.assertEqual(daemon.call("fchmodat", AT_FDCWD, self.secret, 0o777), "ENOSYS")
            self.assertEqual(daemon.call("mkdirat", AT_FDCWD, self.directory / "new", 0o777), "ENOSYS")
        self.assertEqual(self.secret.read_text(), "mine")
        self.assertFalse((self.directory / "new").exists())

    def test_it_starts_nothing_and_reaches_nobody(self):
        if not self.is_confined():
            return
        with self.mounted() as mount, inside(mount.pid) as daemon:
            for call in (("execve", "/bin/true", 0, 0), ("clone", 17, 0, 0, 0, 0), ("socket", 2, 1, 0),
                         ("socket", 10, 2, 0), ("kill", os.getpid(), 0), ("ptrace", 0, 0, 0, 0),
                         ("mount", "none", "/mnt", "tmpfs", 0, 0), ("setuid", 0), ("bpf", 0, 0, 0),
                         ("socket", 1, 1, 0), ("prlimit64", os.getpid(), 7, 0, 0),
                         ("mmap", 0, 4096, 5, 0x22, -1, 0)):
                self.assertEqual(daemon.call(*call), "ENOSYS", call)

    def test_its_rings_can_do_nothing_but_read(self):
        if not self.is_confined():
            return
        with self.mounted() as mount:
            uring = mount.status()["io"] == "uring"
            with inside(mount.pid) as daemon:
                self.rings_only_read(mount, daemon, uring)

    def rings_only_read(self, mount, daemon, uring):
        self.assertEqual(daemon.call("io_uring_setup", 8, 0), "ENOSYS")
        rings = [int(entry.name) for entry in pathlib.Path(f"/proc/{mount.pid}/fd").iterdir()
                 if os.readlink(entry) == "anon_inode:[io_uring]"]
        self.assertEqual(len(rings), 64 if uring else 0)
        for ring in rings:
            for operation in (9, 11, 12, 17, 19):  # a personality, restrictions, to enable, CPUs, workers
                self.assertEqual(daemon.call("io_uring_register", ring, operation, 0, 0), "ENOSYS")
        self.assertEqual(daemon.call("fsetxattr", 0, "user.set", "1", 1, 0), "ENOSYS")

    def test_nothing_that_it_needs_is_refused(self):
        if not self.is_confined():
            return
        model = mounted_fs.Checkpoint(self.directory / "large", megabytes=24)
        calls = self.directory / "calls"
        with mounted_fs.Mount(model.path, self.directory / "mnt") as mount:
            tracer = subprocess.Popen(["strace", "-f", "-o", calls, "-p", str(mount.pid)],
                                      stderr=subprocess.PIPE, text=True)
            self.addCleanup(tracer.kill)
            self.assertIn("attached", tracer.stderr.readline())
            for directory, _, names in os.walk(mount.target):
                for name in names:
                    (pathlib.Path(directory) / name).read_bytes()
            tracer.send_signal(signal.SIGINT)
            tracer.communicate(timeout=mounted_fs.LIMIT)
        made = calls.read_text()
        # What clone3() wants lies where a filter can't look, and glibc knows another way. Kernels before
        # 6.5 have no cachestat, whose name strace may not know.
        refused = set(re.findall(r"(\w+)(?:\(| resumed>).*= -1 ENOSYS", made))
        self.assertLessEqual(refused, {"clone3", "cachestat", "syscall_0x1c3"})
        self.assertIn("vmsplice(", made, "nothing was delivered through a pipe")

    def test_it_serves_on_afterwards(self):
        if not self.is_confined():
            return
        with self.mounted() as mount:
            with inside(mount.pid) as daemon:
                self.assertEqual(self.opened(daemon, self.secret), "EACCES")
            data = (mount / "source" / self.model.SHARDS[0]).read_bytes()
            self.assertEqual(data, self.model.shard(0).read_bytes())

    def test_a_system_that_keeps_privileges_from_being_dropped_still_has_mounts(self):
        if os.geteuid() != 0:
            print("not looked at: only root filters its calls and can mount then", file=sys.stderr)
            return
        log = self.directory / "kept"
        mount = self.mounted("--log-file", log)
        mount.target.mkdir(exist_ok=True)
        mounted_fs.ckfs(*mount.words, preexec_fn=refuse_capset)
        (mount.pid,) = mounted_fs.processes(mount.target)
        try:
            data = (mount / "source" / self.model.SHARDS[0]).read_bytes()
            self.assertEqual(data, self.model.shard(0).read_bytes())
        finally:
            mount.__exit__()
        self.assertIn("privileges are kept: capabilities: capset: Operation not permitted", log.read_text())

    def test_without_the_sandbox_it_would_read_it(self):
        if not self.is_confined():
            return
        with self.mounted("--no-sandbox") as mount, inside(mount.pid) as daemon:
            self.assertIs(self.opened(daemon, self.secret), True)
            self.assertIs(self.opened(daemon, "/etc/passwd"), True)


if __name__ == "__main__":
    mounted_fs.main()
