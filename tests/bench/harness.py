"""What the rows of the benchmark share: the table they print, mounts, cold caches, timed reads."""
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
SUPPORT = os.path.join(HERE, "..", "support")
TOOLS = os.path.join(HERE, "..", "tools")
sys.path[:0] = [SUPPORT, TOOLS]
MIB = 1 << 20
PASSES = 7
BUFFER = bytearray(MIB)


class Bench:
    """Where programs and work files are, and the table of what was measured."""

    def __init__(self, build, ckfs, work):
        self.build = build
        self.ckfs = ckfs
        self.tools = os.path.join(build, "tests", "bench")
        self.work = work
        self.failed = []

    def path(self, *names):
        return os.path.join(self.work, *names)

    def row(self, what, value, goal, floor, unit="x", more=False):
        """`more`: larger is worse (seconds, bytes)."""
        good = value <= goal if more else value >= goal
        enough = value <= floor if more else value >= floor
        verdict = "ok" if good else "below goal" if enough else "BELOW FLOOR"
        if not enough:
            self.failed.append(what)
        limits = f"goal {goal:g} floor {floor:g}"
        print(f"  {what:<66} {value:>9.2f} {unit:<3} {limits}  {verdict}", flush=True)

    def note(self, text):
        print(f"  {text}", flush=True)


def raise_readahead(mountpoint):
    device = os.stat(mountpoint).st_dev
    with open(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb", "w") as f:
        f.write("1024")


@contextlib.contextmanager
def constant(bench, size, direct=False):
    mountpoint = tempfile.mkdtemp(dir=bench.work)
    command = [os.path.join(bench.tools, "constant_fs"), mountpoint, str(size)]
    server = subprocess.Popen(command + (["direct"] if direct else []))
    try:
        path = os.path.join(mountpoint, "constant")
        deadline = time.monotonic() + 20
        while not os.path.exists(path):
            if server.poll() is not None or time.monotonic() > deadline:
                raise SystemExit("bench: the constant-memory server did not start")
        raise_readahead(mountpoint)
        yield path
    finally:
        server.terminate()
        server.wait()


@contextlib.contextmanager
def mounted(bench, source, *options):
    mountpoint = tempfile.mkdtemp(dir=bench.work)
    subprocess.run([bench.ckfs, "mount", source, mountpoint, *options], check=True)
    try:
        yield mountpoint
    finally:
        subprocess.run([bench.ckfs, "umount", mountpoint], check=True)


@contextlib.contextmanager
def recycled_memory(leave=6 << 30):
    """Most of the free memory is held, so that each pass gets the pages that the last one freed. The
    host of a virtual machine takes back what is free, and the first touch of such a page costs more
    than everything that is measured."""
    available = next(int(line.split()[1]) * 1024 for line in open("/proc/meminfo")
                     if line.startswith("MemAvailable"))
    if available <= leave:
        yield
        return
    hold = ("import mmap, sys; flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE; "
            "held = mmap.mmap(-1, int(sys.argv[1]), flags=flags); print(flush=True); sys.stdin.read()")
    holder = subprocess.Popen([sys.executable, "-c", hold, str(available - leave)],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        holder.stdout.readline()
        yield
    finally:
        holder.stdin.close()
        holder.wait()


@contextlib.contextmanager
def tmpfs(bench, name, size):
    path = bench.path(name)
    os.makedirs(path)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", path], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", path], check=True)
        os.rmdir(path)


@contextlib.contextmanager
def counting(bench, source, name):
    """`source` below a FUSE that counts, delays and limits what is read of it."""
    from counting_source import CountingSource
    os.environ["CKFS_BUILD"] = bench.build
    with CountingSource(source, bench.path(name)) as counted:
        yield counted


def status_of(bench, mountpoint):
    """What the daemon counted so far."""
    done = subprocess.run([bench.ckfs, "stats", mountpoint, "--json"], check=True,
                          stdout=subprocess.PIPE)
    return json.loads(done.stdout)


def daemon_of(mountpoint):
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            words = open(f"/proc/{pid}/cmdline", "rb").read().split(b"\0")
            if b"mount" in words[1:2] and os.fsencode(mountpoint) in words:
                return pid
    raise SystemExit(f"bench: {mountpoint}: no daemon")


def status(pid, field):
    for line in open(f"/proc/{pid}/status"):
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    return 0


def resident_memory(pid):
    """VmRSS less file pages."""
    return status(pid, "VmRSS") - status(pid, "RssFile") - status(pid, "RssShmem")


def peak_memory(pid):
    """VmHWM less file pages."""
    return status(pid, "VmHWM") - status(pid, "RssFile") - status(pid, "RssShmem")


def shards_of(directory):
    return [os.path.join(directory, name) for name in sorted(os.listdir(directory))
            if name.endswith(".safetensors")]


def read_all(path, drop):
    """Seconds per byte of a sequential read in pieces of 1 MiB; `drop`: the page cache of the file
    is dropped first."""
    fd = os.open(path, os.O_RDONLY)
    try:
        if drop:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        begin, done = time.perf_counter(), 0
        while n := os.readv(fd, [BUFFER]):
            done += n
        return (time.perf_counter() - begin) / done
    finally:
        os.close(fd)


def warm(*paths):
    for path in paths:
        read_all(path, False)


def drop_caches():
    """Everything that is on disk is read from there again."""
    os.sync()
    with open("/proc/sys/vm/drop_caches", "w") as f:
        f.write("3")


def ratios(sides, passes=PASSES):
    """sides: functions that give seconds per byte. -> medians over passes of sides[0] / side, for
    each other side, and all speeds."""
    for side in sides:
        side()
    seen = [[side() for side in sides] for _ in range(passes)]
    speeds = [statistics.median(1e-9 / one[k] for one in seen) for k in range(len(sides))]
    return [statistics.median(one[0] / one[k] for one in seen)
            for k in range(1, len(sides))], speeds


def timed(command):
    """-> seconds, peak resident bytes."""
    begin = time.perf_counter()
    process = subprocess.Popen(command)
    _, code, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(code)
    if process.returncode:
        raise SystemExit(f"bench: {command[0]}: exit {process.returncode}")
    return time.perf_counter() - begin, usage.ru_maxrss * 1024
