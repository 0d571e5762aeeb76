#!/usr/bin/env python3
"""A view exported by real launchers: Slurm with four nodes on this machine, of which tasks are killed
and queued again, and Open MPI. The result is that of one process. And Kubernetes' manifests are what
its schema allows. Needs root (slurmd), slurmctld, slurmd, munge, openmpi-bin; .venv/kubernetes."""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "golden"), str(TESTS / "slow")]
import slurm  # noqa: E402
import ways  # noqa: E402

CKFS = pathlib.Path(os.environ["CKFS_BIN"]).resolve()
HELPERS = TESTS.parent / "mount-helpers"
SCRIPT = HELPERS / "slurm/ckfs-export.sbatch"
KUBERNETES = TESTS.parent / ".venv/kubernetes/bin"
SOURCE = ways.DATA.parent / "maxtext/deepseek3-fp8/source"
VIEWS = ("maxtext-scanned@ep=2", "bf16-safetensors@max_shard=100KB")
TASKS = 4
# Kills the first task of its kind that it sees, right where it begins to write.
WRAPPER = """#!/bin/bash
if [ "${{SLURM_ARRAY_TASK_ID:-$SLURM_PROCID}}" = 2 ] && mkdir {mark} 2>/dev/null; then
  {ckfs} "$@" & child=$!
  until [ -e {out}/.ckfs-export.d/rank-2.json ] || ! kill -0 $child; do :; done
  kill -KILL $child; wait $child
  exit 1
fi
exec {ckfs} "$@"
"""


def contents(directory):
    return {str(path.relative_to(directory)):
            (path.read_bytes() if path.is_file() else None,
             0 if ".ckfs-export.d" in path.parts else path.stat().st_mtime_ns)
            for path in directory.rglob("*")}


class Case(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="ckfs-slow-")
        self.addCleanup(temporary.cleanup)
        self.work = pathlib.Path(temporary.name)

    def serial(self, view):
        out = self.work / "serial" / view
        out.parent.mkdir(exist_ok=True)
        subprocess.run([CKFS, "export", SOURCE, view, out], check=True, stdout=subprocess.DEVNULL)
        return contents(out)


@unittest.skipUnless(os.geteuid() == 0, "slurmd needs root")
class Slurm(Case):
    def submit(self, environment, view, *options):
        """Runs the script to its end, with a task that is killed and queued again."""
        out = self.work / "out" / view
        out.parent.mkdir(exist_ok=True)
        log = self.work / "job.log"
        wrapper = self.work / f"ckfs-{len(list(self.work.glob('ckfs-*')))}"
        wrapper.write_text(WRAPPER.format(ckfs=CKFS, out=out, mark=f"{wrapper}.killed"))
        wrapper.chmod(0o755)
        job = subprocess.run(
            ["sbatch", "--parsable", f"--output={log}", *options, SCRIPT, SOURCE, view, out],
            env={**environment, "CKFS": str(wrapper)}, check=True, stdout=subprocess.PIPE,
            text=True).stdout.strip()

        def over():
            return all(state in ("COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL")
                       for state in slurm.states(environment, job).values())

        slurm.wait_for(over, "job")
        failed = [task for task, state in slurm.states(environment, job).items()
                  if state == "FAILED"]
        self.assertEqual(len(failed), 1, log.read_text())
        self.assertFalse((out / "model.safetensors.index.json").exists())
        # As an administrator, or a node that is lost, does it.
        name = f"{job}_{failed[0]}" if "--array=0-3" in options else job
        subprocess.run(["scontrol", "requeue", name], env=environment, check=True)
        slurm.wait_for(lambda: set(slurm.states(environment, job).values()) == {"COMPLETED"},
                       "job that was queued again")
        return contents(out)

    def test_array_and_srun(self):
        with slurm.running(self.work, TASKS) as environment:
            for view, options in zip(VIEWS, (["--array=0-3"],
                                             ["--nodes=4", "--ntasks-per-node=1"])):
                with self.subTest(view=view, options=options):
                    self.assertTrue(self.submit(environment, view, *options) == self.serial(view))


class OpenMpi(Case):
    def test_four_ranks(self):
        for view in VIEWS:
            out = self.work / "out" / view
            out.parent.mkdir(exist_ok=True)
            command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", TASKS, CKFS,
                       "export", "--distributed", SOURCE, view, out]
            process = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE,
                                       stderr=subprocess.STDOUT, text=True)
            # Killed as a whole at some moment, then run again.
            try:
                process.communicate(timeout=0.7)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.communicate()
            slurm.wait_for(lambda: not writers(out), "ranks of a launcher that is gone")
            done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True)
            self.assertEqual(done.returncode, 0, done.stdout)
            self.assertTrue(contents(out) == self.serial(view))


def writers(out):
    """Processes of ckfs that export to `out`."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0] == os.fsencode(CKFS) and os.fsencode(out) in words:
            found.append(path.parent.name)
    return found


class Kubernetes(unittest.TestCase):
    VERSION = "1.31"

    def validate(self, path):
        return subprocess.run([KUBERNETES / "kubernetes-validate", "--strict", "-k", self.VERSION,
                               path], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def test_manifests_are_what_the_schema_allows(self):
        for path in sorted((HELPERS / "kubernetes").glob("*.yaml")):
            with self.subTest(path=path.name):
                done = self.validate(path)
                self.assertEqual(done.returncode, 0, done.stdout)

    def test_a_mistake_would_be_seen(self):
        with tempfile.TemporaryDirectory(prefix="ckfs-slow-") as work:
            path = pathlib.Path(work, "job.yaml")
            text = (HELPERS / "kubernetes/export-job.yaml").read_text()
            path.write_text(text.replace("completionMode", "completionsMode"))
            self.assertNotEqual(self.validate(path).returncode, 0)


if __name__ == "__main__":
    unittest.main()
