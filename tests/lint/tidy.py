#!/usr/bin/env python3
"""clang-tidy over the files of a compilation database.

    tidy.py --build DIR [--jobs N]

It takes half a minute a file. So a file that passed is looked at again when what the compiler reads
of it, its command, .clang-tidy or clang-tidy itself has changed: DIR/passed has the hashes. What
clang-tidy finds is printed, and the exit code is 1.
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

ROOT = pathlib.Path(__file__).resolve().parents[2]
TIDY = "clang-tidy-19"


def key_of(entry, common):
    """A hash of all that decides what clang-tidy says of a file; comments count, for NOLINT."""
    command = shlex.split(entry["command"])
    at = command.index("-o")
    del command[at:at + 2]
    text = subprocess.run([*command, "-E", "-CC"], cwd=entry["directory"],
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    return hashlib.sha256(b"\0".join([common, entry["command"].encode(), text])).hexdigest()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    entries = json.loads((options.build / "compile_commands.json").read_text())
    passed = options.build / "passed"
    passed.mkdir(exist_ok=True)
    common = subprocess.run([TIDY, "--version"], check=True, stdout=subprocess.PIPE).stdout
    common += (ROOT / ".clang-tidy").read_bytes()

    def look_at(entry):
        """The hash of a file that passes (else nothing), and what was found."""
        key = key_of(entry, common)
        if (passed / key).exists():
            return key, ""
        done = subprocess.run([TIDY, "-p", options.build, "-quiet", entry["file"]],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode == 0:
            (passed / key).touch()
            return key, ""
        # With those of the standard library's headers, which are not shown.
        return "", re.sub(r"\d+ warnings? generated\.\n", "", done.stdout)

    failed, known = 0, set()
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for number, (key, found) in enumerate(pool.map(look_at, entries), 1):
            known.add(key)
            failed += not key
            if sys.stderr.isatty():
                print(f"\rclang-tidy: {number} of {len(entries)} files", end="", file=sys.stderr)
            print(found, end="", flush=True)
    if sys.stderr.isatty():
        print(file=sys.stderr)
    for old in passed.iterdir():
        if old.name not in known:
            old.unlink()
    print(f"clang-tidy: {len(entries)} files, {failed} with findings")
    sys.exit(1 if failed else 0)


main()
