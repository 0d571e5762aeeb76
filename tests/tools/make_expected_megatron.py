#!/usr/bin/env python3
"""Takes golden cases of Megatron-Core into tests/data: the sources whole, the expected files as
digests.

    make_expected_megatron.py FIXTURES/megatron tests/data/megatron

expected.json of a case:
    views  {options: {view: {tensor: digest}}}   by `ckfs` with these options, "" or "--step 3"
Of a case that is refused there is error.txt, in words; tests make those that are another case with a
file less.
"""
import json
import pathlib
import shutil
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent)]
import digest  # noqa: E402

MADE_BY_TESTS = {"broken-distcp-missing", "broken-latest-absent"}
# The folder of the fixture -> the view that has these bytes.
VIEWS = {"fp32-masters": "fp32-safetensors@master=1"}


def views_of(expected):
    return {VIEWS.get(folder.name, folder.name): digest.digest(str(folder), lambda *_: False)
            for folder in sorted(expected.iterdir()) if folder.is_dir()}


def main():
    fixtures, data = map(pathlib.Path, sys.argv[1:])
    for case in sorted(path for path in fixtures.iterdir() if path.is_dir()):
        if case.name in MADE_BY_TESTS:
            continue
        out = data / case.name
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(case / "source", out / "source")
        if (case / "source-config").is_dir():
            shutil.copytree(case / "source-config", out / "source-config")
        shutil.copy(case / "fixture.json", out / "fixture.json")
        if (case / "expected/error.txt").is_file():
            shutil.copy(case / "expected/error.txt", out / "error.txt")
            continue
        views = {}
        for folder in sorted(case.glob("expected*")):
            step = folder.name.removeprefix("expected").removeprefix("-step-")
            views[f"--step {step}" if step else ""] = views_of(folder)
        lines = [f'{json.dumps(options)}: {{\n' + ",\n".join(
            f"{json.dumps(view)}: {{\n" + ",\n".join(
                f"{json.dumps(name)}: {json.dumps(tensor)}"
                for name, tensor in tensors.items()) + "\n}" for view, tensors in of.items()) + "\n}"
            for options, of in views.items()]
        (out / "expected.json").write_text('{"views": {\n' + ",\n".join(lines) + "\n}}\n")


if __name__ == "__main__":
    main()
