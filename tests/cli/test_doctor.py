"""`ckfs doctor` on machines that have what this one has not: their files below --root."""

import json
import os
import shutil
import subprocess
import unittest

import cli_support
from cli_support import CKFS, run

LIMIT = 512 << 20


class Doctor(cli_support.TestCase):
    def setUp(self):
        super().setUp()
        self.root = self.directory / "root"
        self.write("proc/meminfo", "MemTotal: 16777216 kB\n")
        self.write("proc/self/cgroup", "0::/\n")
        self.write("proc/self/status", "Name:\tx\nNoNewPrivs:\t0\n")
        self.write("proc/self/mountinfo", "")
        self.write("proc/sys/kernel/io_uring_disabled", "0\n")
        self.write("etc/fuse.conf", "user_allow_other\n")
        self.write("dev/fuse", "")  # any file that can be opened
        helper = self.write("usr/bin/fusermount3", "")
        helper.chmod(0o4755)

    def write(self, path, text):
        path = self.root / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def examine(self, *words):
        """{name: finding}, and the exit code."""
        ended = run("doctor", "--json", "--root", self.root, *words)
        self.assertEqual(ended.stderr, b"")
        told = json.loads(ended.stdout)
        self.assertEqual(told["version"], 1)
        broken = any(finding["level"] == "BROKEN" for finding in told["findings"])
        self.assertEqual(ended.returncode, 1 if broken else 0)
        return {finding["name"]: finding for finding in told["findings"]}

    def test_a_machine_without_faults(self):
        found = self.examine(self.source)
        # How many files may be open, and what the sandbox of the tests forbids, is not ours.
        rest = {name for name, finding in found.items() if finding["level"] != "OK"}
        self.assertLessEqual(rest, {"open files", "io_uring"})
        self.assertEqual(found["checkpoint"]["fact"], "can be opened")
        text = self.done("doctor", "--root", self.root).decode()
        self.assertRegex(text, r"(?m)^OK     device: /dev/fuse can be opened$")

    def test_no_device(self):
        (self.root / "dev/fuse").unlink()
        self.assertEqual(self.examine()["device"]["remedy"], "sudo modprobe fuse")
        self.write(".dockerenv", "")
        self.assertIn("--device /dev/fuse", self.examine()["device"]["remedy"])

    def test_io_uring_is_forbidden(self):
        self.write("proc/sys/kernel/io_uring_disabled", "2\n")
        finding = self.examine()["io_uring"]
        self.assertEqual(finding["level"], "SLOW")
        self.assertEqual(finding["remedy"], "sudo sysctl kernel.io_uring_disabled=0")

    def test_memory_against_the_control_group(self):
        self.write("sys/fs/cgroup/memory.max", f"{LIMIT}\n")
        finding = self.examine()["memory"]
        self.assertIn("control group gives 537 MB", finding["fact"])
        self.assertEqual(self.examine("--memory", "1GiB")["memory"]["level"], "BROKEN")
        self.assertEqual(self.examine("--memory", "1GiB")["memory"]["remedy"],
                         f"--memory {LIMIT // 4}")

    def test_memory_that_is_too_little_for_any_budget(self):
        self.write("sys/fs/cgroup/memory.max", f"{64 << 20}\n")
        finding = self.examine("--memory", "64MiB")["memory"]
        self.assertEqual(finding["level"], "BROKEN")
        self.assertEqual(finding["remedy"], "give the control group 268 MB or more")

    def test_a_dead_mount(self):
        self.write("proc/self/mountinfo",
                   "36 35 0:52 / /mnt/gone ro shared:1 - fuse.ckfs /srv/model ro\n")
        # A directory that is no dead mount is a living one.
        self.assertEqual(self.examine()["mounts"]["fact"], "1 of ckfs, all of which answer")

    def test_fuse_conf_is_read_as_libfuse_reads_it(self):
        command, as_user = [CKFS], {}
        if os.geteuid() == 0:
            self.assertIn("root may always", self.examine()["allow_other"]["fact"])
            command = [shutil.copy(CKFS, self.directory / "ckfs")]
            as_user = {"user": 65534, "group": 65534, "extra_groups": []}
        for text, level, remedy in (("user_allow_other\n", "OK", ""),
                                    ("mount_max = 9\n user_allow_other # all\n", "OK", ""),
                                    ("# user_allow_other\n", "SLOW", "echo user_allow_other |"),
                                    # Its line has no end: libfuse passes over it.
                                    ("user_allow_other", "SLOW", "printf '")):
            with self.subTest(text):
                self.write("etc/fuse.conf", text)
                subprocess.run(["chmod", "-R", "a+rX", self.directory], check=True)
                ended = subprocess.run([*command, "doctor", "--json", "--root", self.root],
                                       stdout=subprocess.PIPE, timeout=60, **as_user)
                finding = next(one for one in json.loads(ended.stdout)["findings"]
                               if one["name"] == "allow_other")
                self.assertEqual(finding["level"], level)
                self.assertTrue((finding.get("remedy") or "").startswith(remedy), finding)

    def test_users_need_more(self):
        if os.geteuid() == 0:
            finding = self.examine()["fusermount3"]
            self.assertIn("root mounts by itself", finding["fact"])
            return
        (self.root / "usr/bin/fusermount3").unlink()
        self.assertEqual(self.examine()["fusermount3"]["remedy"], "sudo apt-get install fuse3")

    def test_a_source_that_is_none(self):
        ended = run("doctor", "--root", self.root, self.directory / "none")
        self.assertEqual(ended.returncode, 1)
        self.assertIn(b"BROKEN source", ended.stdout)


if __name__ == "__main__":
    unittest.main()
