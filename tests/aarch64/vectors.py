"""The kernels that make codes are vector code on aarch64: each divides, multiplies and adds floats four at a time.

Usage: vectors.py OBJDUMP OBJECT
"""
import re
import subprocess
import sys

objdump, path = sys.argv[1:]
text = subprocess.run([objdump, "-d", "--demangle", "--no-show-raw-insn", path], check=True, capture_output=True,
                      text=True).stdout
seen = 0
for function in text.split("\n\n"):
    name = re.search(r"^[0-9a-f]+ <void ckfs::lanes::\(anonymous namespace\)::(?:groups_of|quantize_elements)<.*>:$", function, re.M)
    if name is None:
        continue
    seen += 1
    title = name.group(0).split("<", 1)[1]
    # Of whole vectors, and of one element.
    whole = re.findall(r"\tf(?:div|mul|add)\tv\d+\.4s", function)
    single = re.findall(r"\tf(?:div|mul|add|sub)\t[sd]\d+", function)
    assert whole, f"{title} has no vectors"
    assert not single, f"{title} computes single elements: {single}"
# Each of three dtypes: ten pairs of code and arithmetic, five forms of groups for three lengths.
assert seen == 3 * (10 + 5 * 3), seen
