#!/usr/bin/python3
"""Mounts of a source on another machine: the files of the same source here, in a daemon that has no
network, whatever happens to the server and to the fetcher."""
import errno
import os
import pathlib
import re
import select
import shutil
import signal
import subprocess
import tempfile
import unittest

from remote import ROOT, Servers

CKFS = os.environ.get("CKFS_BIN", str(ROOT / "build/dev/ckfs"))
CASE = ROOT / "tests/data/hf/deepseek-v3-fp8/source"


def tree(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes()
            for path in sorted(pathlib.Path(folder).rglob("*")) if path.is_file()}


def stats(folder):
    return {path.relative_to(folder).as_posix(): (path.stat().st_ino, path.stat().st_mtime_ns,
                                                  path.stat().st_size)
            for path in sorted(pathlib.Path(folder).rglob("*"))}


def children(pid):
    """The processes that `pid` has started, and theirs."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            child = int(path.parent.name)
            found += [child, *children(child)]
    return found


def name_of(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


class Mounts(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.servers = Servers("--secret", "hush")
        for folder in ("hub/org", "s3/bucket", "gcs/bucket"):
            shutil.copytree(CASE, cls.servers.root / folder / "deepseek")
        cls.environment = cls.servers.environment(
            AWS_ACCESS_KEY_ID="test", AWS_SECRET_ACCESS_KEY="hush")

    @classmethod
    def tearDownClass(cls):
        cls.servers.__exit__()

    def setUp(self):
        self.servers.faults()
        self.servers.control("/reset")
        work = tempfile.TemporaryDirectory()
        self.addCleanup(work.cleanup)
        self.work = pathlib.Path(work.name)

    def ckfs(self, *words, status=0):
        done = subprocess.run([CKFS, *map(str, words)], env=self.environment, capture_output=True,
                              text=True, timeout=300, check=False)
        self.assertEqual(done.returncode, status, (words, done.stderr))
        return done.stdout if status == 0 else done.stderr

    def mount(self, source, *words, name="mnt"):
        target = self.work / name
        said = self.ckfs("mount", *words, source, target)
        self.addCleanup(subprocess.run, [CKFS, "umount", "--force", target], check=False,
                        capture_output=True)
        return target, said

    def daemon(self, target):
        return int(re.search(r'"pid": (\d+)', (target / ".ckfs/status.json").read_text())[1])

    def fetchers(self, target):
        return [pid for pid in children(self.daemon(target)) if name_of(pid) == "ckfs-fetcher"]

    def test_shows_what_a_mount_of_the_files_shows_and_says_its_commit(self):
        here, said = self.mount(CASE, name="here")
        self.assertEqual(said, "")
        expected = tree(here / "bf16-safetensors")
        for service, location in (("hub", "hf://org/deepseek"), ("s3", "s3://bucket/deepseek"),
                                  ("gcs", "gs://bucket/deepseek")):
            far, said = self.mount(location, name=service)
            self.assertEqual(tree(far / "bf16-safetensors"), expected)
            self.assertEqual(tree(far / "source"), tree(CASE))
            if service == "hub":
                self.assertRegex(said, r"hf://org/deepseek@[0-9a-f]{40}\n$")
                version = said.rsplit(": ", 1)[1].strip()
                self.assertIn(f'"source": "{version}"', (far / ".ckfs/status.json").read_text())

    def test_names_times_and_inodes_are_those_of_the_version(self):
        first, _ = self.mount("hf://org/deepseek", name="first")
        seen = stats(first / "bf16-safetensors")
        again, _ = self.mount("hf://org/deepseek@main", name="again")
        self.assertEqual(stats(again / "bf16-safetensors"), seen)

    def test_listing_asks_no_server(self):
        target, _ = self.mount("hf://org/deepseek")
        self.servers.control("/reset")
        stats(target)
        counts = self.servers.counts()
        self.assertEqual(sum(each["requests"] for each in counts.values()
                             if isinstance(each, dict)), 0)

    def test_the_fetcher_ends_with_the_mount(self):
        target, _ = self.mount("hf://org/deepseek")
        daemon, fetchers = self.daemon(target), self.fetchers(target)
        self.assertEqual(len(fetchers), 2)
        ends = [os.pidfd_open(pid) for pid in (daemon, *fetchers)]
        self.ckfs("umount", target)
        for end in ends:
            with open(end, "rb", buffering=0) as process:
                self.assertTrue(select.select([process], [], [], 60)[0])

    def test_the_daemon_has_no_credentials(self):
        target, _ = self.mount("s3://bucket/deepseek")
        environment = pathlib.Path(f"/proc/{self.daemon(target)}/environ").read_bytes()
        self.assertIn(b"AWS_ACCESS_KEY_ID=test", environment)
        self.assertNotIn(b"hush", environment)
        self.assertEqual((target / "source/config.json").read_bytes(),
                         (CASE / "config.json").read_bytes())

    def test_keys_come_from_a_program_of_a_profile(self):
        told = self.work / "told"
        tool = self.work / "tool"
        tool.write_text(f"""#!/bin/sh
echo "$1" >> {told}
echo '{{"Version": 1, "AccessKeyId": "test", "SecretAccessKey": "hush"}}'
""")
        tool.chmod(0o755)
        config = self.work / "config"
        config.write_text(f"[profile work]\ncredential_process = {tool} 'for me'\n")
        self.environment = {**self.servers.environment(), "AWS_PROFILE": "work",
                            "AWS_CONFIG_FILE": str(config)}
        target, _ = self.mount("s3://bucket/deepseek")
        self.assertEqual((target / "source/config.json").read_bytes(),
                         (CASE / "config.json").read_bytes())
        self.assertEqual(told.read_text(), "for me\n")
        config.write_text("[profile work]\ncredential_process = /nowhere/tool\n")
        self.assertIn("/nowhere/tool", self.ckfs("inspect", "s3://bucket/deepseek", status=1))

    def test_a_fetcher_that_is_killed_is_started_again(self):
        target, _ = self.mount("gs://bucket/deepseek", "-o", "direct")
        shard = sorted((target / "bf16-safetensors").glob("*.safetensors"))[0]
        expected = shard.read_bytes()
        supervisor, worker = self.fetchers(target)
        os.kill(worker, signal.SIGKILL)
        self.assertEqual(shard.read_bytes(), expected)

    def test_what_a_fetcher_logs_is_in_the_log_of_its_mount(self):
        log = self.work / "log"
        target, _ = self.mount("gs://bucket/deepseek", "--log-file", log, "-o", "direct")
        os.kill(self.fetchers(target)[1], signal.SIGKILL)
        shard = sorted((target / "bf16-safetensors").glob("*.safetensors"))[0]
        self.assertTrue(shard.read_bytes())
        self.assertRegex(log.read_text(), "ckfs-fetcher: killed by signal 9; it is started again")

    def test_what_is_changed_is_stale_for_good(self):
        target, _ = self.mount("s3://bucket/deepseek", "-o", "direct")
        shard = sorted((target / "source").glob("*.safetensors"))[0]
        self.assertEqual(shard.read_bytes(), (CASE / shard.name).read_bytes())
        self.servers.control("/touch", {"service": "s3", "path": f"bucket/deepseek/{shard.name}"})
        for _ in range(2):
            with self.assertRaises(OSError) as failed:
                shard.read_bytes()
            self.assertEqual(failed.exception.errno, errno.ESTALE)
            self.servers.faults()  # the old object is back, and what was read between is not known
        # Another file is served on.
        other = target / "source/config.json"
        self.assertEqual(other.read_bytes(), (CASE / "config.json").read_bytes())

    def test_a_server_that_refuses_is_an_error_and_no_byte(self):
        target, _ = self.mount("gs://bucket/deepseek", "-o", "direct,timeout=2")
        self.servers.faults([{"service": "gcs", "kind": "silent"}])
        shard = sorted((target / "source").glob("*.safetensors"))[0]
        with self.assertRaises(OSError) as failed:
            shard.read_bytes()
        self.assertEqual(failed.exception.errno, errno.EIO)
        self.servers.faults()
        self.assertEqual(shard.read_bytes(), (CASE / shard.name).read_bytes())

    def test_readers_that_wait_for_a_server_can_be_killed_and_the_mount_ends(self):
        target, _ = self.mount("s3://bucket/deepseek", "-o", "direct")
        daemon = os.pidfd_open(self.daemon(target))
        self.addCleanup(os.close, daemon)
        self.servers.faults([{"service": "s3", "kind": "silent"}])
        shard = sorted((target / "source").glob("*.safetensors"))[0]
        asked = self.servers.counts()["s3"]["requests"]
        readers = [subprocess.Popen(["cat", shard], stdout=subprocess.DEVNULL) for _ in range(2)]
        while self.servers.counts()["s3"]["requests"] == asked:
            pass
        readers[0].kill()
        self.assertEqual(readers[0].wait(60), -signal.SIGKILL)
        self.assertTrue((target / ".ckfs/status.json").read_text())
        self.ckfs("umount", "--force", target)
        self.assertNotEqual(readers[1].wait(60), 0)
        self.assertTrue(select.select([daemon], [], [], 60)[0])

    def test_no_secret_of_a_url_is_shown(self):
        self.assertNotIn("hidden", self.ckfs("inspect", "--timeout", "1",
                                            "http://me:hidden@127.0.0.1:1/x", status=1))
        url = self.servers.url("web").replace("http://", "http://me:pass%20word@")
        shutil.copytree(CASE, self.servers.root / "web/deepseek", dirs_exist_ok=True)
        target, said = self.mount(f"{url}/secret/deepseek/")
        seen = said + pathlib.Path("/proc/self/mounts").read_text()
        for path in (target / ".ckfs").rglob("*"):
            if path.is_file():
                seen += path.read_text()
        self.assertNotIn("pass%20word", seen)
        self.assertNotIn("pass word", seen)


if __name__ == "__main__":
    unittest.main()
