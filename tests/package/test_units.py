#!/usr/bin/env python3
"""The units of mount-helpers/systemd, as they are installed, are units to systemd."""
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("CKFS_BUILD", ROOT / "build/release"))
SOURCE = ROOT / "tests/data/hf/llama-bf16/source"
UNITS = ("ckfs@.service", "mnt-deepseek.mount", "mnt-deepseek.automount")


class Units(unittest.TestCase):
    def setUp(self):
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="ckfs-units-"))
        self.addCleanup(shutil.rmtree, self.root)
        subprocess.run(["cmake", "--install", BUILD, "--prefix", "/usr", "--component", "runtime"],
                       check=True, stdout=subprocess.DEVNULL,
                       env={**os.environ, "DESTDIR": str(self.root)})
        # Those that systemd itself has: the ones that ours name must be there.
        shutil.copytree("/usr/lib/systemd/system", self.root / "usr/lib/systemd/system",
                        dirs_exist_ok=True, symlinks=True)
        self.directory = self.root / "etc/systemd/system"
        self.directory.mkdir(parents=True)
        examples = self.root / "usr/share/doc/ckfs/examples"
        for name in UNITS[1:]:
            shutil.copy(examples / name, self.directory)

    def verify(self, name):
        done = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no",
             f"--root={self.root}", name.replace("@.", "@x.")],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return done.returncode, done.stdout

    def test_are_units(self):
        for name in UNITS:
            with self.subTest(name=name):
                self.assertEqual((0, ""), self.verify(name))

    def test_the_service_is_exposed_little(self):
        """Where systemd can say so: `systemd-analyze security --offline` is of version 250."""
        unit = self.root / "ckfs@x.service"
        shutil.copy(self.root / "usr/lib/systemd/system/ckfs@.service", unit)
        done = subprocess.run(["systemd-analyze", "security", "--offline=yes", "--no-pager", unit],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        exposure = re.search(r"Overall exposure level for \S+: (\d+\.\d)", done.stdout)
        self.assertIsNotNone(exposure, done.stdout)
        self.assertLessEqual(float(exposure[1]), 4.0, done.stdout)

    def test_the_service_has_no_mount_namespace_of_its_own(self):
        """Such a namespace would hide its mount from the host: systemd.exec(5) names the settings."""
        text = (self.root / "usr/lib/systemd/system/ckfs@.service").read_text()
        settings = set(re.findall(r"^(\w+)=", text, re.M))
        self.assertFalse(settings & {
            "PrivateMounts", "PrivateTmp", "PrivateDevices", "PrivateUsers", "PrivateNetwork",
            "PrivateIPC", "ProtectSystem", "ProtectHome", "ProtectProc", "ProcSubset",
            "ProtectControlGroups", "ProtectKernelModules", "ProtectKernelTunables",
            "ProtectKernelLogs", "ProtectHostname", "ReadWritePaths", "ReadOnlyPaths",
            "InaccessiblePaths", "BindPaths", "BindReadOnlyPaths", "TemporaryFileSystem",
            "RootDirectory", "RootImage", "DynamicUser", "MountFlags", "MountAPIVFS"})

    def test_the_service_may_make_the_calls_of_the_sandbox(self):
        """Those that the daemon confines itself with are in no group of systemd 252's."""
        text = (self.root / "usr/lib/systemd/system/ckfs@.service").read_text()
        allowed = " ".join(re.findall(r"^SystemCallFilter=([^~].*)$", text, re.M)).split()
        for name in ("seccomp", "landlock_create_ruleset", "landlock_add_rule",
                     "landlock_restrict_self", "@mount"):
            self.assertIn(name, allowed)

    def test_the_service_mounts_with_the_capabilities_that_it_keeps(self):
        text = (self.root / "usr/lib/systemd/system/ckfs@.service").read_text()
        kept = re.search(r"^CapabilityBoundingSet=(.*)$", text, re.M)[1].split()
        self.assertIn("NoNewPrivileges=yes", text)
        self.assertIn("UMask=0077", text)
        if os.geteuid() != 0:
            self.assertIn("CAP_SYS_ADMIN", kept)
            return
        target = self.root / "mnt"
        target.mkdir()
        self.root.chmod(0o755)
        bounds = ",".join(["-all", *("+" + name.removeprefix("CAP_").lower() for name in kept)])
        daemon = subprocess.Popen(
            ["setpriv", "--no-new-privs", f"--bounding-set={bounds}", "--inh-caps=-all",
             BUILD / "ckfs", "mount", "-f", "-o", "umask=022", "-o", "setuid=nobody,allow_other", SOURCE,
             target],
            umask=0o077, stderr=subprocess.PIPE, text=True)
        try:
            self.assertRegex(daemon.stderr.readline(), ": mounted ")
            self.assertEqual(target.stat().st_mode & 0o777, 0o755)
        finally:
            subprocess.run([BUILD / "ckfs", "umount", target])
            daemon.communicate(timeout=60)
        self.assertEqual(daemon.returncode, 0)

    def test_a_mistake_would_be_seen(self):
        service = self.root / "usr/lib/systemd/system/ckfs@.service"
        service.write_text(service.read_text().replace("ExecStart=/usr/bin/ckfs", "ExecStart=ckfz"))
        self.assertNotEqual((0, ""), self.verify("ckfs@.service"))


if __name__ == "__main__":
    unittest.main()
