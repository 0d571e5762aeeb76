"""No /dev/fuse that can be used, or no right to mount: one line that says what to do, exit 1,
nothing mounted. Each case has a mount namespace of its own."""

import os
import unittest

import fault_support
from fault_support import as_nobody

CONTAINER = r"in a container: .*--device /dev/fuse"


class NoDevice(fault_support.TestCase):
    def namespace(self, script):
        """A prefix that runs a command where `script` was run first."""
        user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
        return ["unshare", *user, "--mount", "--propagation", "private",
                "sh", "-e", "-c", f'{script}; exec "$@"', "sh"]  # fmt: skip

    def refused(self, script, *facts, user=False):
        prefix = self.namespace(script)
        program = None
        if user:
            prefix += as_nobody()
            program = self.program_for_all()
            self.target().chmod(0o777)
            if os.geteuid() == 0:
                os.chown(self.target(), fault_support.mounted_fs.NOBODY, -1)
        self.shared.chmod(0o755)
        self.assert_mount_refused(self.checkpoint.path, *facts, prefix=prefix, program=program)

    def cover(self, what):
        return f'mount --bind "{what}" /dev/fuse'

    def test_absent(self):
        self.refused("mount -t tmpfs none /dev", r"/dev/fuse: .*modprobe fuse", CONTAINER)

    def test_a_directory_in_its_place(self):
        self.refused(
            "mount -t tmpfs none /dev; mkdir /dev/fuse", r"/dev/fuse: Is a directory", CONTAINER
        )

    def test_an_empty_file_in_its_place(self):
        empty = self.directory / "empty"
        empty.touch()
        self.refused(self.cover(empty), r"/dev/fuse: not the FUSE device: .*mknod", CONTAINER)

    def test_another_device_in_its_place(self):
        self.refused(self.cover("/dev/null"), r"/dev/fuse: not the FUSE device", CONTAINER)

    def test_a_device_that_may_not_be_opened(self):
        # As a container has it whose runtime did not hand the device over.
        self.refused(
            "mount -t tmpfs -o nodev none /dev/shm; : >/dev/shm/fuse; "
            "mount --bind /dev/shm/fuse /dev/fuse; mount -o remount,bind,ro /dev/fuse",
            r"/dev/fuse: ", CONTAINER,
        )  # fmt: skip

    def test_closed_to_users_who_have_no_fusermount3(self):
        self.refused(
            "mount -t tmpfs none /dev; : >/dev/fuse; chmod 600 /dev/fuse; : >/dev/null; "
            "for place in /usr/bin /bin /usr/local/bin; do "
            "if [ -e $place/fusermount3 ]; then mount --bind /dev/null $place/fusermount3; fi; done",
            # Without root there is but one user in the namespace, who may open what is his.
            r"fusermount3: not found.*apt-get install fuse3" if os.geteuid() == 0
            else r"/dev/fuse: not the FUSE device",
            user=True,
        )

    def test_users_without_a_device(self):
        self.refused(
            "mount -t tmpfs none /dev; : >/dev/null",
            r"/dev/fuse: .*modprobe fuse",
            user=True,
        )

    def test_no_right_to_mount(self):
        self.shared.chmod(0o755)
        self.assert_mount_refused(
            self.checkpoint.path,
            r"mnt: .*(CAP_SYS_ADMIN is missing|fusermount3: .*set-user-ID)",
            prefix=["setpriv", "--no-new-privs", "--bounding-set=-sys_admin", "--inh-caps=-all"]
            if os.geteuid() == 0 else ["setpriv", "--no-new-privs"],
        )  # fmt: skip

    def test_a_user_who_may_not_become_root_for_it(self):
        self.shared.chmod(0o755)
        self.target().chmod(0o777)
        if os.geteuid() == 0:
            os.chown(self.target(), fault_support.mounted_fs.NOBODY, -1)
        self.assert_mount_refused(
            self.checkpoint.path, r"(fusermount3|/dev/fuse): .*\(.*\)",
            prefix=as_nobody("setpriv", "--no-new-privs", "--"), program=self.program_for_all(),
        )  # fmt: skip

    def test_everything_else_works_without_it(self):
        prefix = self.namespace("mount -t tmpfs none /dev; : >/dev/null")
        out = self.directory / "out"
        for verb in (["inspect", self.checkpoint.path],
                     ["ls", self.checkpoint.path, "bf16-safetensors"],
                     ["export", self.checkpoint.path, "bf16-safetensors", out]):  # fmt: skip
            fault_support.run(*prefix, fault_support.CKFS, *verb)
        self.assertIn("config.json", os.listdir(out))


if __name__ == "__main__":
    unittest.main(verbosity=2)
