#!/usr/bin/env python3
"""clang-tidy over the files of a compilation database.

    tidy.py --build DIR [--jobs N]

It takes a quarter of a minute a file. So a file that passed is looked at again when what the compiler reads
of it, its command, .clang-tidy or clang-tidy itself has changed, as with ccache in whichever checkout:
the user's cache directory has a hash for each. What clang-tidy finds is printed, and the exit code
is 1.
"""
import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
TIDY = "clang-tidy-19"
PASSED = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "ckfs" / "tidy"
KEPT = 90 * 86400  # seconds; as long as a hash is not asked for


def key_of(entry, common):
    """A hash of all that decides what clang-tidy says of a file; comments count, for NOLINT."""
    command = shlex.split(entry["command"])
    at = command.index("-o")
    del command[at:at + 2]
    text = subprocess.run([*command, "-E", "-CC"], cwd=entry["directory"],
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    key = b"\0".join([common, entry["command"].encode(), text])
    return hashlib.sha256(key.replace(os.fsencode(ROOT) + b"/", b"")).hexdigest()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    entries = json.loads((options.build / "compile_commands.json").read_text())
    PASSED.mkdir(parents=True, exist_ok=True)
    common = subprocess.run([TIDY, "--version"], check=True, stdout=subprocess.PIPE).stdout
    common += (ROOT / ".clang-tidy").read_bytes()

    def look_at(entry):
        """What was found in a file; nothing where it passes."""
        passed = PASSED / key_of(entry, common)
        if passed.exists():
            passed.touch()
            return ""
        done = subprocess.run([TIDY, "-p", options.build, "-quiet", entry["file"]],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode == 0:
            passed.touch()
            return ""
        # With those of the standard library's headers, which are not shown.
        return re.sub(r"\d+ warnings? generated\.\n", "", done.stdout) or \
            f"{entry['file']}: {TIDY} ended with {done.returncode}\n"

    failed = 0
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for number, found in enumerate(pool.map(look_at, entries), 1):
            failed += bool(found)
            if sys.stderr.isatty():
                print(f"\rclang-tidy: {number} of {len(entries)} files", end="", file=sys.stderr)
            print(found, end="", flush=True)
    if sys.stderr.isatty():
        print(file=sys.stderr)
    for old in PASSED.iterdir():
        if old.stat().st_mtime < time.time() - KEPT:
            old.unlink(missing_ok=True)
    print(f"clang-tidy: {len(entries)} files, {failed} with findings")
    sys.exit(1 if failed else 0)


main()
