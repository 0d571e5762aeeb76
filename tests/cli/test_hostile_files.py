"""A thousand hostile checkpoints (tests/tools/hostile_files.py), opened as the program opens any: each is
refused with one line or served, as tests/data/hostile-outcomes.json says, within memory and processor time
in proportion to its bytes.

    test_hostile_files.py --record    writes the outcomes anew
"""

import concurrent.futures
import json
import os
import resource
import subprocess
import sys
import unittest

import cli_support
from cli_support import CKFS, ROOT

sys.path.insert(0, str(ROOT / "tests/tools"))
import hostile_files  # noqa: E402

SEED = 20
COUNT = 1080 + 108
OUTCOMES = ROOT / "tests/data/hostile-outcomes.json"
# docs/SECURITY.md: a file and 64 MB, and of pickles what their budget allows.
MEMORY, MEMORY_EACH = 64 << 20, 16
SECONDS, SECONDS_EACH_MB = 1.0, 0.7


def limits():
    resource.setrlimit(resource.RLIMIT_CPU, (20, 20))
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def run(make, top):
    """The name of a case, the problems with it, its outcome, and its memory beyond its allowance.

    Nothing of it is kept here: a process begins with what its parent has, in the system's count."""
    case = make()
    name, size = case.name, case.size()
    directory = top / name
    directory.mkdir()
    source = hostile_files.write(case, directory)
    del case
    with open(directory.with_suffix(".out"), "w+b") as out, open(directory.with_suffix(".err"), "w+b") as err:
        process = subprocess.Popen([CKFS, "inspect", source], stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                   preexec_fn=limits)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        shown, error = out.read(), err.read()
    code, seconds, memory = process.returncode, used.ru_utime + used.ru_stime, used.ru_maxrss << 10
    problems = []
    if code not in (0, 1):
        problems.append(f"exit code {code}: {error[:300]!r}")
    errors = [line for line in error.splitlines() if not line.startswith(b"ckfs: warning: ")]
    if code == 1 and (shown or len(errors) != 1 or not errors[0].startswith(b"ckfs: ")):
        problems.append(f"not one line: {error[:300]!r}")
    if any(byte < 0x20 and byte != 0x0A for byte in shown + error):
        problems.append("control characters on the terminal")
    if any(len(line) > 7000 for line in errors):
        problems.append(f"an error of {len(error)} bytes")
    if seconds > SECONDS + SECONDS_EACH_MB * size / 1e6:
        problems.append(f"{seconds:.2f} s of processor time")
    return name, problems, "refused" if code else "served", memory - MEMORY - MEMORY_EACH * size


def run_all(top):
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(lambda number: run(lambda: hostile_files.make(SEED, number), top), range(COUNT)))


class HostileFiles(cli_support.TestCase):
    def test_each_has_its_outcome_within_its_limits(self):
        wanted = json.loads(OUTCOMES.read_text())
        self.assertGreaterEqual(len(wanted), 1000)
        top = self.directory / "cases"
        top.mkdir()
        plain = hostile_files.Case("plain", {"model.safetensors": hostile_files.GOOD})
        _, problems, outcome, usual = run(lambda: plain, top)
        self.assertEqual((problems, outcome), ([], "served"))
        usual += MEMORY
        found = run_all(top)
        self.assertEqual(len(found), len(wanted))
        for name, problems, outcome, memory in found:
            with self.subTest(name):
                self.assertEqual(problems, [])
                self.assertEqual(outcome, wanted[name])
                self.assertLessEqual(memory, usual)


if __name__ == "__main__":
    if sys.argv[1:] == ["--record"]:
        import pathlib
        import tempfile

        with tempfile.TemporaryDirectory() as work:
            made = {name: outcome for name, _, outcome, _ in run_all(pathlib.Path(work))}
        OUTCOMES.write_text(json.dumps(made, indent=0) + "\n")
    else:
        unittest.main()
