#!/usr/bin/python3
"""The real services, for people: needs a network and a built ckfs with its fetcher, and is run by no
CI. What is public is asked for by default; more locations come from the environment:

    CKFS_BIN=build/release/ckfs CKFS_ONLINE="s3://bucket/model gs://bucket/model" \\
        python3 tests/online/test_services.py
"""
import hashlib
import json
import os
import pathlib
import re
import subprocess
import tempfile
import unittest
import urllib.parse
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
CKFS = os.environ.get("CKFS_BIN", str(ROOT / "build/release/ckfs"))
HUB = "hf-internal-testing/tiny-random-LlamaForCausalLM"
LOCATIONS = [f"hf://{HUB}", *os.environ.get("CKFS_ONLINE", "").split()]


def ckfs(*words, **more):
    return subprocess.run([CKFS, *map(str, words)], check=True, capture_output=True, timeout=600,
                          env={**os.environ, **more}).stdout


def digests(source, **more):
    told = json.loads(ckfs("digest", source, "source", "--json", "--progress", "none", **more))
    return {file["path"]: file["sha256"] for file in told["files"]}


class Services(unittest.TestCase):
    def setUp(self):
        work = tempfile.TemporaryDirectory()
        self.addCleanup(work.cleanup)
        self.cache = str(pathlib.Path(work.name) / "cache")

    def test_the_cache_gives_the_same_bytes_without_a_request(self):
        for location in LOCATIONS:
            with self.subTest(location):
                first = digests(location, CKFS_CACHE_DIR=self.cache)
                self.assertTrue(first)
                self.assertEqual(digests(location, CKFS_CACHE_DIR=self.cache, CKFS_OFFLINE="1"), first)
                self.assertEqual(digests(location, CKFS_CACHE_SIZE="0"), first)

    def test_files_of_the_hub_are_those_that_it_gives_to_others(self):
        report = ckfs("inspect", f"hf://{HUB}").decode()
        commit = re.search(r"version: hf://\S+@([0-9a-f]{40})", report)[1]
        for path, sum_of_it in digests(f"hf://{HUB}@{commit}", CKFS_CACHE_SIZE="0").items():
            url = f"https://huggingface.co/{HUB}/resolve/{commit}/{urllib.parse.quote(path)}"
            with urllib.request.urlopen(url) as answer:
                self.assertEqual(hashlib.sha256(answer.read()).hexdigest(), sum_of_it, path)


if __name__ == "__main__":
    unittest.main()
