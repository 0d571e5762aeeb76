"""The checkpoints that cost most for their size (tests/tools/hostile_sizes.py), each at the size at which
one was found, opened by the program: memory and processor time in proportion to the bytes, and twice the
bytes at most twice the time.

Time is measured against a fixed piece of work of Python's on the same machine (PACE): a slow machine is
slow at both. What else runs there only ever adds to a time, so what breaks a bound is measured again,
and the least of ATTEMPTS is what counts: what grows with the square stays above the bound in each.

    test_bounded_work.py --table    prints what each costs
"""

import os
import pathlib
import resource
import shutil
import subprocess
import sys
import unittest

import cli_support
from cli_support import CKFS, ONE_LINE, ROOT

sys.path.insert(0, str(ROOT / "tests/tools"))
import hostile_files  # noqa: E402
import hostile_sizes  # noqa: E402

# What docs/SECURITY.md promises, in numbers.
MEMORY, MEMORY_EACH = 64 << 20, 8
# In units of PACE, which takes about half a second. A config.json is read once for each view that
# writes another.
TIME, TIME_EACH_MB = 1.0, 0.45
# Two measurements of a program that runs for some milliseconds.
NOISE = 0.5
PACE = [sys.executable, "-S", "-c", "for _ in range(20_000_000): pass"]
ATTEMPTS = 5


def limits():
    resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


# AddressSanitizer puts something around each allocation, and keeps what is freed for a while;
# ThreadSanitizer has four words for each of the program's.
PROGRAM = pathlib.Path(CKFS).read_bytes()
SANITIZED = 3 if b"__asan_init" in PROGRAM else 12 if b"__tsan_init" in PROGRAM else 1
ENVIRONMENT = {**os.environ, "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":quarantine_size_mb=8"}

# A process begins with the memory of its parent, in the system's count: so a small one starts it.
MEASURE = """
import os, subprocess, sys
process = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
_, status, used = os.wait4(process.pid, 0)
print(os.waitstatus_to_exitcode(status), used.ru_maxrss << 10, used.ru_utime + used.ru_stime)
"""


def measure(command):
    """Exit code, error, memory and seconds of the processor of a command."""
    done = subprocess.run([sys.executable, "-S", "-c", MEASURE, *command], check=True,
                          capture_output=True, preexec_fn=limits, env=ENVIRONMENT)
    code, memory, seconds = done.stdout.split()
    return int(code), done.stderr, int(memory), float(seconds)


def cost(directory, files, links=None):
    """Exit code, error, bytes, memory and seconds of an `inspect` of these files."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    source = hostile_files.write(hostile_files.Case("", files, links or {}), directory)
    if list(files) == ["m.pt"]:
        source = directory / "m.pt"
    code, error, memory, seconds = measure([CKFS, "inspect", source])
    return code, error, sum(map(len, files.values())), memory, seconds


def cost_of(make, size, directory):
    made = make(size)
    return cost(directory, *(made if isinstance(made, tuple) else (made,)))


class BoundedWork(cli_support.TestCase):
    def test_follows_from_the_bytes(self):
        directory = self.directory / "case"
        code, error, _, usual, _ = cost(directory, {"model.safetensors": hostile_files.GOOD})
        self.assertEqual((code, error), (0, b""))
        pace = measure(PACE)[3]
        for name, (size, make) in hostile_sizes.ROWS.items():
            with self.subTest(name):
                code, error, length, memory, seconds = cost_of(make, size, directory)
                self.assertIn(code, (0, 1), error)
                if code == 1:
                    self.assertRegex(error, ONE_LINE)
                self.assertLessEqual(memory, usual + SANITIZED * (MEMORY + MEMORY_EACH * length))

                half = cost_of(make, size // 2, directory)[4]
                for _ in range(ATTEMPTS):
                    each = SANITIZED * pace
                    if seconds <= min(each * (TIME + TIME_EACH_MB * length / 1e6), 2 * half + each * NOISE):
                        break
                    pace = max(pace, measure(PACE)[3])
                    half = min(half, cost_of(make, size // 2, directory)[4])
                    seconds = min(seconds, cost_of(make, size, directory)[4])
                else:
                    self.fail(f"{length} bytes take {seconds} s, half of them {half} s, the pace is {pace} s")


def print_table():
    import tempfile

    with tempfile.TemporaryDirectory() as work:
        for name, (size, make) in hostile_sizes.ROWS.items():
            code, _, size, memory, seconds = cost_of(make, size, pathlib.Path(work) / "case")
            print(f"| {name} | {size / 1e6:.1f} MB | {memory >> 20} MiB, {seconds:.2f} s | "
                  f"{'refused' if code else 'served'} |", flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["--table"]:
        print_table()
    else:
        unittest.main(verbosity=2)
