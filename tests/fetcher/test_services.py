#!/usr/bin/python3
"""Each service is listed, pinned and read bit for bit, and refuses in words that say what to do."""
import os
import pathlib
import unittest

from remote import Servers, probe


class Services(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.servers = Servers("--secret", "hush")
        cls.keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "hush"}
        cls.environment = cls.servers.environment(**cls.keys)

    @classmethod
    def tearDownClass(cls):
        cls.servers.__exit__()

    def setUp(self):
        self.servers.faults()
        self.servers.control("/reset")

    def source(self, service):
        folder = self.servers.root / self.servers.folders[service]
        return {path.relative_to(folder).as_posix(): path.read_bytes()
                for path in folder.rglob("*") if path.is_file()}

    def test_a_directory_is_read_bit_for_bit(self):
        for service in ("hub", "s3", "gcs"):
            with self.subTest(service):
                answer = probe(self.environment, self.servers.locations()[service], "copy",
                               piece=100_000, stats=1)
                self.assertEqual(answer.status, 0, answer.error)
                self.assertEqual(answer.out, self.source(service))
                self.assertEqual({name: each["size"] for name, each in answer.objects.items()},
                                 self.servers.files)
                self.assertFalse(answer.head["is_file"])
                self.assertTrue(answer.head["is_pinned"])
                wanted = sum(self.servers.files.values())
                self.assertEqual(answer.stats["wanted"], wanted)
                self.assertEqual(answer.stats["retries"], 0)

    def test_one_object_is_a_file(self):
        name = "te/model.safetensors"
        locations = {"hub": f"hf://org/model/{name}", "s3": f"s3://bucket/run/model/{name}",
                     "gcs": f"gs://bucket/run/model/{name}",
                     "web": f"{self.servers.url('web')}/model/{name}"}
        for service, location in locations.items():
            with self.subTest(service):
                answer = probe(self.environment, location, "copy", piece=10_000)
                self.assertEqual(answer.status, 0, answer.error)
                self.assertTrue(answer.head["is_file"])
                self.assertEqual(answer.out, {"model.safetensors": self.source(service)[name]})

    def test_a_folder_of_a_repository_or_bucket_is_one(self):
        for service, location in self.servers.locations().items():
            if service == "web":
                continue
            answer = probe(self.environment, location + "/te", "copy")
            self.assertEqual(answer.status, 0, answer.error)
            self.assertEqual(list(answer.out), ["model.safetensors"])
            self.assertFalse(answer.head["is_file"])

    def test_the_hub_pins_a_commit_and_is_asked_once_a_file(self):
        answer = probe(self.environment, "hf://org/model@v1", "copy", piece=50_000)
        self.assertEqual(answer.status, 0, answer.error)
        self.assertRegex(answer.head["pinned"], r"^hf://org/model@[0-9a-f]{40}$")
        self.assertEqual(answer.head["time"], 1709164800)
        counts = self.servers.counts()
        self.assertEqual(counts["hub"]["resolves"], len(self.servers.files) - 1)  # one is empty
        self.assertGreater(counts["cdn"]["requests"], 60)
        large = answer.objects["te/model.safetensors"]
        self.assertEqual(large["hash"], "sha256:" + large["version"])

    def test_a_signed_url_that_has_ended_is_asked_for_again(self):
        self.servers.faults(url_life=0)
        answer = probe(self.environment, "hf://org/model/te/model.safetensors", "copy")
        self.assertEqual(answer.status, 1)
        self.assertIn("403 AccessDenied: Request has expired", answer.error)
        self.servers.faults([{"service": "cdn", "kind": "403", "count": 1}])
        answer = probe(self.environment, "hf://org/model/te/model.safetensors", "copy")
        self.assertEqual(answer.status, 0, answer.error)

    def test_a_renamed_repository_is_found(self):
        answer = probe(self.environment, "hf://old/model", "copy")
        self.assertEqual(answer.status, 0, answer.error)
        self.assertEqual(answer.out, self.source("hub"))

    def test_the_hubs_refusals_say_what_to_do(self):
        for location, says in (
                ("hf://org/none", "404: Repository not found"),
                ("hf://org/model@none", 'no such revision: "none"'),
                ("hf://org/model/none", "no object has that name, or a name below it")):
            answer = probe(self.environment, location)
            self.assertEqual(answer.status, 1)
            self.assertIn(says, answer.error)
        offline = probe({**self.environment, "HF_HUB_OFFLINE": "1"}, "hf://org/model")
        self.assertIn("HF_HUB_OFFLINE is set", offline.error)

    def test_a_token_is_for_the_hub_and_not_for_where_it_leads(self):
        # The stand-in of the CDN refuses a request with one.
        path = pathlib.Path(self.servers.root, "token")
        path.write_text("hf_secret\n")
        for more in ({"HF_TOKEN": "hf_secret"}, {"HF_TOKEN_PATH": str(path)}):
            with Servers("--token", "hf_secret") as servers:
                answer = probe(servers.environment(**more), "hf://org/model", "copy")
                self.assertEqual(answer.status, 0, answer.error)
                self.assertNotIn("hf_secret", answer.error)
                refused = probe(servers.environment(), "hf://org/model")
                self.assertIn("private or gated (set HF_TOKEN, or run hf auth login)",
                              refused.error)

    def test_s3_wants_keys_that_are_right(self):
        wrong = probe({**self.environment, "AWS_SECRET_ACCESS_KEY": "other"},
                      "s3://bucket/run/model")
        self.assertEqual(wrong.status, 1)
        self.assertIn("403 SignatureDoesNotMatch", wrong.error)
        self.assertNotIn("other", wrong.error)
        none = probe(self.servers.environment(), "s3://bucket/run/model")
        self.assertIn("no AWS credentials", none.error)
        self.assertIn("NoSuchBucket", probe(self.environment, "s3://none/x").error)

    def test_a_prefix_is_a_directory_and_nothing_beside_it(self):
        for location in ("s3://bucket/run/mode", "gs://bucket/run/mode"):
            answer = probe(self.environment, location)
            self.assertEqual(answer.status, 1)
            self.assertIn("no object has that name, or a name below it", answer.error)

    def test_a_web_directory_is_what_its_index_names(self):
        folder = pathlib.Path(self.servers.root, "web/indexed")
        folder.mkdir(exist_ok=True)
        (folder / "model.safetensors.index.json").write_text(
            '{"weight_map": {"a": "s-1.safetensors", "b": "sub/s-2.safetensors"}}')
        (folder / "sub").mkdir(exist_ok=True)
        (folder / "s-1.safetensors").write_bytes(b"one")
        (folder / "sub/s-2.safetensors").write_bytes(b"two")
        (folder / "config.json").write_bytes(b"{}")
        for way in ("", "/moved"):
            answer = probe(self.environment, self.servers.url("web") + way + "/indexed/", "copy")
            self.assertEqual(answer.status, 0, answer.error)
            self.assertEqual(set(answer.out), {"model.safetensors.index.json", "s-1.safetensors",
                                               "sub/s-2.safetensors", "config.json"})
            self.assertEqual(answer.out["sub/s-2.safetensors"], b"two")

    def test_a_web_server_without_ranges_is_refused_and_one_without_etags_is_not_pinned(self):
        url = self.servers.url("web")
        name = "model/model-00001-of-00002.safetensors"
        plain = probe(self.environment, f"{url}/plain/{name}")
        self.assertEqual(plain.status, 1)
        self.assertIn("the server sends no ranges", plain.error)
        tagless = probe(self.environment, f"{url}/tagless/{name}", "copy")
        self.assertEqual(tagless.status, 0, tagless.error)
        self.assertFalse(tagless.head["is_pinned"])

    def test_a_password_of_netrc_or_the_url_opens_a_web_server(self):
        host = "127.0.0.1:%d" % self.servers.ports["web"]
        name = "secret/model/config.json"
        self.assertIn("401", probe(self.environment, f"http://{host}/{name}").error)
        answer = probe(self.environment, f"http://me:pass%20word@{host}/{name}", "copy")
        self.assertEqual(answer.status, 0, answer.error)
        netrc = pathlib.Path(self.servers.root, "netrc")
        netrc.write_text("machine 127.0.0.1\n login me\n password wrong\n")
        answer = probe({**self.environment, "NETRC": str(netrc)}, f"http://{host}/{name}")
        self.assertIn("401", answer.error)


if __name__ == "__main__":
    unittest.main()
