#!/usr/bin/python3
"""What servers, networks and the machine do to a fetcher: right bytes, or an error that says so."""
import os
import pathlib
import random
import select
import signal
import subprocess
import tempfile
import unittest

from remote import Servers, probe, probe_that_waits


def child_of(parent):
    """The process that the supervisor has started last, or None."""
    text = pathlib.Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return int(text[-1]) if text else None


class Faults(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.servers = Servers()
        cls.environment = cls.servers.environment(AWS_ACCESS_KEY_ID="test",
                                                  AWS_SECRET_ACCESS_KEY="x")
        folder = cls.servers.root / "s3/bucket/run/model"
        cls.source = {path.relative_to(folder).as_posix(): path.read_bytes()
                      for path in folder.rglob("*") if path.is_file()}

    @classmethod
    def tearDownClass(cls):
        cls.servers.__exit__()

    def setUp(self):
        self.servers.faults()

    def copy(self, service, **options):
        return probe(self.environment, self.servers.locations()[service], "copy", stats=1,
                     **options)

    def test_what_passes_is_tried_again(self):
        kinds = ("503", "429", "500", "cut")
        for service, data in (("s3", "s3"), ("gcs", "gcs"), ("hub", "cdn"), ("hub", "hub")):
            with self.subTest(data):
                self.servers.faults([{"service": data, "every": 5 + i, "kind": kind}
                                     for i, kind in enumerate(kinds)])
                answer = self.copy(service, piece=50_000)
                self.assertEqual(answer.status, 0, answer.error)
                self.assertEqual(answer.out, self.source)
                self.assertEqual(answer.stats["wanted"], sum(map(len, self.source.values())))

    def test_an_object_that_is_replaced_is_stale_and_never_mixed(self):
        for service, data in (("s3", "s3"), ("gcs", "gcs"), ("web", "web"), ("hub", "cdn")):
            for at in (2, 3, 7):
                # URLs of the CDN have no names.
                path = "" if data == "cdn" else "model-00001"
                self.servers.faults([{"service": data, "path": path, "every": at, "kind": "swap"}])
                location = self.servers.locations()[service]
                if service == "web":
                    location = location.replace("config.json", "model-00001-of-00002.safetensors")
                answer = probe(self.environment, location, "copy", piece=100_000)
                self.assertEqual(answer.status, 1, (service, at))
                self.assertRegex(answer.error, r"error 5: .*(changed|another)", (service, at))
                for name, data_of_it in answer.out.items():
                    self.assertEqual(data_of_it, self.source[name])

    def test_answers_of_other_ranges_are_not_believed(self):
        for kind, says in (("range", "the server sends bytes"), ("whole", "sends no ranges")):
            self.servers.faults([{"service": "s3", "path": "model-00001", "every": 7,
                                  "kind": kind}])
            answer = self.copy("s3", piece=100_000)
            self.assertEqual(answer.status, 1)
            self.assertIn(says, answer.error)

    def test_an_object_that_is_replaced_between_two_reads_is_stale(self):
        for service in ("s3", "gcs"):
            with tempfile.TemporaryDirectory() as out:
                with probe_that_waits(self.environment, self.servers.locations()[service],
                                      out) as process:
                    for _ in range(1 + len(self.source)):
                        process.stdout.readline()
                    self.servers.control("/touch", {
                        "service": service, "path": "bucket/run/model/te/model.safetensors"})
                    process.stdin.write("go\n")
                    process.stdin.flush()
                    process.wait(60)
                    self.assertEqual(process.returncode, 1)
                    self.assertRegex(process.stderr.read(),
                                     r'error 5: .*"te/model.safetensors": it')
                self.assertFalse(pathlib.Path(out, "te/model.safetensors").exists())
            # Mounted anew it is the new one.
            self.assertEqual(self.copy(service).status, 0)

    def test_a_black_out_is_waited_for_until_time_is_up(self):
        self.servers.faults([{"service": "s3", "path": "run/model/", "kind": "503"}])
        answer = self.copy("s3", timeout=1500)
        self.assertEqual(answer.status, 1)
        self.assertRegex(answer.error, r"the server answers 503.*\(no answer within the time")

    def test_a_fetcher_that_is_killed_is_started_again(self):
        rng = random.Random(1)
        self.servers.faults(rate=200_000)
        with tempfile.TemporaryDirectory() as out:
            with probe_that_waits(self.environment, self.servers.locations()["s3"], out,
                                  piece=50_000, stats=1, memory=1 << 20) as process:
                supervisor = int(process.stderr.readline().split()[1])
                for _ in range(1 + len(self.source)):
                    process.stdout.readline()
                process.stdin.write("go\n")
                process.stdin.flush()
                kills = 0
                while process.poll() is None and kills < 3:
                    # Until the fetcher that was started again has done something.
                    try:
                        process.wait(0.2 + rng.random() / 4)
                        break
                    except subprocess.TimeoutExpired:
                        child = child_of(supervisor)
                    if child:
                        os.kill(child, signal.SIGKILL)
                        kills += 1
                self.servers.faults()
                process.wait(60)
                self.assertEqual(process.returncode, 0, process.stderr.read())
                stats = process.stdout.read().splitlines()[-1]
                self.assertIn('"generation":%d' % (kills + 1), stats)
                self.assertGreater(kills, 0)
            copied = {path.relative_to(out).as_posix(): path.read_bytes()
                      for path in pathlib.Path(out).rglob("*") if path.is_file()}
            self.assertEqual(copied, self.source)

    def test_a_supervisor_that_is_killed_is_an_error_and_takes_its_fetcher_along(self):
        with tempfile.TemporaryDirectory() as out:
            with probe_that_waits(self.environment, self.servers.locations()["s3"],
                                  out) as process:
                supervisor = int(process.stderr.readline().split()[1])
                for _ in range(1 + len(self.source)):
                    process.stdout.readline()
                descriptor = os.pidfd_open(child_of(supervisor))
                os.kill(supervisor, signal.SIGKILL)
                process.stdin.write("go\n")
                process.stdin.flush()
                process.wait(60)
                self.assertIn("ckfs-fetcher has ended", process.stderr.read())
                self.assertTrue(select.select([descriptor], [], [], 20)[0])
                os.close(descriptor)

    def test_a_client_that_is_killed_leaves_no_fetcher(self):
        with tempfile.TemporaryDirectory() as out:
            with probe_that_waits(self.environment, self.servers.locations()["s3"],
                                  out) as process:
                supervisor = int(process.stderr.readline().split()[1])
                process.stdout.readline()
                descriptor = os.pidfd_open(supervisor)
                process.kill()
                process.wait()
                self.assertTrue(select.select([descriptor], [], [], 20)[0])
                os.close(descriptor)

    def test_secrets_are_in_no_command_line_and_no_core(self):
        environment = {**self.environment, "AWS_SECRET_ACCESS_KEY": "hush-hush"}
        with tempfile.TemporaryDirectory() as out:
            with probe_that_waits(environment, self.servers.locations()["s3"], out) as process:
                supervisor = int(process.stderr.readline().split()[1])
                process.stdout.readline()
                for pid in (supervisor, child_of(supervisor)):
                    command = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
                    self.assertIn(b"ckfs-fetcher", command)
                    self.assertNotIn(b"hush", command)
                    limits = pathlib.Path(f"/proc/{pid}/limits").read_text()
                    self.assertRegex(limits, r"Max core file size +0 +0 ")
                status = pathlib.Path(f"/proc/{child_of(supervisor)}/status").read_text()
                if "Seccomp:" in status and not os.environ.get("CKFS_SANITIZE"):
                    self.assertIn("Seccomp:\t2", status)

    def test_memory_is_what_is_shared_and_little_more(self):
        big = self.servers.root / "s3/bucket/big"
        big.mkdir(exist_ok=True)
        (big / "model.safetensors").write_bytes(bytes(64 << 20))
        with tempfile.TemporaryDirectory() as out:
            with probe_that_waits(self.environment, "s3://bucket/big", out, memory=8 << 20,
                                  piece=1 << 20) as process:
                supervisor = int(process.stderr.readline().split()[1])
                process.stdout.readline()
                child = child_of(supervisor)
                process.stdin.write("go\n")
                process.stdin.flush()
                while process.poll() is None and not list(pathlib.Path(out).iterdir()):
                    try:
                        process.wait(0.05)
                    except subprocess.TimeoutExpired:
                        continue
                status = pathlib.Path(f"/proc/{child}/status")
                text = status.read_text() if status.exists() else ""
                peak = [int(line.split()[1]) for line in text.splitlines()
                        if line.startswith("VmHWM")]
                if peak:
                    self.assertLess(peak[0], (8 << 10) + (24 << 10))
                process.wait(60)
                self.assertEqual(process.returncode, 0)


if __name__ == "__main__":
    unittest.main()
