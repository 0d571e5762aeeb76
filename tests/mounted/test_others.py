"""SEMANTICS, SECURITY: what other users of the machine get, and what they cannot do."""

import os
import pathlib
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import mounted_fs
from mounted_fs import ckfs

SHARD = mounted_fs.Checkpoint.SHARDS[0]


def allow_other_is_for_users():
    try:
        return "\nuser_allow_other" in pathlib.Path("/etc/fuse.conf").read_text()
    except OSError:
        return False


class Others(mounted_fs.TestCase):
    def setUp(self):
        super().setUp()
        os.chmod(self.directory, 0o755)
        self.model = mounted_fs.Checkpoint(self.directory / "model", megabytes=1)

    def opened_by_others(self, mount, *names):
        """Whether another user can read each file."""
        return [subprocess.run(["cat", mount / name], stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL, check=False, user=1234, group=1234,
                               extra_groups=[]).returncode == 0 for name in names]

    def mode(self, path):
        return os.stat(path).st_mode & 0o444

    def allowed(self):
        return os.geteuid() == 0 or allow_other_is_for_users()

    def refused(self, options, text, model=None):
        target = self.directory / "mnt"
        target.mkdir(exist_ok=True)
        done = ckfs("mount", "-o", options, model or self.model.path, target, check=False)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertRegex(done.stderr, text)
        self.assertFalse(mounted_fs.is_mounted(target))

    def test_what_they_cannot_read_they_do_not_read_here(self):
        os.chmod(self.model.shard(1), 0o600)
        os.chmod(self.model.path / "tokenizer.json", 0o640)
        if not self.allowed():
            return self.refused("allow_other", "user_allow_other")
        mount = self.enterContext(self.make("allow_other"))
        paths = [f"source/{SHARD}", f"source/{self.model.SHARDS[1]}", "source/tokenizer.json",
                 f"fp32-safetensors/{SHARD}", "fp32-safetensors/config.json",
                 "fp32-safetensors/tokenizer.json", "fp32-safetensors/assets/notes/read.txt"]
        own = os.stat(self.model.path / "tokenizer.json").st_gid == os.getegid()
        modes = [0o444, 0o400, 0o440 if own else 0o400, 0o400, 0o400, 0o440 if own else 0o400, 0o444]
        self.assertEqual([self.mode(mount / path) for path in paths], modes)
        if os.geteuid() == 0:
            self.assertEqual(self.opened_by_others(mount, *paths), [True] + 5 * [False] + [True])
        for path in paths:
            (mount / path).read_bytes()  # who mounts reads all of it

    def test_without_others_modes_are_as_ever(self):
        os.chmod(self.model.shard(1), 0o600)
        mount = self.enterContext(self.make())
        self.assertEqual(self.mode(mount / f"source/{self.model.SHARDS[1]}"), 0o444)

    def test_copies_have_the_narrower_mode(self):
        os.chmod(self.model.shard(0), 0o640)
        os.chmod(self.model.path / "tokenizer.json", 0o600)
        mask = os.umask(0o022)
        try:
            ckfs("export", self.model.path, "fp32-safetensors", self.directory / "a")
            os.umask(0o077)
            ckfs("export", self.model.path, "source", self.directory / "b")
        finally:
            os.umask(mask)
        modes = {path.name: os.stat(path).st_mode & 0o777 for path in (self.directory / "a").iterdir()
                 if path.is_file()}
        self.assertEqual(modes[SHARD], 0o640)
        self.assertEqual(modes["tokenizer.json"], 0o600)
        self.assertEqual(os.stat(self.directory / "a/assets/notes/read.txt").st_mode & 0o777, 0o644)
        for path in (self.directory / "b").rglob("*"):
            self.assertEqual(os.stat(path).st_mode & 0o077, 0, path)

    def export_modes(self, source, view, *options):
        """{path: mode} of a copy's files."""
        out = self.directory / "out"
        shutil.rmtree(out, ignore_errors=True)
        mask = os.umask(0o022)
        try:
            ckfs("export", *options, source, view, out)
        finally:
            os.umask(mask)
        return {str(path.relative_to(out)): os.stat(path).st_mode & 0o777
                for path in out.rglob("*") if path.is_file() and ".ckfs-export" not in str(path)}

    def test_folders_with_weights_have_secrets_too(self):
        pipe = self.directory / "pipe"
        (pipe / "unet").mkdir(parents=True)
        (pipe / "model_index.json").write_text('{"_class_name": "P", "unet": ["diffusers", "N"]}')
        (pipe / "unet/config.json").write_text('{"_class_name": "N"}')
        weights = mounted_fs.safetensors_header({"w": ("F32", [64], 256)}) + bytes(256)
        (pipe / "unet/diffusion_pytorch_model.safetensors").write_bytes(weights)
        copies = ["unet/config.json", "unet/diffusion_pytorch_model.safetensors"]
        open_to_all = self.export_modes(pipe, "bf16-safetensors")
        self.assertEqual([open_to_all[path] for path in copies], [0o644, 0o644])
        for secret in copies:
            os.chmod(pipe / secret, 0o600)
            modes = self.export_modes(pipe, "bf16-safetensors")
            self.assertEqual([modes[path] for path in copies], [0o600, 0o600], secret)
            if self.allowed():
                with self.make("allow_other", source=pipe) as mount:
                    for path in copies:
                        self.assertEqual(self.mode(mount / "bf16-safetensors" / path), 0o400, path)
            os.chmod(pipe / secret, 0o644)

    def test_a_configuration_of_any_name_may_be_a_secret(self):
        source = self.directory / "dcp"
        mounted_fs.run(sys.executable, mounted_fs.ROOT / "tests/tools/make_dcp.py", source,
                       "--pieces", 2, "--bytes", 4096)
        config = self.directory / "cfg"
        config.mkdir()
        for given in (config, config / "config.json", config / "mine.json"):
            file = given / "config.json" if given == config else given
            shutil.copy(self.model.path / "config.json", file)
            os.chmod(file, 0o600)
            modes = self.export_modes(source, "safetensors", "--config", given)
            self.assertEqual(modes["config.json"], 0o600, given)

    def test_links_that_lead_out_are_shown_to_them_only_where_that_is_said(self):
        secret = self.directory / "secret.json"
        secret.write_text("{}")
        (self.model.path / "generation_config.json").symlink_to(secret)
        if not self.allowed():
            return self.refused("allow_other", "user_allow_other|links lead out")
        self.refused("allow_other", r"links lead out of it: 1, .*secret.json \(-o outside_links")
        with self.make("allow_other,outside_links") as mount:
            self.assertEqual((mount / "source/generation_config.json").read_text(), "{}")
        with self.make() as mount:
            self.assertEqual((mount / "source/generation_config.json").read_text(), "{}")

    def test_links_within_a_hub_cache_lead_nowhere_else(self):
        top = self.directory / "models--o--n"
        (top / "snapshots/abc").mkdir(parents=True)
        (top / "refs").mkdir()
        (top / "refs/main").write_text("abc")
        shutil.move(self.model.path, top / "blobs")
        for path in (top / "blobs").iterdir():
            if path.is_file():
                (top / "snapshots/abc" / path.name).symlink_to(f"../../blobs/{path.name}")
        if not self.allowed():
            return self.refused("allow_other", "user_allow_other", model=top)
        with self.make("allow_other", source=top) as mount:
            (mount / f"fp32-safetensors/{SHARD}").read_bytes()

    def test_a_mount_over_what_links_lead_to_is_refused(self):
        blobs = self.directory / "blobs"
        blobs.mkdir()
        shutil.move(self.model.shard(0), blobs / "a")
        self.model.shard(0).symlink_to(blobs / "a")
        done = ckfs("mount", self.model.path, blobs, check=False)
        self.assertRegex(done.stderr, r"blobs: the mount would hide .*blobs/a, to which the source's "
                                      r"links lead")
        self.assertEqual(done.returncode, 1)
        self.assertFalse(mounted_fs.is_mounted(blobs))

    def make(self, options="", source=None):
        return mounted_fs.Mount(source or self.model.path, self.directory / "mnt", options)

    def test_views_that_they_hold_are_bounded(self):
        wide = self.directory / "wide"
        wide.mkdir()
        tensors = {f"model.layers.{i}.{'x' * 60}.weight": ("BF16", [1], 2) for i in range(60000)}
        (wide / "model.safetensors").write_bytes(
            mounted_fs.safetensors_header(tensors) + bytes(2 * len(tensors)))
        if not self.allowed():
            return self.refused("allow_other", "user_allow_other", model=wide)
        held, errors = [], set()
        with self.make("allow_other,memory=64MiB", source=wide) as mount:
            for number in range(40):
                try:
                    held.append(os.open(mount / f"bf16-safetensors@max_shard={10_000_000 + number}",
                                        os.O_RDONLY | os.O_DIRECTORY))
                except OSError as error:
                    errors.add(error.errno)
            status = pathlib.Path(f"/proc/{mount.pid}/status").read_text()
            for descriptor in held:
                os.close(descriptor)
            (memory,) = [int(line.split()[1]) for line in status.splitlines() if "VmRSS" in line]
            self.assertEqual(errors, {12})
            self.assertGreater(len(held), 1)
            self.assertLess(memory << 10, 200 << 20)

    def test_names_that_are_refused_fill_no_log(self):
        log = self.directory / "log"
        with self.make(f"log_file={log}") as mount:
            for number in range(3000):
                name = f"bf16-safetensors@max_shard=x{number}"
                self.assertEqual(mounted_fs.error_of(os.stat, mount / name), "ENOENT")
        lines = [line for line in log.read_text().splitlines() if "cannot be shown" in line]
        self.assertLess(len(lines), 40)
        self.assertGreater(len(lines), 0)


if __name__ == "__main__":
    mounted_fs.main()
