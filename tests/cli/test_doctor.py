"""`ckfs doctor` on machines that have what this one has not: their files below --root."""

import json
import os
import pathlib
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
        (self.root / "dev").mkdir()
        (self.root / "dev/fuse").symlink_to("/dev/fuse")
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
        self.assertRegex(text.splitlines()[-1], "^ckfs can mount here")

    def test_no_device(self):
        (self.root / "dev/fuse").unlink()
        self.assertEqual(self.examine()["device"]["remedy"], "sudo modprobe fuse")
        self.write(".dockerenv", "")
        self.assertIn("--device /dev/fuse", self.examine()["device"]["remedy"])

    def test_a_file_in_the_devices_place(self):
        (self.root / "dev/fuse").unlink()
        self.write("dev/fuse", "")
        finding = self.examine()["device"]
        self.assertEqual(finding["level"], "BROKEN")
        self.assertEqual(finding["fact"], "/dev/fuse is not the FUSE device (10:229)")
        self.assertEqual(finding["remedy"],
                         "sudo rm /dev/fuse && sudo mknod -m 666 /dev/fuse c 10 229")
        ended = run("doctor", "--root", self.root)
        self.assertEqual(ended.returncode, 1)
        self.assertRegex(ended.stdout.decode().splitlines()[-1], "^ckfs cannot mount here: ")

    def test_containers_by_their_signs(self):
        signs = {
            "docker": ".dockerenv", "podman": "run/.containerenv", "apptainer": ".singularity.d/x",
        }
        for kind, path in signs.items():
            with self.subTest(kind):
                self.write(path, "")
                self.assertEqual(self.examine()["place"]["fact"], f"a container ({kind})")
                (self.root / path).unlink()
                if kind == "apptainer":
                    (self.root / path).parent.rmdir()
        for kind, path, text in (
                ("lxc", "proc/1/environ", "HOME=/\0container=lxc\0TERM=linux\0"),
                ("container", "run/systemd/container", "systemd-nspawn\n"),
                ("podman", "run/host/container-manager", "podman\n"),
                ("docker", "proc/1/cgroup", "12:memory:/docker/3f2a\n"),
                ("kubernetes", "proc/1/cgroup", "0::/kubepods.slice/kubepods-pod1.slice\n")):
            with self.subTest(text):
                self.write(path, text)
                self.assertEqual(self.examine()["place"]["fact"], f"a container ({kind})")
                (self.root / path).unlink()
        self.write("proc/1/environ", "XCONTAINER=container=no\0MYcontainer=docker\0")
        self.write("proc/1/cgroup", "0::/init.scope\n")
        self.assertEqual(self.examine()["place"]["fact"], "a host, or a virtual machine")

    def test_each_container_has_a_remedy_of_its_own(self):
        (self.root / "dev/fuse").unlink()
        for name, text in (("KUBERNETES_SERVICE_HOST", "privileged: true"),
                           ("APPTAINER_CONTAINER", "--bind MNT")):
            ended = run("doctor", "--json", "--root", self.root, env={**os.environ, name: "1"})
            device = json.loads(ended.stdout)["findings"][0]
            self.assertIn(text, device["remedy"])

    def test_root_without_the_capability(self):
        if os.geteuid() != 0:
            self.assertNotIn("CAP_SYS_ADMIN", self.examine()["privileges"]["fact"])
            return
        for mask, level in (("000001ffffffffff", "OK"), ("000001ffffdfffff", "BROKEN")):
            self.write("proc/self/status", f"Name:\tx\nCapEff:\t{mask}\nNoNewPrivs:\t0\n")
            self.assertEqual(self.examine()["privileges"]["level"], level)

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
        self.assertEqual(self.examine()["mounts"]["fact"], "1 of ckfs, and all of them answer")

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
        self.assertEqual(self.examine()["fusermount3"]["remedy"], "install the package fuse3")
        self.write("usr/bin/dnf", "")
        self.assertEqual(self.examine()["fusermount3"]["remedy"], "sudo dnf install fuse3")

    def test_a_source_that_is_none(self):
        ended = run("doctor", "--root", self.root, self.directory / "none")
        self.assertEqual(ended.returncode, 1)
        self.assertIn(b"BROKEN source", ended.stdout)


class Trial(cli_support.TestCase):
    """The mount in earnest: on this machine as it is, and with something taken away from it."""

    def setUp(self):
        super().setUp()
        self.temporary = self.directory / "tmp"
        self.temporary.mkdir()
        self.environment = {**os.environ, "TMPDIR": str(self.temporary)}

    def findings(self, *before):
        ended = subprocess.run([*before, CKFS, "doctor", "--json"], stdout=subprocess.PIPE,
                               timeout=cli_support.LIMIT, env=self.environment)
        self.assertEqual(list(self.temporary.iterdir()), [])
        mounts = pathlib.Path("/proc/self/mountinfo").read_text()
        self.assertNotIn(str(self.temporary), mounts)
        found = {one["name"]: one for one in json.loads(ended.stdout)["findings"]}
        return found, ended.returncode

    def test_works_where_mounts_work(self):
        found, _ = self.findings()
        self.assertEqual(found["mount"]["level"], "OK")
        self.assertRegex(found["mount"]["fact"], "was mounted, read and unmounted in [0-9]+ ms")

    def fails_in_earnest(self, fact, cause, *before):
        found, code = self.findings(*before)
        self.assertEqual((found["mount"]["level"], code), ("BROKEN", 1))
        self.assertRegex(found["mount"]["fact"], fact)
        self.assertEqual(found["mount"]["remedy"], f'mend "{cause}"')
        self.assertEqual(found[cause]["level"], "BROKEN")

    def test_fails_without_the_capability(self):
        if os.geteuid() != 0:
            self.assertEqual(self.findings()[0]["mount"]["level"], "OK")  # by fusermount3
            return
        self.fails_in_earnest("CAP_SYS_ADMIN is missing", "privileges", "setpriv",
                              "--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin")

    def test_fails_without_the_device(self):
        if os.geteuid() != 0:
            self.assertEqual(self.findings()[0]["device"]["level"], "OK")
            return
        private = ["unshare", "--mount", "--propagation", "private", "sh", "-c"]
        empty = self.directory / "empty"
        empty.write_text("")
        self.fails_in_earnest("not the FUSE device", "device", *private,
                              f"mount --bind {empty} /dev/fuse && exec \"$@\"", "sh")

    def test_a_device_of_root_alone_keeps_users_from_mounting(self):
        if os.geteuid() != 0:
            self.assertEqual(self.findings()[0]["mount"]["level"], "OK")
            return
        program = shutil.copy(CKFS, self.directory / "ckfs")
        device = self.directory / "dev"
        device.mkdir()
        for path in (self.directory, self.temporary):
            path.chmod(0o755)
        shutil.chown(self.temporary, 65534, 65534)
        for mode, level, remedy in (("666", "OK", ""), ("600", "BROKEN", 'mend "device"')):
            script = (f"mount -t tmpfs none {device} && mknod -m {mode} {device}/fuse c 10 229 && "
                      f"mount --bind {device}/fuse /dev/fuse && "
                      'exec setpriv --reuid 65534 --regid 65534 --clear-groups "$@"')
            ended = subprocess.run(["unshare", "--mount", "--propagation", "private", "sh", "-c",
                                    script, "sh", program, "doctor", "--json"],
                                   stdout=subprocess.PIPE, timeout=cli_support.LIMIT,
                                   env=self.environment)
            found = {one["name"]: one for one in json.loads(ended.stdout)["findings"]}
            for name in ("device", "mount"):
                self.assertEqual(found[name]["level"], level, found)
            self.assertEqual(found["mount"]["remedy"], remedy)
        self.assertEqual(found["device"]["remedy"], "sudo chmod 0666 /dev/fuse")

    def test_a_temporary_directory_that_is_none(self):
        self.environment["TMPDIR"] = str(self.directory / "absent")
        ended = subprocess.run([CKFS, "doctor"], stdout=subprocess.PIPE, env=self.environment,
                               timeout=cli_support.LIMIT)
        self.assertRegex(ended.stdout.decode(), "BROKEN mount: .*absent.*No such file")
        self.assertEqual(ended.returncode, 1)


class Mounts(cli_support.TestCase):
    """What doctor and stats say of mounts that had errors."""

    def test_a_source_that_has_changed_is_told(self):
        source = self.directory / "model"
        shutil.copytree(self.source, source)
        target = self.directory / "mnt"
        target.mkdir()
        log = self.directory / "log"
        self.done("mount", source, target, "--log-file", log)
        try:
            text = self.done("stats", target).decode()
            self.assertRegex(text, r"(?m)^errors +0$")
            self.assertNotIn("last error", text)
            shard = next(source.glob("*.safetensors"))
            os.truncate(shard, shard.stat().st_size - 1)
            with self.assertRaises(OSError):
                (target / "source" / shard.name).read_bytes()
            ended = run("doctor")
            self.assertEqual(ended.returncode, 1)
            lines = [line for line in ended.stdout.decode().splitlines() if str(target) in line]
            self.assertRegex(lines[0], rf"^BROKEN mounts: {target}: [1-9]\d* errors; the last: "
                             rf"20\d\d-.* UTC: {shard.name}: changed since it was opened.*; do: "
                             rf"ckfs umount {target} && ckfs mount {source} {target}$")
            text = self.done("stats", target).decode()
            self.assertRegex(text, r"(?m)^errors +[1-9]\d*  stale [1-9]\d*$")
            self.assertRegex(text, rf"(?m)^last error +20\d\d-.* UTC: {shard.name}: changed")
            for name, value in (("mountpoint", target), ("source", source), ("log", log)):
                self.assertRegex(text, rf"(?m)^{name} +{value}$")
            self.assertRegex(text, r"(?m)^pid +[1-9]\d*$")
            self.assertRegex(text, r"(?m)^uptime +00:00:\d\d$")
            told = [line.split(" ", 3)[3] for line in log.read_text().splitlines()]
            for line in told:
                self.assertTrue(line.startswith(f"{target}: "), line)
            self.assertTrue([line for line in told if "changed since" in line], told)
        finally:
            self.done("umount", target)


if __name__ == "__main__":
    unittest.main()
