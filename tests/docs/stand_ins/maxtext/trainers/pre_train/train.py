"""Stands in for MaxText: `python3 -m maxtext.trainers.pre_train.train FLAG=VALUE...`.

MaxText itself does not run here. Its first step does, in the environment of Orbax: the parameters at
load_parameters_path are restored by the calls of MaxText 0.2.5 and 0.2.3 (tests/orbax), and must be
those that its own converter makes of this model (bits of NaN apart). Then it leaves the checkpoint that a run of MaxText
would: the same parameters, as MaxText's converter wrote them, at the place where MaxText writes.
"""
import os
import pathlib
import shutil
import subprocess
import sys

FLAGS = {"run_name", "model_name", "scan_layers", "load_parameters_path", "base_output_directory",
         "dataset_type", "steps"}
flags = dict(word.split("=", 1) for word in sys.argv[1:])
assert set(flags) == FLAGS, set(flags) ^ FLAGS
form = {"true": "scanned", "false": "unscanned"}[flags["scan_layers"]]
assert pathlib.Path(flags["load_parameters_path"]).is_absolute()
assert pathlib.Path(flags["base_output_directory"]).is_absolute()

repository = pathlib.Path(os.environ["CKFS_REPOSITORY"])
check = """
import sys
import pathlib
import support, test_openings
from maxtext_cases import differences
item = pathlib.Path(sys.argv[1])
case = {"source": "qwen3-dense", "expected": sys.argv[2], "nan": True}
for tree in support.by_maxtext(item), test_openings.by_maxtext(item.parents[1]):
    found = list(differences(case, support.arrays(tree)))
    assert not found, found
"""
subprocess.run([repository / ".venv/orbax/bin/python", "-c", check, flags["load_parameters_path"],
                form], check=True,
               env={**os.environ, "PYTHONPATH": str(repository / "tests/orbax")})
shutil.copytree(repository / "tests/data/maxtext/qwen3-dense/expected" / form,
                pathlib.Path(flags["base_output_directory"], flags["run_name"], "checkpoints"))
