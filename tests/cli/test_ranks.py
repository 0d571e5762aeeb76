"""`ckfs export` by several processes: killed at any moment, run again, in any order."""

import json
import os
import random
import signal
import subprocess
import time
import unittest

import cli_support
import json_schema
from cli_support import LIMIT, run, start

OWN = ".ckfs-export.d"
VIEW = "fp32-safetensors@max_shard=1MB"
LAUNCHERS = ("SLURM_", "OMPI_", "PMI_", "JOB_COMPLETION_INDEX", "RANK", "WORLD_SIZE")


def environment(**variables):
    """This process's own, without any launcher's, and with `variables`."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHERS)}
    return {**kept, **variables}


def contents(directory):
    """{path: (bytes, mtime)}; of the export's own folder only the bytes."""
    found = {}
    for path in sorted(directory.rglob("*")):
        own = OWN in path.parts
        data = path.read_bytes() if path.is_file() else None
        found[str(path.relative_to(directory))] = (data, 0 if own else path.stat().st_mtime_ns)
    return found


class Ranks(cli_support.TestCase):
    def setUp(self):
        super().setUp()
        self.out = self.directory / "out"
        self.done("export", self.source, VIEW, self.directory / "serial", env=environment())
        self.expected = contents(self.directory / "serial")

    def rank(self, rank, world, *words, **options):
        options.setdefault("env", environment())
        return start("export", "--rank", rank, "--world", world, *words, self.source, VIEW,
                     self.out, **options)

    def finish(self, processes):
        for process in processes:
            out, err = process.communicate(timeout=LIMIT)
            self.assertEqual((process.returncode, err), (0, b""), out)

    def test_together_are_one(self):
        self.finish([self.rank(rank, 4) for rank in range(4)])
        self.assertEqual(contents(self.out), self.expected)

    def test_by_files(self):
        self.finish([self.rank(rank, 3, "--split", "files") for rank in range(3)])
        self.assertEqual(contents(self.out), self.expected)

    def test_launchers_say_which(self):
        processes = [start("export", "--distributed", self.source, VIEW, self.out,
                           env=environment(RANK=str(rank), WORLD_SIZE="2")) for rank in range(2)]
        self.finish(processes)
        self.assertEqual(contents(self.out), self.expected)
        self.fails(1, "rank 1 of 2.*rank 0 of 2", "export", "--distributed", self.source, VIEW,
                   self.out, env=environment(RANK="0", WORLD_SIZE="2", PMI_RANK="1", PMI_SIZE="2"))

    def test_a_launcher_alone_means_nothing(self):
        ended = run("export", self.source, VIEW, self.out,
                    env=environment(RANK="0", WORLD_SIZE="8"))
        self.assertEqual(ended.returncode, 0)
        self.assertRegex(ended.stderr, cli_support.ONE_LINE)
        self.assertRegex(ended.stderr.decode(), r"torchrun \(RANK, WORLD_SIZE\), which is ignored.*"
                                                r"\(--distributed exports a part\)")
        self.assertEqual(contents(self.out), self.expected)

    def test_a_launcher_of_one_process(self):
        self.done("export", "--distributed", self.source, VIEW, self.out,
                  env=environment(RANK="0", WORLD_SIZE="1"))
        self.assertEqual(contents(self.out), self.expected)

    def test_a_part_that_is_done_is_no_finished_export(self):
        schema = json.loads((cli_support.ROOT / "docs/schema/export_result.json").read_text())
        told = []
        for rank in range(2):
            process = self.rank(rank, 2, "--json")
            out, _ = process.communicate(timeout=LIMIT)
            self.assertEqual(process.returncode, 0)
            told.append(json.loads(out))
            self.assertEqual(json_schema.problems(told[-1], schema), [])
        self.assertEqual([(one["rank"], one["finished"]) for one in told], [(0, False), (1, True)])
        self.assertIn("rank 1 has not begun", told[0]["missing"])
        self.assertIsNone(told[1]["missing"])

    def test_killed_and_run_again(self):
        chance = random.Random(13)
        for world in (2, 3, 5):
            out = self.out = self.directory / f"out-{world}"
            for _ in range(12):
                rank = chance.randrange(world)
                process = self.rank(rank, world)
                try:
                    process.communicate(timeout=chance.random() * 0.08)
                except subprocess.TimeoutExpired:
                    process.send_signal(signal.SIGKILL)
                    process.communicate(timeout=LIMIT)
            for rank in chance.sample(range(world), world):
                self.finish([self.rank(rank, world)])
            # One that was killed while it finished may have been the one that was chosen.
            self.done("export", "--finish", self.source, VIEW, out, env=environment())
            self.assertEqual(contents(out), self.expected)

    def test_a_lost_rank_is_named(self):
        self.finish([self.rank(0, 3), self.rank(2, 3)])
        self.fails(1, r"rank 1 has not begun.*--rank R --world 3", "export", "--finish",
                   self.source, VIEW, self.out, env=environment())
        self.fails(1, "3 parts, not 4", "export", "--rank", 0, "--world", 4, self.source, VIEW,
                   self.out, env=environment())
        self.fails(1, "several processes export here", "export", self.source, VIEW, self.out,
                   env=environment())
        self.finish([self.rank(1, 3)])
        self.assertEqual(contents(self.out), self.expected)

    def test_the_command_line(self):
        for code, pattern, words in (
                (2, "is not a whole number", ["--rank", "x", "--world", "2"]),
                (2, "rank 2 of 2", ["--rank", "2", "--world", "2"]),
                (2, "--world N", ["--rank", "2"]),
                (2, "--rank R or --distributed", ["--world", "2"]),
                (1, "no launcher has set its variables", ["--distributed"]),
                (2, "excludes", ["--distributed", "--rank", "0", "--world", "2"]),
                (2, "at least 1", ["--world", "0"]),
                (2, "not one of ranges, files", ["--split", "both"]),
                (2, "excludes", ["--finish", "--rank", "0"])):
            with self.subTest(words=words):
                self.fails(code, pattern, "export", *words, self.source, VIEW, self.out,
                           env=environment())
        self.assertFalse(self.out.exists())

    def test_a_source_that_changed_is_refused_with_both_facts(self):
        self.finish([self.rank(0, 2)])
        path = self.source / "config.json"
        before = path.stat()
        try:
            os.utime(path, (1_700_000_100, 1_700_000_100))
            process = self.rank(1, 2)
            _, err = process.communicate(timeout=LIMIT)
        finally:
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        self.assertEqual(process.returncode, 1)
        self.assertRegex(err, rb"fingerprint [0-9a-f]{16}, not [0-9a-f]{16}")

    def test_out_that_cannot_be_written(self):
        self.fails(1, "ckfs-out", "export", "--rank", 0, "--world", 2, self.source, VIEW,
                   "/proc/ckfs-out", env=environment())

    def test_with_nothing_left_takes_no_time(self):
        self.finish([self.rank(rank, 2) for rank in range(2)])
        begin = time.monotonic()
        self.assertIn(b"all is finished", self.done(
            "export", "--rank", 1, "--world", 2, self.source, VIEW, self.out, env=environment()))
        self.assertLess(time.monotonic() - begin, 20)
        self.assertFalse((self.out / OWN).exists())


if __name__ == "__main__":
    unittest.main()
