"""The ways to get at a view's files: `ckfs cat`, `ckfs export` and a mount, each as a function that
puts the whole view into a directory.

Standard library only. CKFS_BIN names the program.
"""
import contextlib
import gc
import itertools
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

CKFS = os.environ.get("CKFS_BIN", "build/release/ckfs")
DATA = pathlib.Path(__file__).resolve().parents[1] / "data" / "hf"

# Views are made in memory, where there is room for them: on a disk a test of fifty exports waits for
# their fsyncs five times as long as it computes. Containers often have 64 MB there.
if os.access("/dev/shm", os.W_OK) and shutil.disk_usage("/dev/shm").free > 2 << 30:
    tempfile.tempdir = "/dev/shm"

# What must not change a byte.
READERS = (("--io", "auto"), ("--io", "pread"))
THREADS = (("--threads", "1"), ("--threads", "8"))
TILES = ((), ("--tile-bytes", "4096"))


def pairwise(*factors):
    """Rows of one value of each factor, such that every pair of values of two factors is in one.

    All combinations find no more in practice and take several times as long: what goes wrong
    does so by one of these, or by two that meet. Deterministic: of all rows, the one with the most
    pairs that are still missing comes next, the first of them where several have as many.
    """
    def pairs(row):
        return set(itertools.combinations(enumerate(row), 2))

    rows = list(itertools.product(*factors))
    missing = set().union(*map(pairs, rows))
    chosen = []
    while missing:
        best = max(rows, key=lambda row: len(pairs(row) & missing))
        chosen.append(best)
        missing -= pairs(best)
    return chosen


def run(*arguments):
    """Standard output of `ckfs ARGUMENTS`, which must succeed."""
    done = subprocess.run([CKFS, *map(str, arguments)], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise AssertionError(f"ckfs {' '.join(map(str, arguments))}: exit {done.returncode}: "
                             f"{done.stderr.decode(errors='replace')}")
    return done.stdout


# Options that say what of a source is meant, which every verb takes.
CHOICES = ("--config", "--family", "--item", "--key", "--recipe", "--step", "--tag")


def listing(source, where, *options):
    """[(path, size)] of the files below `where`, as `ckfs ls` tells them."""
    entries = json.loads(run("ls", "--json", source, where, *options))["entries"]
    found = []
    for entry in entries:
        path = entry["path"]
        if entry["type"] == "directory":
            found += [(f"{path}/{below}", size)
                      for below, size in listing(source, f"{where}/{path}", *options)]
        else:
            found.append((path, entry["size"]))
    return found


@contextlib.contextmanager
def mounted(source, mountpoint, *options):
    """`source`, mounted at the new directory `mountpoint` for the length of a with statement."""
    mountpoint.mkdir()
    try:
        run("mount", source, mountpoint, *options)
        yield mountpoint
        gc.collect()  # what is mapped keeps a mount busy
        run("umount", mountpoint)
    finally:
        if os.path.ismount(mountpoint):  # the test failed; its mount must not stay
            lazily = ["umount", "-l"] if os.geteuid() == 0 else ["fusermount3", "-u", "-z"]
            subprocess.run([*lazily, mountpoint], check=False)
        mountpoint.rmdir()


def by_cat(source, view, out, work, engine):
    """The first files in three pieces each, which meet at odd offsets; each is a program's start."""
    choices = [word for option in zip(engine[::2], engine[1::2]) if option[0] in CHOICES
               for word in option]
    for number, (path, size) in enumerate(listing(source, view, *choices)):
        target = out / path
        target.parent.mkdir(parents=True, exist_ok=True)
        cuts = sorted({0, min(size, 4099), size // 2 | 1 if size > 2 else size, size})
        if number >= 4:
            cuts = [0, size] if size else [0]
        with open(target, "wb") as file:
            for begin, end in zip(cuts, cuts[1:]):
                file.write(run("cat", source, f"{view}/{path}", "--offset", begin,
                               "--length", end - begin, *engine))


def by_export(source, view, out, work, engine):
    run("export", source, view, out, *engine)


def by_mount(source, view, out, work, engine):
    with mounted(source, work / "mnt", *engine) as mountpoint:
        shutil.copytree(mountpoint / view, out, dirs_exist_ok=True)


WAYS = {"cat": by_cat, "export": by_export, "mount": by_mount}

# (way, options of the engine): the runs by which each golden view is made.
RUNS = [(way, [*reader, *threads, *tiles])
        for way, reader, threads, tiles in pairwise(WAYS, READERS, THREADS, TILES)]


_turn = itertools.count()


def golden_runs():
    """The runs by which the next golden view is made: two of RUNS, in turn.

    Over the views every encoding and container meets several ways, and every way, reader, thread
    count and tile size meets many encodings. Every pair of runs comes by, whatever the order in
    which a test has its views. Under a sanitizer, which sees memory and not bytes, it is one run;
    with CKFS_GOLDEN=all (`./dev test --all`) it is all of them.
    """
    if os.environ.get("CKFS_GOLDEN") == "all":
        return RUNS
    turn = next(_turn)
    first = turn % len(RUNS)
    second = (first + 1 + turn // len(RUNS) % (len(RUNS) - 1)) % len(RUNS)
    return [RUNS[first]] if os.environ.get("CKFS_SANITIZE") else [RUNS[first], RUNS[second]]


def in_turn(cases, values):
    """(case, value): each case with the next of `values`; with CKFS_GOLDEN=all each with all of them."""
    if os.environ.get("CKFS_GOLDEN") == "all":
        return itertools.product(cases, values)
    return zip(cases, itertools.cycle(values))


def sanitized(*tests):
    """What unittest.main() runs by default: under a sanitizer `tests` alone, else all (None)."""
    return list(tests) if os.environ.get("CKFS_SANITIZE") else None


def files_of(directory):
    """{path: bytes} of all files below `directory`."""
    return {str(path.relative_to(directory)): path.read_bytes()
            for path in sorted(directory.rglob("*")) if path.is_file()}


class Exports(unittest.TestCase):
    """Exports in a directory of the test's own."""

    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="ckfs-golden-")
        self.addCleanup(temporary.cleanup)
        self.work = pathlib.Path(temporary.name)

    def export(self, source, view, *options):
        out = pathlib.Path(tempfile.mkdtemp(dir=self.work)) / "out"
        run("export", source, view, out, *options)
        return out
