#!/usr/bin/python3
"""A source on another machine is what the same files are on this one: each view of it, bit for bit,
by every verb, whatever the location. The servers are those of tests/tools/object_server.py."""
import hashlib
import json
import os
import pathlib
import shutil
import struct
import subprocess
import tempfile
import unittest

from remote import ROOT, Servers

CKFS = os.environ.get("CKFS_BIN", str(ROOT / "build/dev/ckfs"))
DATA = ROOT / "tests/data"
# Of several families: codes with scales in another shard, one file, files inside files, states of
# ranks, an OCDBT database of many small files.
CASES = {"deepseek": "hf/deepseek-v3-fp8", "kimi": "hf/kimi-k2-int4", "dcp": "torch/dcp-fsdp2-w2",
         "zero": "deepspeed/zero2-bf16-w2", "orbax": "orbax/default_v3"}


def tree(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes()
            for path in pathlib.Path(folder).rglob("*")
            if path.is_file() and ".ckfs-export.d" not in path.parts}


class Remote(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.servers = Servers("--secret", "hush")
        for folder in ("hub/org", "s3/bucket", "gcs/bucket", "web"):
            for name, case in CASES.items():
                shutil.copytree(DATA / case / "source", cls.servers.root / folder / name)
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

    def ckfs(self, *words, status=0, **more):
        done = subprocess.run([CKFS, *map(str, words)], env={**self.environment, **more},
                              capture_output=True, timeout=300, check=False)
        self.assertEqual(done.returncode, status, (words, done.stderr))
        return done.stdout if status == 0 else done.stderr.decode()

    def views(self, source):
        found = json.loads(self.ckfs("inspect", "--json", source))
        return [view["name"] for view in found["views"] if view["available"]]

    def export(self, source, view, name):
        out = self.work / name
        self.ckfs("export", source, view, out)
        return tree(out)

    def locations(self, name):
        return {"hub": f"hf://org/{name}", "s3": f"s3://bucket/{name}", "gcs": f"gs://bucket/{name}"}

    def test_every_view_is_that_of_the_files_here(self):
        for name, case in CASES.items():
            here = DATA / case / "source"
            views = self.views(here)
            self.assertIn("source", views)
            for service, location in self.locations(name).items():
                self.assertEqual(self.views(location), views)
                # Views of a kind go through the same reads: one with casts, and the files themselves.
                for view in sorted({"source", views[-1], views[len(views) // 2]}):
                    with self.subTest(location=location, view=view):
                        self.assertEqual(self.export(location, view, f"{name}-{service}-{view}"),
                                         self.export(here, view, f"{name}-{service}-{view}-here"))

    def test_a_web_directory_shows_what_its_index_names(self):
        url = self.servers.url("web") + "/deepseek/"
        here = self.export(DATA / CASES["deepseek"] / "source", "bf16-safetensors", "here")
        far = self.export(url, "bf16-safetensors", "far")
        self.assertEqual(far, {name: here[name] for name in far})
        self.assertTrue({name for name in here if name.endswith(".safetensors")} <= set(far))
        self.assertIn("config.json", far)

    def test_a_single_file_is_a_source(self):
        case = DATA / CASES["kimi"] / "source"
        name = sorted(path.name for path in case.glob("*.safetensors"))[0]
        here = tree(self.export_of(case / name, "one"))
        for location in (*(f"{each}/{name}" for each in self.locations("kimi").values()),
                         f"{self.servers.url('web')}/kimi/{name}"):
            with self.subTest(location):
                self.assertEqual(tree(self.export_of(location, "one-" + location[:2])), here)

    def export_of(self, source, name):
        out = self.work / name
        shutil.rmtree(out, ignore_errors=True)
        self.ckfs("export", source, "source", out)
        return out

    def test_ls_cat_digest_and_verify_work_without_files(self):
        here = DATA / CASES["deepseek"] / "source"
        far = "hf://org/deepseek"
        view = "bf16-safetensors"
        names = [line.rsplit("  ", 1)[-1] for line in
                 self.ckfs("ls", far, view).decode().splitlines()]
        self.assertEqual(self.ckfs("ls", far, view), self.ckfs("ls", here, view))
        name = [each for each in names if each.endswith(".safetensors")][0]
        path = f"{view}/{name}"
        self.assertEqual(self.ckfs("cat", far, path), self.ckfs("cat", here, path))
        def digests(source):
            return json.loads(self.ckfs("digest", source, view, "--json"))["files"]
        self.assertEqual(digests(far), digests(here))
        copy = self.work / "copy"
        self.ckfs("export", here, view, copy)
        self.ckfs("verify", far, view, copy)

    def test_inspect_says_which_commit_it_is(self):
        report = self.ckfs("inspect", "hf://org/deepseek@main").decode()
        self.assertRegex(report, r"  version: hf://org/deepseek@[0-9a-f]{40}\n")
        commit = report.split("version: hf://org/deepseek@")[1][:40]
        pinned = json.loads(self.ckfs("inspect", "--json", f"hf://org/deepseek@{commit}"))
        moving = json.loads(self.ckfs("inspect", "--json", "hf://org/deepseek"))
        self.assertEqual(pinned["fingerprint"], moving["fingerprint"])
        self.assertEqual(pinned["mtime"], moving["mtime"])

    def test_what_is_fetched_is_said_before_it_is(self):
        found = {view["name"]: view.get("fetched_bytes") for view in
                 json.loads(self.ckfs("inspect", "--json", "s3://bucket/deepseek"))["views"]}
        case = DATA / CASES["deepseek"] / "source"
        sizes = [path.stat().st_size for path in case.iterdir()]
        self.assertEqual(found["source"], sum(sizes))
        # Without headers, and with what its small files are made of.
        tensors = 0
        for shard in case.glob("*.safetensors"):
            data = shard.read_bytes()
            tensors += len(data) - 8 - struct.unpack("<Q", data[:8])[0]
        self.assertGreaterEqual(found["bf16-safetensors"], tensors)
        self.assertLess(found["bf16-safetensors"], tensors + 20_000)
        self.assertRegex(self.ckfs("inspect", "s3://bucket/deepseek").decode(),
                         "source .*\n    reading all of it fetches [0-9.]+ [KM]B\n")
        self.assertNotIn("fetches", self.ckfs("inspect", case).decode())
        words = ("digest", "s3://bucket/deepseek", "bf16-safetensors")
        for more, says in ((["--progress", "plain"], True), (["--progress", "none"], False)):
            done = subprocess.run([CKFS, *words, *more], env=self.environment, timeout=300,
                                  capture_output=True, text=True, check=True)
            self.assertEqual("to fetch for bf16-safetensors" in done.stderr, says)

    def test_opening_asks_for_each_header_once_and_for_no_tensor(self):
        self.ckfs("ls", "hf://org/deepseek")
        counts = self.servers.counts()
        shards = len(list((DATA / CASES["deepseek"] / "source").glob("*.safetensors")))
        self.assertEqual(counts["cdn"]["requests"], shards)

    def test_config_may_be_elsewhere(self):
        config = DATA / CASES["deepseek"] / "source"
        plain = self.export(DATA / CASES["dcp"] / "source", "source", "plain")
        self.assertTrue(plain)
        near = json.loads(self.ckfs("inspect", "--json", DATA / CASES["dcp"] / "source",
                                    "--config", config))["views"]
        for source, its in (("s3://bucket/dcp", config),
                            (DATA / CASES["dcp"] / "source", "hf://org/deepseek"),
                            ("gs://bucket/dcp", "hf://org/deepseek")):
            with self.subTest(source):
                found = json.loads(self.ckfs("inspect", "--json", source, "--config", its))
                self.assertEqual([(each["name"], each["available"]) for each in found["views"]],
                                 [(each["name"], each["available"]) for each in near])

    def test_what_is_changed_meanwhile_is_stale_and_nothing_of_it_is_given(self):
        # The listing is seen, and then every answer is of another object of the same size.
        file = next((DATA / CASES["deepseek"] / "source").glob("*.safetensors")).name
        self.servers.faults([{"service": "s3", "path": file.replace(".", r"\."), "kind": "swap"}])
        said = self.ckfs("cat", "s3://bucket/deepseek", f"source/{file}", status=1)
        self.assertIn(file, said)
        self.assertRegex(said, "changed|412")

    def test_errors_say_what_the_server_said_and_what_to_do(self):
        for location, says in (
                ("hf://org/none", "Repository not found"),
                ("hf://datasets/org/name", "datasets"),
                ("s3://bucket/none", "no object has that name"),
                ("az://account/container", "not a location of a source"),
                (f"{self.servers.url('web')}/none/model.safetensors", "404")):
            with self.subTest(location):
                self.assertIn(says, self.ckfs("inspect", location, status=1))
        self.assertIn("no AWS credentials", self.ckfs(
            "inspect", "s3://bucket/kimi", status=1, AWS_ACCESS_KEY_ID="", AWS_SECRET_ACCESS_KEY=""))
        self.assertIn("connections: 0 is out of range",
                      self.ckfs("inspect", "--connections", "0", "hf://org/kimi", status=2))

    def test_without_a_fetcher_the_message_says_what_to_install(self):
        lonely = self.work / "bin"
        lonely.mkdir()
        shutil.copy(CKFS, lonely / "ckfs")
        for location in ("hf://org/kimi", "s3://bucket/kimi", "https://example.invalid/x"):
            done = subprocess.run([lonely / "ckfs", "inspect", location], env=self.environment,
                                  capture_output=True, text=True, timeout=60, check=False)
            self.assertEqual(done.returncode, 1)
            self.assertIn("ckfs-remote", done.stderr)
        self.assertIn("/none: not there, and sources", self.ckfs(
            "inspect", "hf://org/kimi", status=1, CKFS_FETCHER="/none"))
        target = self.work / "mnt"
        for location, says in (("s3://bucket/kimi", "aws s3 sync s3://bucket/kimi DIR"),
                               ("gs://bucket/kimi", "gcloud storage rsync")):
            done = subprocess.run([lonely / "ckfs", "mount", location, target],
                                  env=self.environment, capture_output=True, text=True, timeout=60,
                                  check=False)
            self.assertEqual(done.returncode, 1)
            self.assertIn(says, done.stderr)
        self.assertFalse(target.exists())

    def test_offline_takes_what_the_cache_of_the_hub_has(self):
        hub = self.work / "hub/models--org--kimi"
        shutil.copytree(DATA / CASES["kimi"] / "source", hub / "snapshots/0123abc")
        (hub / "refs").mkdir()
        (hub / "refs/main").write_text("0123abc")
        for words, more in ((["--offline"], {}), ([], {"HF_HUB_OFFLINE": "1"})):
            self.ckfs("inspect", *words, "hf://org/kimi", HF_HUB_CACHE=str(self.work / "hub"), **more)
        self.assertEqual(self.servers.counts().get("hub", {}).get("requests", 0), 0)

    def test_ranks_write_one_version(self):
        # A copy of its own: another version of it comes later.
        notes = b"another file of the source"
        shutil.copytree(DATA / CASES["deepseek"] / "source", self.servers.root / "s3/bucket/ranks")
        (self.servers.root / "s3/bucket/ranks/notes.txt").write_bytes(notes)
        source, view, out = "s3://bucket/ranks", "bf16-safetensors", self.work / "many"
        self.ckfs("export", "--rank", 0, "--world", 2, source, view, out)
        self.servers.control("/touch", {"service": "s3", "path": "bucket/ranks/notes.txt"})
        self.assertRegex(self.ckfs(
            "export", "--rank", 1, "--world", 2, source, view, out, status=1),
                         "a source of fingerprint [0-9a-f]{16}, not [0-9a-f]{16}")
        self.servers.faults()
        self.ckfs("export", "--rank", 1, "--world", 2, source, view, out)
        self.ckfs("export", "--finish", source, view, out)
        one = self.export(DATA / CASES["deepseek"] / "source", view, "one")
        self.assertEqual(tree(out), {**one, "notes.txt": notes})

    def test_what_the_hubs_cache_has_is_not_fetched(self):
        # Only files of some size are looked for there.
        header = json.dumps({"w": {"dtype": "BF16", "shape": [1 << 20],
                                   "data_offsets": [0, 1 << 21]}}).encode()
        data = struct.pack("<Q", len(header)) + header + os.urandom(1 << 21)
        (self.servers.root / "hub/org/cached").mkdir(exist_ok=True)
        (self.servers.root / "hub/org/cached/model.safetensors").write_bytes(data)
        far = self.export("hf://org/cached", "fp32-safetensors", "far")
        facts = json.loads(self.ckfs("inspect", "--json", "hf://org/cached"))
        self.assertGreater(self.servers.counts()["cdn"]["requests"], 0)
        self.servers.control("/reset")
        blobs = self.work / "hub/models--org--cached/blobs"
        blobs.mkdir(parents=True)
        (blobs / hashlib.sha256(data).hexdigest()).write_bytes(data)
        self.environment = {**self.environment, "HF_HUB_CACHE": str(self.work / "hub")}
        self.assertEqual(self.export("hf://org/cached", "fp32-safetensors", "near"), far)
        self.assertNotIn("cdn", self.servers.counts())
        for view in facts["views"]:  # nothing is to be fetched any more
            view.pop("fetched_bytes", None)
        self.assertEqual(json.loads(self.ckfs("inspect", "--json", "hf://org/cached")), facts)
        # A part of it is none.
        (blobs / hashlib.sha256(data).hexdigest()).write_bytes(data[:-1])
        self.assertEqual(self.export("hf://org/cached", "fp32-safetensors", "again"), far)

    def test_faults_of_a_server_cost_time_and_no_byte(self):
        here = self.export(DATA / CASES["deepseek"] / "source", "bf16-safetensors", "here")
        for kind in ("503", "cut"):
            self.servers.faults([{"service": "gcs", "path": "alt=media", "every": 3, "kind": kind}])
            self.assertEqual(self.export("gs://bucket/deepseek", "bf16-safetensors", kind), here)


if __name__ == "__main__":
    unittest.main()
