#!/usr/bin/env python3
"""build_wheel.py BUILD OUT: packs a build with CKFS_STATIC into OUT/ckfs-VERSION-py3-none-PLATFORM.whl.

A wheel is a zip with a list of its files. Nothing in this one depends on the version of Python, so no
tool that builds extension modules is needed. The same build gives the same bytes.
"""
import argparse
import base64
import hashlib
import pathlib
import re
import subprocess
import tempfile
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
# What `auditwheel show` says of the files, and test_wheel.py holds it to.
PLATFORM = "manylinux_2_34_x86_64"
TIME = (2020, 1, 1, 0, 0, 0)

METADATA = """\
Metadata-Version: 2.1
Name: ckfs
Version: {version}
Summary: Model checkpoints in other forms, computed when they are read
License: Apache-2.0
Requires-Python: >=3.9
Classifier: Operating System :: POSIX :: Linux
Classifier: Programming Language :: Python :: 3
Classifier: Typing :: Typed
Description-Content-Type: text/markdown

`ckfs mount` by a user other than root needs the package fuse3 of the distribution. Everything else in
this wheel needs nothing: `import ckfs`, `ckfs export`, `ckfs serve`, `ckfs cat`, `ckfs digest`.

{description}"""

WHEEL = """\
Wheel-Version: 1.0
Generator: ckfs
Root-Is-Purelib: false
Tag: py3-none-{platform}
"""

ENTRY_POINTS = """\
[fsspec.specs]
ckfs = ckfs._fsspec:CkfsFileSystem
"""


def version():
    return re.search(r"project\(ckfs VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text())[1]


def stripped(program):
    with tempfile.NamedTemporaryFile() as out:
        subprocess.run(["strip", "-o", out.name, program], check=True)
        return pathlib.Path(out.name).read_bytes()


def licences():
    """Those of ckfs and of the libraries inside its programs."""
    yield "LICENSE", (ROOT / "LICENSE").read_bytes()
    yield "LIBRARIES.md", (HERE / "LIBRARIES.md").read_bytes()
    # Which the licence wants beside the program; Debian's packages name a file of the system.
    yield "LGPL-2.1.txt", pathlib.Path("/usr/share/common-licenses/LGPL-2.1").read_bytes()
    for package in re.findall(r"^\| `([\w.+-]+)` \|", (HERE / "LIBRARIES.md").read_text(), re.M):
        path = pathlib.Path("/usr/share/doc") / package / "copyright"
        yield f"{package}.txt", path.read_bytes()


def contents(build):
    """(path, bytes, whether it is a program) of each file, in order."""
    name = f"ckfs-{version()}"
    for path in sorted((HERE / "ckfs").iterdir()):
        if path.suffix == ".py" or path.name == "py.typed":
            yield f"ckfs/{path.name}", path.read_bytes(), False
    yield "ckfs/libckfs.so.1", stripped(build / "libckfs.so.1"), True
    yield "ckfs/include/ckfs.h", (ROOT / "include/ckfs/ckfs.h").read_bytes(), False
    for program in ("ckfs", "ckfs-fetcher"):
        if (build / program).exists():
            yield f"{name}.data/scripts/{program}", stripped(build / program), True
    for licence, text in licences():
        yield f"{name}.dist-info/licenses/{licence}", text, False
    description = (ROOT / "docs/PYTHON.md").read_text()
    yield (f"{name}.dist-info/METADATA",
           METADATA.format(version=version(), description=description).encode(), False)
    yield f"{name}.dist-info/WHEEL", WHEEL.format(platform=PLATFORM).encode(), False
    yield f"{name}.dist-info/entry_points.txt", ENTRY_POINTS.encode(), False


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    wheel = arguments.out / f"ckfs-{version()}-py3-none-{PLATFORM}.whl"
    record = []
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        def add(path, data, program):
            entry = zipfile.ZipInfo(path, TIME)
            entry.external_attr = (0o100755 if program else 0o100644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)

        for path, data, program in contents(arguments.build):
            add(path, data, program)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{path},sha256={digest},{len(data)}")
        path = f"ckfs-{version()}.dist-info/RECORD"
        add(path, "\n".join([*record, f"{path},,", ""]).encode(), False)
    print(wheel)


if __name__ == "__main__":
    main()
