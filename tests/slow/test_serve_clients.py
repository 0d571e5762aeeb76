#!/usr/bin/env python3
"""Programs that people read checkpoints with, unmodified, against `ckfs serve`: each gets the bytes that
`ckfs export` writes, whole and in ranges, from a server without a key and from one with. Needs
.venv/serve, curl, rclone. docs/SERVE.md has the table of what is read here.

  CKFS_BIN=build/release/ckfs python3 tests/slow/test_serve_clients.py
"""
import functools
import hashlib
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

TESTS = pathlib.Path(__file__).resolve().parents[1]
ROOT = TESTS.parent
sys.path.insert(0, str(TESTS / "cli"))
from cli_support import CKFS, Checkpoint  # noqa: E402
from test_serve import SECRET, Server  # noqa: E402

BIN = ROOT / ".venv/serve/bin"
MAXTEXT = TESTS / "data/maxtext/qwen3-dense/source"
# A name as S3 has few: every client must encode it, and sign what it has encoded.
VIEWS = ("fp32-safetensors", "bf16-safetensors@max_shard=5MB")


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def digests(directory):
    """Of the files below a directory, by path; without what the hub's client keeps there."""
    return {str(path.relative_to(directory)): sha256(path) for path in sorted(directory.rglob("*"))
            if path.is_file() and ".cache" not in path.relative_to(directory).parts}


def ckfs(*words):
    done = subprocess.run([CKFS, *map(str, words)], stdin=subprocess.DEVNULL, capture_output=True,
                          text=True)
    if done.returncode != 0:
        raise AssertionError(f"ckfs {words}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def without_and_with_a_key(test):
    """Calls a test for both servers, with the server, its address, and whether it wants a key."""
    @functools.wraps(test)
    def tests(self):
        for server in (self.open, self.keyed):
            with self.subTest(key=server is self.keyed):
                test(self, server, f"http://127.0.0.1:{server.port}", server is self.keyed)
    return tests


class Clients(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.work = pathlib.Path(tempfile.mkdtemp(prefix="ckfs-clients-"))
        cls.addClassCleanup(shutil.rmtree, cls.work)
        cls.source = Checkpoint(cls.work / "model", megabytes=16).path
        cls.exported, cls.expected = {}, {}
        for view in VIEWS:
            cls.exported[view] = cls.work / "exported" / view
            ckfs("export", cls.source, view, cls.exported[view])
            cls.expected[view] = digests(cls.exported[view])
        key = cls.work / "key"
        key.write_text(f"me:{SECRET}\n")
        cls.open = Server(cls.source)
        cls.addClassCleanup(cls.open.end)
        cls.keyed = Server(cls.source, "--key-file", key)
        cls.addClassCleanup(cls.keyed.end)

    def setUp(self):
        self.out = pathlib.Path(tempfile.mkdtemp(dir=self.work))
        self.addCleanup(shutil.rmtree, self.out)

    def run_client(self, *command, code=0, **variables):
        """Standard output of a program that sees no settings but these."""
        environment = {"PATH": f"{BIN}:/usr/bin:/bin", "HOME": str(self.out), "LANG": "C.UTF-8",
                       "AWS_EC2_METADATA_DISABLED": "true", "AWS_DEFAULT_REGION": "us-east-1",
                       "AWS_REGION": "us-east-1", "HF_HUB_DISABLE_TELEMETRY": "1",
                       "HF_HUB_DISABLE_PROGRESS_BARS": "1", "RCLONE_CONFIG": "", **variables}
        done = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL,
                              capture_output=True, env=environment, cwd=self.out, timeout=300)
        if (done.returncode == 0) != (code == 0):
            raise AssertionError(f"{command[:6]}: exit {done.returncode}\n"
                                 f"{done.stdout.decode(errors='replace')[-3000:]}\n"
                                 f"{done.stderr.decode(errors='replace')[-3000:]}")
        return done.stdout

    def program(self, text, *arguments, **variables):
        """What a program in Python prints as JSON."""
        return json.loads(self.run_client(BIN / "python", "-c", text, *arguments, **variables)
                          .splitlines()[-1])

    @staticmethod
    def keys(keyed):
        return {"AWS_ACCESS_KEY_ID": "me", "AWS_SECRET_ACCESS_KEY": SECRET} if keyed else {}

    def ranges(self, view):
        """(file, first, end, digest of these bytes) of the view's largest file."""
        name = max(self.expected[view], key=lambda path: (self.exported[view] / path).stat().st_size)
        content = (self.exported[view] / name).read_bytes()
        size = len(content)
        return [(name, begin, end, hashlib.sha256(content[begin:end]).hexdigest())
                for begin, end in ((0, 8), (7, 1_048_583), (size - 9, size), (0, size))]


class Boto3(Clients):
    PROGRAM = """
import boto3, hashlib, json, sys
from botocore import UNSIGNED
from botocore.config import Config
from boto3.s3.transfer import TransferConfig
url, bucket, view, kind, out = sys.argv[1:6]
ranges = json.loads(sys.argv[6])
config = Config(signature_version=UNSIGNED if kind == "unsigned" else "s3v4",
                s3={"addressing_style": "path"}, retries={"total_max_attempts": 1})
s3 = boto3.client("s3", endpoint_url=url, config=config)
sha = lambda data: hashlib.sha256(data).hexdigest()
pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=view + "/",
                                                     PaginationConfig={"PageSize": 2})
sizes = {entry["Key"]: entry["Size"] for page in pages for entry in page["Contents"]}
told = {"whole": {}, "ranges": [], "in parts": {}}
s3.head_bucket(Bucket=bucket)
parts = TransferConfig(multipart_threshold=1 << 20, multipart_chunksize=3 << 20, max_concurrency=8)
for key, size in sizes.items():
    name = key[len(view) + 1:]
    head = s3.head_object(Bucket=bucket, Key=key)
    answer = s3.get_object(Bucket=bucket, Key=key, IfMatch=head["ETag"])
    assert head["ContentLength"] == size
    told["whole"][name] = sha(answer["Body"].read())
    s3.download_file(bucket, key, out + "/part", Config=parts)
    told["in parts"][name] = sha(open(out + "/part", "rb").read())
for name, begin, end, _ in ranges:
    answer = s3.get_object(Bucket=bucket, Key=view + "/" + name, Range=f"bytes={begin}-{end - 1}")
    told["ranges"].append(sha(answer["Body"].read()))
told["url"] = s3.generate_presigned_url("get_object", {"Bucket": bucket, "Key": view + "/" + name})
print(json.dumps(told))
"""

    @without_and_with_a_key
    def test_lists_and_reads(self, server, url, keyed):
        for view in VIEWS:
            ranges = self.ranges(view)
            told = self.program(self.PROGRAM, url, server.bucket, view,
                                "signed" if keyed else "unsigned", self.out, json.dumps(ranges),
                                **self.keys(keyed))
            self.assertEqual(told["whole"], self.expected[view])
            self.assertEqual(told["in parts"], self.expected[view])
            self.assertEqual(told["ranges"], [each[3] for each in ranges])
            # Its presigned URL is for a program without the key.
            got = self.run_client("curl", "-sSf", "-r", "0-7", told["url"])
            self.assertEqual(hashlib.sha256(got).hexdigest(), ranges[0][3])

    def test_says_that_a_key_is_another(self):
        program = ("import boto3, sys\n"
                   "from botocore.config import Config\n"
                   "s3 = boto3.client('s3', endpoint_url=sys.argv[1])\n"
                   "try: s3.get_object(Bucket='model', Key='source/config.json')\n"
                   "except s3.exceptions.ClientError as error:\n"
                   "    print('\"' + error.response['Error']['Code'] + '\"')\n")
        url = f"http://127.0.0.1:{self.keyed.port}"
        self.assertEqual(self.program(program, url, AWS_ACCESS_KEY_ID="me",
                                      AWS_SECRET_ACCESS_KEY="another secret"),
                         "SignatureDoesNotMatch")


class Aws(Clients):
    @without_and_with_a_key
    def test_copies_and_lists(self, server, url, keyed):
        words = () if keyed else ("--no-sign-request",)
        for view in VIEWS:
            out = self.out / ("keyed" if keyed else "open") / view
            where = f"s3://{server.bucket}/{view}"
            self.run_client(BIN / "aws", "s3", "cp", "--recursive", "--quiet", *words, where, out,
                            AWS_ENDPOINT_URL=url, **self.keys(keyed))
            self.assertEqual(digests(out), self.expected[view])
            listed = self.run_client(BIN / "aws", "s3", "ls", "--recursive", *words, where + "/",
                                     AWS_ENDPOINT_URL=url, **self.keys(keyed)).decode()
            self.assertEqual({line.split(None, 3)[3].removeprefix(view + "/")
                              for line in listed.splitlines()}, set(self.expected[view]))
            told = self.run_client(BIN / "aws", "s3", "sync", *words, where, out,
                                   AWS_ENDPOINT_URL=url, **self.keys(keyed))
            self.assertEqual(told, b"")  # nothing has changed

    def test_presigns(self):
        url = f"http://127.0.0.1:{self.keyed.port}"
        self.run_client(BIN / "aws", "configure", "set", "default.s3.signature_version", "s3v4")
        signed = self.run_client(BIN / "aws", "s3", "presign", f"s3://model/{VIEWS[1]}/config.json",
                                 AWS_ENDPOINT_URL=url, **self.keys(True)).decode().strip()
        got = self.run_client("curl", "-sSf", signed)
        self.assertEqual(hashlib.sha256(got).hexdigest(), self.expected[VIEWS[1]]["config.json"])


class Curl(Clients):
    @without_and_with_a_key
    def test_reads_files_and_ranges(self, server, url, keyed):
        ways = {False: [()], True: [("--aws-sigv4", "aws:amz:us-east-1:s3", "-u", f"me:{SECRET}"),
                                    ("-u", f"me:{SECRET}"),
                                    ("-H", f"Authorization: Bearer {SECRET}")]}
        for way in ways[keyed]:
            for view in VIEWS:
                encoded = view.replace("@", "%40").replace("=", "%3D")
                at = f"{url}/{server.bucket}/{encoded}"
                for name, digest in self.expected[view].items():
                    got = self.run_client("curl", "-sSf", *way, f"{at}/{name}")
                    self.assertEqual(hashlib.sha256(got).hexdigest(), digest, name)
                for name, begin, end, digest in self.ranges(view):
                    got = self.run_client("curl", "-sSf", *way, "-r", f"{begin}-{end - 1}",
                                          f"{at}/{name}")
                    self.assertEqual(hashlib.sha256(got).hexdigest(), digest, (name, begin))

    def test_continues_a_file(self):
        name, _, size, digest = self.ranges(VIEWS[0])[-1]
        part = self.out / "part"
        part.write_bytes((self.exported[VIEWS[0]] / name).read_bytes()[:size // 3])
        self.run_client("curl", "-sSf", "-C", "-", "-o", part,
                        f"http://127.0.0.1:{self.open.port}/model/{VIEWS[0]}/{name}")
        self.assertEqual(sha256(part), digest)


class Rclone(Clients):
    @without_and_with_a_key
    def test_copies_by_s3(self, server, url, keyed):
        keys = {"RCLONE_S3_ACCESS_KEY_ID": "me",
                "RCLONE_S3_SECRET_ACCESS_KEY": SECRET} if keyed else {}
        for view in VIEWS:
            out = self.out / ("keyed" if keyed else "open") / view
            at = f":s3:{server.bucket}/{view}"
            options = {"RCLONE_S3_PROVIDER": "Other", "RCLONE_S3_ENDPOINT": url, **keys,
                       "RCLONE_MULTI_THREAD_CUTOFF": "1M"}
            self.run_client("rclone", "copy", at, out, **options)
            self.assertEqual(digests(out), self.expected[view])
            self.run_client("rclone", "check", "--download", at, self.exported[view], **options)

    @without_and_with_a_key
    def test_copies_by_http(self, server, url, keyed):
        headers = ("--http-headers", f"Authorization,Bearer {SECRET}") if keyed else ()
        for view in VIEWS:
            out = self.out / ("keyed" if keyed else "open") / view
            self.run_client("rclone", "copy", "--http-url", f"{url}/{server.bucket}/{view}/",
                            *headers, ":http:", out)
            self.assertEqual(digests(out), self.expected[view])


class TensorStore(Clients):
    KEYS = """
import hashlib, json, sys
import tensorstore as ts
store = ts.KvStore.open(json.loads(sys.argv[1])).result()
names = store.list().result()
print(json.dumps({name.decode(): hashlib.sha256(store.read(name).result().value).hexdigest()
                  for name in names}))
"""
    ARRAYS = """
import hashlib, json, sys
import tensorstore as ts
base = json.loads(sys.argv[1])
names = [name.decode().removesuffix("/zarr.json")
         for name in ts.KvStore.open({"driver": "ocdbt", "base": base}).result().list().result()
         if name.endswith(b"/zarr.json")]
told = {}
for name in names:
    array = ts.open({"driver": "zarr3", "kvstore": {"driver": "ocdbt", "base": base, "path": name + "/"}},
                    open=True).result()
    told[name] = hashlib.sha256(array.read().result().tobytes()).hexdigest()
print(json.dumps(told))
"""

    def stores(self, server, path, keyed):
        """A specification of each kind of store, with the variables that it wants."""
        url = f"http://127.0.0.1:{server.port}"
        kind = "environment" if keyed else "anonymous"
        yield ({"driver": "s3", "bucket": server.bucket, "path": path, "endpoint": url,
                "aws_region": "us-east-1", "aws_credentials": {"type": kind}}, self.keys(keyed))
        yield ({"driver": "gcs", "bucket": server.bucket, "path": path},
               {"TENSORSTORE_GCS_HTTP_URL": url,
                **({"GOOGLE_AUTH_TOKEN_FOR_TESTING": SECRET} if keyed else {})})

    @without_and_with_a_key
    def test_lists_and_reads_keys(self, server, _, keyed):
        for view in VIEWS:
            for spec, variables in self.stores(server, view + "/", keyed):
                told = self.program(self.KEYS, json.dumps(spec), **variables)
                self.assertEqual(told, self.expected[view], spec)

    def test_reads_the_arrays_of_an_item_in_ranges(self):
        item = "maxtext-unscanned/0/items/"
        exported = self.out / "maxtext-unscanned"
        ckfs("export", MAXTEXT, "maxtext-unscanned", exported)
        expected = self.program(self.ARRAYS, json.dumps({"driver": "file",
                                                         "path": f"{exported}/0/items/"}))
        self.assertGreater(len(expected), 5)
        for keyed, words in ((False, ()), (True, ("--key-file", self.work / "key"))):
            with Server(MAXTEXT, "--bucket", "maxtext", *words) as server:
                for spec, variables in self.stores(server, item, keyed):
                    with self.subTest(key=keyed, driver=spec["driver"]):
                        self.assertEqual(self.program(self.ARRAYS, json.dumps(spec), **variables),
                                         expected)


class Hub(Clients):
    @without_and_with_a_key
    def test_downloads_into_the_cache_and_a_directory(self, server, url, keyed):
        for view in VIEWS:
            name, _, parameters = view.partition("@")
            words = ("--revision", parameters) if parameters else ()
            settings = {"HF_ENDPOINT": url, "HF_HOME": str(self.out / "home"),
                        **({"HF_TOKEN": SECRET} if keyed else {})}
            told = self.run_client(BIN / "hf", "download", f"ckfs/{name}", *words, "--quiet",
                                   **settings).decode()
            snapshot = pathlib.Path(told.strip().splitlines()[-1].removeprefix("path=").strip())
            self.assertEqual(digests(snapshot), self.expected[view])
            ckfs("verify", self.source, view, snapshot)
            out = self.out / ("keyed" if keyed else "open") / name
            self.run_client(BIN / "hf", "download", f"ckfs/{name}", *words, "--quiet",
                            "--local-dir", out, **settings)
            self.assertEqual(digests(out), self.expected[view])
            ckfs("verify", self.source, view, out)

    FILES = """
import hashlib, json, sys
from huggingface_hub import HfApi, HfFileSystem, hf_hub_download
name, revision = sys.argv[1:3]
told = []
system = HfFileSystem()
for path, begin, end, _ in json.loads(sys.argv[3]):
    with system.open(f"ckfs/{name}/{path}", "rb", revision=revision) as file:
        file.seek(begin)
        told.append(hashlib.sha256(file.read(end - begin)).hexdigest())
config = open(hf_hub_download(f"ckfs/{name}", "config.json", revision=revision), "rb").read()
print(json.dumps({"ranges": told, "config": hashlib.sha256(config).hexdigest(),
                  "files": HfApi().list_repo_files(f"ckfs/{name}", revision=revision)}))
"""

    @without_and_with_a_key
    def test_reads_ranges_and_single_files(self, server, url, keyed):
        for view in VIEWS:
            name, _, parameters = view.partition("@")
            told = self.program(self.FILES, name, parameters or "main",
                                json.dumps(self.ranges(view)), HF_ENDPOINT=url,
                                HF_HOME=str(self.out / "home"),
                                **({"HF_TOKEN": SECRET} if keyed else {}))
            self.assertEqual(told["ranges"], [each[3] for each in self.ranges(view)])
            self.assertEqual(told["config"], self.expected[view]["config.json"])
            self.assertEqual(set(told["files"]), set(self.expected[view]))


class Transformers(Clients):
    PROGRAM = """
import hashlib, json, sys, torch, transformers
model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16)
print(json.dumps({name: hashlib.sha256(value.contiguous().flatten().view(torch.uint8).numpy().tobytes())
                  .hexdigest() for name, value in model.state_dict().items()}))
"""

    def test_loads_a_model_by_its_name(self):
        """By .venv/hf, whose version docs/LOADERS.md has."""
        python = ROOT / ".venv/hf/bin/python"
        source, view, exported = TESTS / "data/hf/llama-bf16/source", "bf16-safetensors", self.out / "llama"
        ckfs("export", source, view, exported)
        expected = json.loads(self.run_client(python, "-c", self.PROGRAM, exported).splitlines()[-1])
        for words, token in (((), {}), (("--key-file", self.work / "key"), {"HF_TOKEN": SECRET})):
            with self.subTest(key=bool(token)), Server(source, "--bucket", "llama", *words) as server:
                told = self.run_client(python, "-c", self.PROGRAM, f"ckfs/{view}",
                                       HF_ENDPOINT=f"http://127.0.0.1:{server.port}",
                                       HF_HOME=str(self.out / f"home-{len(token)}"), **token)
                self.assertEqual(json.loads(told.splitlines()[-1]), expected)


class RunAi(Clients):
    PROGRAM = """
import hashlib, json, os, sys
import torch
from runai_model_streamer import SafetensorsStreamer, list_safetensors, pull_files
root, out = sys.argv[1:3]
names = list_safetensors(root)
told = {"names": sorted(os.path.basename(name) for name in names), "tensors": {}}
with SafetensorsStreamer() as streamer:
    streamer.stream_files(names)
    for name, tensor in streamer.get_tensors():
        told["tensors"][name] = hashlib.sha256(
            tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()).hexdigest()
pull_files(root, out, allow_pattern=["*.json"])
print(json.dumps(told))
"""

    def tensors(self, view):
        """Digests of the tensors of the exported files, by name."""
        found = {}
        for path in self.exported[view].glob("*.safetensors"):
            data = path.read_bytes()
            size = int.from_bytes(data[:8], "little")
            for name, facts in json.loads(data[8:8 + size]).items():
                if name != "__metadata__":
                    begin, end = facts["data_offsets"]
                    found[name] = hashlib.sha256(data[8 + size + begin:8 + size + end]).hexdigest()
        return found

    @without_and_with_a_key
    def test_streams_tensors_as_vllm_has_it_do(self, server, url, keyed):
        for view in VIEWS:
            out = self.out / ("keyed" if keyed else "open") / view
            out.mkdir(parents=True)
            told = self.program(
                self.PROGRAM, f"s3://{server.bucket}/{view}", out, AWS_ENDPOINT_URL=url,
                RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING="0",
                **(self.keys(True) if keyed else {"RUNAI_STREAMER_S3_UNSIGNED": "1"}))
            self.assertEqual(told["tensors"], self.tensors(view))
            self.assertEqual(told["names"], sorted(
                path for path in self.expected[view] if path.endswith(".safetensors")))
            self.assertEqual(sha256(out / "config.json"), self.expected[view]["config.json"])


class Page(unittest.TestCase):
    def test_names_the_versions_that_are_read_with(self):
        rows = dict(re.findall(r"^\| `([\w-]+)` \| ([\w.-]+) \|",
                               (ROOT / "docs/SERVE.md").read_text(), re.M))
        pins = "".join((TESTS / f"requirements-{name}.txt").read_text() for name in ("hf", "serve"))
        wanted = dict(re.findall(r"^([\w-]+)(?:\[\w+\])?==(\S+)$", pins, re.M))
        for name in ("awscli", "boto3", "huggingface_hub", "runai-model-streamer", "tensorstore",
                     "transformers"):
            self.assertEqual(rows[name], wanted[name], name)


if __name__ == "__main__":
    unittest.main()
