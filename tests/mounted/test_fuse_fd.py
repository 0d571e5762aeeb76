"""`ckfs mount --fuse-fd N`: another program mounts, in a mount namespace of its own, and ckfs serves
without a right to mount."""

import json
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import mounted_fs
from mounted_fs import CKFS, LIMIT, ckfs

# Run in a user namespace of its own: mounts as a privileged launcher does, starts ckfs without any
# capability, reads the view, and prints what it saw.
LAUNCHER = r"""
import ctypes, hashlib, json, os, pathlib, signal, subprocess, sys

program, source, target, ending = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)
device = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()},default_permissions"
# MS_RDONLY | MS_NOSUID | MS_NODEV
if libc.mount(b"ckfs", target.encode(), b"fuse", 7, options.encode()) != 0:
    sys.exit(f"mount: {os.strerror(ctypes.get_errno())}")
served = subprocess.Popen(
    ["setpriv", "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all",
     program, "mount", "--fuse-fd", str(device), source, "named"],
    pass_fds=[device], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
os.close(device)
found = {}
for path in sorted(pathlib.Path(target).glob("bf16-safetensors/*")):
    if path.is_file():
        found[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
status = json.loads(pathlib.Path(target, ".ckfs/status.json").read_text())
privileges = [line.split()[1] for line in open(f"/proc/{served.pid}/status")
              if line.startswith(("CapEff", "CapPrm"))]
if ending == "unmount":
    if libc.umount2(target.encode(), 0) != 0:
        sys.exit(f"umount2: {os.strerror(ctypes.get_errno())}")
else:
    served.send_signal(signal.SIGTERM)
out, errors = served.communicate(timeout=60)
gone = False
try:
    os.listdir(target + "/bf16-safetensors")
except OSError:
    gone = True
print(json.dumps({"files": found, "mountpoint": status["mountpoint"], "privileges": privileges,
                  "code": served.returncode, "errors": errors.decode(), "gone": gone}))
"""


class FuseFd(mounted_fs.TestCase):
    def launch(self, ending):
        target = self.directory / "mnt"
        target.mkdir(exist_ok=True)
        done = subprocess.run(
            ["unshare", "--user", "--map-root-user", "--mount", "--propagation", "private",
             sys.executable, "-c", LAUNCHER, CKFS, self.checkpoint.path, target, ending],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=LIMIT, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return json.loads(done.stdout)

    def test_serves_what_another_program_has_mounted_and_needs_no_privilege(self):
        seen = self.launch("unmount")
        listed = ckfs("digest", self.checkpoint.path, "bf16-safetensors").stdout
        digests = {name: digest for digest, name in (line.split("  ") for line in listed.splitlines())}
        self.assertEqual(seen["files"], {name: digests[name] for name in seen["files"]})
        self.assertIn("config.json", seen["files"])
        self.assertEqual(set(seen["privileges"]), {"0" * 16})
        self.assertTrue(seen["mountpoint"].endswith("/named"))
        self.assertEqual((seen["code"], seen["gone"]), (0, True), seen["errors"])

    def test_a_signal_ends_the_service_and_leaves_the_mount(self):
        seen = self.launch("signal")
        self.assertEqual((seen["code"], seen["gone"]), (0, True), seen["errors"])

    def test_what_is_no_mounted_device_is_refused(self):
        with open(os.devnull, "rb") as null, open("/dev/fuse", "r+b", buffering=0) as device:
            for number, text in [(null.fileno(), "is not of /dev/fuse"),
                                 (device.fileno(), "is not mounted"), (987, "is not open")]:
                done = subprocess.run(
                    [CKFS, "mount", "--fuse-fd", str(number), self.checkpoint.path],
                    pass_fds=[null.fileno(), device.fileno()], stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE, text=True, timeout=LIMIT, check=False)
                self.assertEqual(done.returncode, 1)
                self.assertRegex(done.stderr, rf"fuse-fd: {number} {text}")
        for number in ("0", "2", "x", "-1"):
            done = ckfs("mount", f"--fuse-fd={number}", self.checkpoint.path, check=False)
            self.assertEqual(done.returncode, 2, done.stderr)


if __name__ == "__main__":
    mounted_fs.main()
