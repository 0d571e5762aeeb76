#!/usr/bin/python3
"""The disk cache of sources on other machines: what was read once is not fetched again, by whatever
verb, mount or process, and is right or absent. The servers count what they are asked for."""
import fcntl
import json
import os
import pathlib
import select
import shutil
import subprocess
import tempfile
import threading
import unittest

from remote import ROOT, Servers
from test_mounts import tree

CKFS = os.environ.get("CKFS_BIN", str(ROOT / "build/dev/ckfs"))
CASE = ROOT / "tests/data/hf/deepseek-v3-fp8/source"
VIEW = "bf16-safetensors"
SHARD = sorted(path.name for path in CASE.glob("*.safetensors"))[0]


class Cache(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.servers = Servers("--secret", "hush")
        for folder in ("hub/org", "s3/bucket", "gcs/bucket", "web"):
            shutil.copytree(CASE, cls.servers.root / folder / "deepseek")

    @classmethod
    def tearDownClass(cls):
        cls.servers.__exit__()

    def setUp(self):
        self.servers.faults(page=1000)
        self.servers.control("/reset")
        work = tempfile.TemporaryDirectory()
        self.addCleanup(work.cleanup)
        self.work = pathlib.Path(work.name)
        self.cache = self.work / "cache/ckfs"
        self.environment = self.servers.environment(
            AWS_ACCESS_KEY_ID="test", AWS_SECRET_ACCESS_KEY="hush", CKFS_CACHE_SIZE="1GiB",
            XDG_CACHE_HOME=str(self.work / "cache"))

    def ckfs(self, *words, status=0, **more):
        done = subprocess.run([CKFS, *map(str, words)], env={**self.environment, **more},
                              capture_output=True, timeout=300, check=False)
        self.assertEqual(done.returncode, status, (words, done.stderr))
        self.said = done.stderr.decode()
        return done.stdout if status == 0 else self.said

    def mount(self, source, *words, name="mnt"):
        target = self.work / name
        self.ckfs("mount", *words, source, target)
        self.addCleanup(subprocess.run, [CKFS, "umount", "--force", target], check=False,
                        capture_output=True)
        return target

    def umount(self, target):
        """Until its daemon has ended: by then it has kept what it fetched."""
        status = json.loads((target / ".ckfs/status.json").read_text())
        daemon = os.pidfd_open(status["pid"])
        self.addCleanup(os.close, daemon)
        self.ckfs("umount", target)
        self.assertTrue(select.select([daemon], [], [], 60)[0])

    def requests(self):
        """What the servers were asked for since the last call."""
        counts = self.servers.counts()
        self.servers.control("/reset")
        return {service: its["requests"] for service, its in counts.items() if service != "log"}

    def export(self, source, *words):
        out = self.work / "out"
        shutil.rmtree(out, ignore_errors=True)
        self.ckfs("export", *words, source, VIEW, out)
        found = tree(out)
        return {name: data for name, data in found.items() if ".ckfs-export.d" not in name}

    def blocks(self):
        return sorted(path for path in self.cache.glob("v1/*/*-*") if "text-" not in path.name)

    def test_what_was_read_once_is_not_fetched_again(self):
        here = self.export(CASE)
        for location, warm in (("hf://org/deepseek", {"hub": 1}), ("s3://bucket/deepseek", {"s3": 1}),
                               ("gs://bucket/deepseek", {"gcs": 1})):
            with self.subTest(location):
                self.assertEqual(self.export(location), here)
                self.assertGreater(sum(self.requests().values()), 4)
                self.assertEqual(self.export(location), here)
                self.assertEqual(self.requests(), warm)
                self.assertEqual(self.export(location, "--offline"), here)
                self.assertEqual(self.requests(), {})
        # A commit is what it was: it needs no request.
        version = [line for line in self.ckfs("inspect", "hf://org/deepseek").decode().splitlines()
                   if "version: " in line][0].split()[-1]
        self.requests()
        self.assertEqual(self.export(version), here)
        self.assertEqual(self.requests(), {})

    def test_a_file_of_a_web_server_is_kept_by_its_etag(self):
        url = f"{self.servers.url('web')}/deepseek/{SHARD}"
        first = self.ckfs("cat", url, f"source/{SHARD}")
        asked = self.requests()["web"]
        self.assertEqual(self.ckfs("cat", url, f"source/{SHARD}"), first)
        self.assertLess(self.requests()["web"], asked)
        self.assertEqual(self.ckfs("cat", "--offline", url, f"source/{SHARD}"), first)
        self.assertEqual(self.requests(), {})
        # Without one, nothing says that the bytes are still the same.
        tagless = f"{self.servers.url('web')}/tagless/deepseek/{SHARD}"
        before = len(self.blocks())
        self.ckfs("cat", tagless, f"source/{SHARD}")
        self.assertEqual(len(self.blocks()), before)
        # And secrets are not to lie on the disk.
        self.ckfs("cat", url + "?sig=hunter2", f"source/{SHARD}")
        self.assertEqual(len(self.blocks()), before)

    def end_with_bytes_that_wait(self, url):
        """Reads a file whose blocks cannot be written before the program ends. Its bytes; None: the
        machine was too slow for it."""
        shutil.rmtree(self.cache, ignore_errors=True)
        self.servers.control("/reset")
        with subprocess.Popen([CKFS, "cat", url, f"source/{SHARD}"], env=self.environment,
                              stdout=subprocess.PIPE) as cat:
            # The listing is kept, and the first bytes are under way.
            while self.servers.counts().get("web", {"requests": 0})["requests"] < 2:
                self.assertIsNone(cat.poll())
            with open(self.cache / "v1/lock", "r+b") as lock:
                # The first block waits for this lock, a second at most, and the others for the first.
                fcntl.lockf(lock, fcntl.LOCK_EX)
                read = cat.stdout.read(os.path.getsize(CASE / SHARD))
                try:
                    cat.wait(0.1)
                    read = None
                except subprocess.TimeoutExpired:
                    pass
        self.assertEqual(cat.returncode, 0)
        return read

    def test_a_program_that_ends_keeps_what_waits_for_the_disk(self):
        url = f"{self.servers.url('web')}/deepseek/{SHARD}"
        kept = None
        for _ in range(10):
            self.servers.faults(page=1000, delay_ms=100)
            read = self.end_with_bytes_that_wait(url)
            self.servers.faults(page=1000)
            done = subprocess.run([CKFS, "cat", "--offline", url, f"source/{SHARD}"],
                                  env=self.environment, capture_output=True, check=False)
            if read is not None and done.returncode == 0:
                kept = done.stdout
                break
        self.assertEqual(kept, (CASE / SHARD).read_bytes())

    def test_a_mount_keeps_and_finds_bytes_within_its_sandbox(self):
        here = tree(self.mount(CASE, name="here") / VIEW)
        target = self.mount("hf://org/deepseek")
        self.assertEqual(tree(target / VIEW), here)
        self.umount(target)
        self.requests()
        target = self.mount("hf://org/deepseek")
        self.assertEqual(self.requests(), {"hub": 1})
        self.assertEqual(tree(target / VIEW), here)
        self.assertEqual(self.requests(), {})
        self.umount(target)
        target = self.mount("hf://org/deepseek", "--offline")
        self.assertEqual(tree(target / VIEW), here)
        self.assertEqual(self.requests(), {})

    def test_mounts_and_verbs_share_it_at_once(self):
        here = tree(self.mount(CASE, name="here") / VIEW)
        mounts = [self.mount("gs://bucket/deepseek", name=f"m{i}") for i in range(3)]
        found = {}

        def read(target):
            found[target] = tree(target / VIEW)

        threads = [threading.Thread(target=read, args=[target]) for target in mounts]
        for thread in threads:
            thread.start()
        self.assertEqual(self.export("gs://bucket/deepseek"), here)
        for thread in threads:
            thread.join()
        self.assertEqual([found[target] == here for target in mounts], [True] * 3)

    def test_a_new_version_is_another_object(self):
        location = "s3://bucket/deepseek"
        old = self.ckfs("cat", location, f"source/{SHARD}")
        self.servers.control("/touch", {"service": "s3", "path": f"bucket/deepseek/{SHARD}"})
        # The first byte of its header is another now.
        self.ckfs("cat", location, f"source/{SHARD}", status=1)
        self.servers.faults(page=1000)
        self.requests()
        self.assertEqual(self.ckfs("cat", location, f"source/{SHARD}"), old)
        self.assertEqual(self.requests(), {"s3": 1})

    def test_damaged_blocks_are_fetched_again(self):
        location = "hf://org/deepseek"
        here = self.export(location)
        for block in self.blocks():
            at = 4096 + min(1000, (os.path.getsize(block) - 4096) // 2)
            with open(block, "r+b") as file:
                file.seek(at)
                byte = file.read(1)
                file.seek(at)
                file.write(bytes([byte[0] ^ 1]))
        self.requests()
        self.assertEqual(self.export(location), here)
        self.assertGreater(self.requests()["cdn"], 0)
        self.assertEqual(self.export(location), here)
        self.assertEqual(self.requests(), {"hub": 1})

    def test_offline_says_what_is_missing(self):
        for location in ("hf://org/deepseek", "s3://bucket/deepseek"):
            said = self.ckfs("inspect", "--offline", location, status=1)
            self.assertRegex(said, "the disk cache does not have its listing|hub's cache|hf download")
            self.ckfs("inspect", location)
            self.assertIn("bf16", self.ckfs("inspect", "--offline", location).decode())
            self.requests()
            # Only headers were read.
            for block in self.blocks():
                block.unlink()
            said = self.ckfs("cat", "--offline", location, f"{VIEW}/{SHARD}", status=1)
            self.assertIn("ckfs cache warm", said)
            self.assertEqual(self.requests(), {})

    def test_it_can_be_switched_off_and_be_elsewhere(self):
        self.ckfs("cat", "--cache-size", 0, "s3://bucket/deepseek", "source/config.json")
        self.assertFalse(self.cache.exists())
        other = self.work / "other"
        self.ckfs("cat", "--cache-dir", other, "s3://bucket/deepseek", "source/config.json")
        self.assertFalse(self.cache.exists())
        self.assertTrue((other / "CACHEDIR.TAG").exists())
        self.assertIn("cache_size: 1KB is too little", self.ckfs(
            "cat", "--cache-size", 1000, "s3://bucket/deepseek", "source/config.json", status=2))

    def test_a_directory_of_others_is_refused_where_it_was_named(self):
        self.cache.mkdir(parents=True)
        self.cache.chmod(0o755)
        words = ("cat", "s3://bucket/deepseek", "source/config.json")
        self.assertEqual(self.ckfs(*words), (CASE / "config.json").read_bytes())
        self.assertRegex(self.said, "other users have rights .*read without a cache")
        self.assertRegex(self.ckfs(*words, "--cache-dir", self.cache, status=1),
                         "other users have rights")
        self.assertEqual(list(self.cache.iterdir()), [])

    def test_a_full_disk_costs_no_read(self):
        # Nothing may be kept: what is free is less than what stays free for others.
        small = self.work / "small"
        small.mkdir()
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k,mode=700", "none", small],
                                 check=False, capture_output=True)
        if mounted.returncode != 0:
            return  # only root may mount one
        self.addCleanup(subprocess.run, ["umount", "-l", small], check=False)
        here = self.export(CASE)
        self.assertEqual(self.export("gs://bucket/deepseek", "--cache-dir", small), here)
        self.assertEqual(self.export("gs://bucket/deepseek", "--cache-dir", small), here)

    def test_stats_say_what_was_asked_and_what_was_there(self):
        first = self.mount("gs://bucket/deepseek", name="first")
        tree(first / VIEW)
        status = json.loads((first / ".ckfs/status.json").read_text())
        counts = self.servers.counts()
        self.assertEqual(status["remote"]["requests"], counts["gcs"]["requests"])
        self.assertEqual(status["remote"]["retries"], 0)
        self.assertGreaterEqual(status["remote"]["bytes"], status["source_bytes"])
        self.assertGreater(status["remote"]["cache_missed"], 0)
        for file in status["files"]:
            self.assertEqual(file["size"], os.path.getsize(CASE / file["path"]))
        self.umount(first)
        again = self.mount("gs://bucket/deepseek", name="again")
        tree(again / VIEW)
        status = json.loads((again / ".ckfs/status.json").read_text())
        self.assertEqual(status["remote"]["requests"], 1)
        self.assertEqual(status["remote"]["cache_missed"], 0)
        self.assertGreater(status["remote"]["cache_found"], 500_000)
        self.assertRegex(self.ckfs("stats", again).decode(), r"found in cache +\d+  [\d.]+ [KM]B")
        self.assertIn("ckfs_cache_found_bytes_total{", (again / ".ckfs/metrics").read_text())

    def test_warm_fetches_what_a_view_needs_and_clear_removes_it(self):
        location = "hf://org/deepseek"
        said = self.ckfs("cache", "warm", location, VIEW).decode()
        self.assertRegex(said, r"^hf://org/deepseek: [\d.]+ [KM]B fetched, [\d.]+ [KM]?B were there\n$")
        self.requests()
        here = self.export(CASE)
        self.assertEqual(self.export(location, "--offline"), here)
        self.assertRegex(self.ckfs("cache", "warm", location, VIEW).decode(), "^hf://org/deepseek: 0 B fetched")
        self.assertEqual(self.requests(), {"hub": 1})
        listed = self.ckfs("cache", "ls").decode()
        self.assertRegex(listed, r"^ *\d+(\.\d+)? [KM]B  hf://org/deepseek at http://127.0.0.1:\d+/?\n$")
        self.ckfs("cache", "clear", location)
        self.assertEqual(self.ckfs("cache", "ls"), b"")
        # All of it, with the files that no view is made of.
        self.ckfs("cache", "warm", location)
        self.requests()
        self.assertEqual(self.ckfs("cat", "--offline", location, f"source/{SHARD}"), (CASE / SHARD).read_bytes())
        self.assertEqual(self.requests(), {})

    def test_warm_says_where_there_is_no_room(self):
        big = self.servers.root / "s3/bucket/big"
        big.mkdir(exist_ok=True)
        header = json.dumps({"w": {"dtype": "BF16", "shape": [35 << 20], "data_offsets": [0, 70 << 20]}}).encode()
        (big / "model.safetensors").write_bytes(
            len(header).to_bytes(8, "little") + header + bytes(70 << 20))
        words = ("cache", "warm", "--cache-size", "64MiB", "s3://bucket/big")
        self.assertRegex(self.ckfs(*words, status=1), r"s3://bucket/big: 73\.4 MB do not fit into a cache of 64 ?MiB")
        self.assertRegex(self.ckfs(*words, "fp32-safetensors", status=1), "could not be kept|made room")

    def test_readers_that_need_little_keep_little(self):
        target = self.mount("s3://bucket/deepseek")
        with open(target / "source" / SHARD, "rb") as shard:
            shard.seek(os.path.getsize(CASE / SHARD) // 2)
            shard.read(10)
        status = json.loads((target / ".ckfs/status.json").read_text())
        fetched = sum(each["bytes"] for each in status["files"])
        self.assertLessEqual(fetched, 256 << 10)


if __name__ == "__main__":
    unittest.main()
