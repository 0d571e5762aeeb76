"""`ckfs serve`: the bytes of the views over HTTP, S3, the hub's routes and Google Cloud Storage's."""

import base64
import contextlib
import datetime
import hashlib
import hmac
import http.client
import json
import select
import signal
import socket
import threading
import unittest
import urllib.parse
import xml.etree.ElementTree

import cli_support
from cli_support import LIMIT, start

VIEW = "bf16-safetensors"
SHARD = "model-00001-of-00002.safetensors"
SECRET = "not much of a secret"
NAMES = {"": "http://s3.amazonaws.com/doc/2006-03-01/"}


class Answer:
    def __init__(self, response, body):
        self.status = response.status
        self.headers = response.headers
        self.body = body

    def json(self):
        return json.loads(self.body)

    def xml(self, path):
        """The texts of the elements at `path`, whatever their namespace."""
        root = xml.etree.ElementTree.fromstring(self.body)
        steps = "/".join("{*}" + step for step in path.split("/"))
        return [element.text or "" for element in root.findall(steps)]


class Server:
    """A `ckfs serve` that serves."""

    def __init__(self, *words, listen="127.0.0.1:0", **options):
        self.process = start("serve", *words, "--listen", listen, **options)
        if not select.select([self.process.stdout], [], [], LIMIT)[0]:
            self.end()
            raise AssertionError("it does not serve")
        self.line = self.process.stdout.readline().decode()
        if not self.line:
            raise AssertionError(self.process.stderr.read())
        url = urllib.parse.urlsplit(self.line.strip())
        self.host, self.port, self.bucket = url.hostname, url.port, url.path.strip("/")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()

    def end(self, number=signal.SIGTERM):
        if self.process.stdout.closed:
            return self.process.returncode
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(LIMIT)
        finally:
            self.process.kill()
            self.process.wait()
            self.errors = self.process.stderr.read()
            self.process.stdout.close()
            self.process.stderr.close()

    def connection(self):
        return http.client.HTTPConnection(self.host, self.port, timeout=LIMIT)

    def ask(self, target, method="GET", connection=None, **headers):
        """Headers as keywords, with '_' for '-'."""
        with contextlib.ExitStack() as stack:
            if connection is None:
                connection = stack.enter_context(contextlib.closing(self.connection()))
            connection.request(method, target, headers={
                name.replace("_", "-"): value for name, value in headers.items()})
            response = connection.getresponse()
            return Answer(response, response.read())

    def list(self, **parameters):
        query = urllib.parse.urlencode({"list-type": 2, **{
            name.replace("_", "-"): value for name, value in parameters.items()}})
        return self.ask(f"/{self.bucket}?{query}")

    def raw(self, request, until=None):
        """What comes back for those bytes, up to the end of the connection."""
        with socket.create_connection((self.host, self.port), timeout=LIMIT) as connection:
            connection.sendall(request)
            got = b""
            while piece := connection.recv(65536):
                got += piece
                if until and until in got:
                    break
            return got


def sign(method, host, path, query="", key=("me", SECRET), when=None, payload="UNSIGNED-PAYLOAD",
         **headers):
    """Headers with a signature of AWS's version 4, made as its manual says and not by ckfs's code. Of a
    payload in bytes the hash is signed, and not sent."""
    now = when or datetime.datetime.now(datetime.timezone.utc)
    stamp, day = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
    headers = {**headers, "host": host, "x-amz-date": stamp}
    if isinstance(payload, bytes):
        payload = hashlib.sha256(payload).hexdigest()
    else:
        headers["x-amz-content-sha256"] = payload
    names = sorted(headers)
    canonical = "\n".join([
        method, path, "&".join(sorted(query.split("&"))) if query else "",
        *(f"{name}:{headers[name]}" for name in names), "", ";".join(names), payload])
    scope = f"{day}/eu-north-1/s3/aws4_request"
    text = "\n".join(["AWS4-HMAC-SHA256", stamp, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    secret = ("AWS4" + key[1]).encode()
    for part in scope.split("/"):
        secret = hmac.new(secret, part.encode(), hashlib.sha256).digest()
    signature = hmac.new(secret, text.encode(), hashlib.sha256).hexdigest()
    headers["Authorization"] = (f"AWS4-HMAC-SHA256 Credential={key[0]}/{scope}, "
                                f"SignedHeaders={';'.join(names)}, Signature={signature}")
    del headers["host"]
    return headers


class Base(cli_support.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.server = Server(cls.source)
        cls.addClassCleanup(cls.server.end)
        cls.root = f"/{cls.server.bucket}"

    def bytes_of(self, key):
        """By `ckfs cat`."""
        return self.done("cat", self.source, key)


class Files(Base):
    def test_the_bucket_is_the_sources_last_name(self):
        self.assertEqual(self.server.bucket, "model")

    def test_a_file_has_the_bytes_that_cat_prints(self):
        for key in (f"{VIEW}/{SHARD}", f"{VIEW}/config.json", "source/assets/notes/read.txt",
                    f"fp32-safetensors/{SHARD}"):
            answer = self.server.ask(f"{self.root}/{key}")
            self.assertEqual((answer.status, answer.body), (200, self.bytes_of(key)), key)
            self.assertEqual(answer.headers["Content-Length"], str(len(answer.body)))
            self.assertEqual(answer.headers["Accept-Ranges"], "bytes")

    def test_a_view_with_parameters_has_its_files(self):
        key = f"{VIEW}@max_shard=1MB/model.safetensors.index.json"
        whole = self.bytes_of(key)
        for spelling in (key, key.replace("@", "%40").replace("=", "%3D")):
            answer = self.server.ask(f"{self.root}/{spelling}")
            self.assertEqual((answer.status, answer.body), (200, whole), spelling)

    def test_ranges(self):
        key = f"{VIEW}/{SHARD}"
        whole = self.bytes_of(key)
        size = len(whole)
        for text, begin, end in [
                ("bytes=0-0", 0, 1), ("bytes=5-262148", 5, 262149), ("bytes=7-", 7, size),
                ("bytes=-9", size - 9, size), (f"bytes=0-{size * 2}", 0, size),
                (f"bytes=-{size * 2}", 0, size), (f"bytes=0-{'9' * 40}", 0, size)]:
            answer = self.server.ask(f"{self.root}/{key}", Range=text)
            self.assertEqual((answer.status, answer.body), (206, whole[begin:end]), text)
            self.assertEqual(answer.headers["Content-Range"], f"bytes {begin}-{end - 1}/{size}")
        for text in ("bytes=1-0", "bytes=a-b", "lines=0-1", "bytes=0-1,3-4", "bytes=-", "bytes=+1-2"):
            answer = self.server.ask(f"{self.root}/{key}", Range=text)
            self.assertEqual((answer.status, answer.body), (200, whole), text)
        for text in (f"bytes={size}-", "bytes=-0", f"bytes={'9' * 40}-"):
            answer = self.server.ask(f"{self.root}/{key}", Range=text)
            self.assertEqual(answer.status, 416, text)
            self.assertEqual(answer.headers["Content-Range"], f"bytes */{size}")

    def test_head_says_what_get_gives(self):
        target = f"{self.root}/{VIEW}/{SHARD}"
        get, head = self.server.ask(target), self.server.ask(target, "HEAD")
        self.assertEqual((head.status, head.body), (200, b""))
        for name in ("Content-Length", "ETag", "Last-Modified", "Content-Type"):
            self.assertEqual(head.headers[name], get.headers[name])
        self.assertEqual(head.headers["Last-Modified"], "Tue, 14 Nov 2023 22:13:20 GMT")

    def test_conditions(self):
        target = f"{self.root}/{VIEW}/config.json"
        tag = self.server.ask(target, "HEAD").headers["ETag"]
        self.assertRegex(tag, r'\A"[0-9a-f]{40}"\Z')
        before, after = "Tue, 14 Nov 2023 22:13:19 GMT", "Tue, 14 Nov 2023 22:13:20 GMT"
        other = '"0123"'
        for status, headers in [
                (200, {"If_Match": tag}), (200, {"If_Match": f"{other}, {tag}"}), (200, {"If_Match": "*"}),
                (200, {"If_Match": tag.strip('"')}),
                (412, {"If_Match": other}), (412, {"If_Match": "W/" + tag}),
                (304, {"If_None_Match": tag}), (304, {"If_None_Match": "W/" + tag}),
                (304, {"If_None_Match": "*"}), (200, {"If_None_Match": other}),
                (304, {"If_Modified_Since": after}), (200, {"If_Modified_Since": before}),
                (200, {"If_Modified_Since": "yesterday"}),
                (412, {"If_Unmodified_Since": before}), (200, {"If_Unmodified_Since": after}),
                (200, {"If_None_Match": other, "If_Modified_Since": after}),
                (412, {"If_Match": other, "If_None_Match": tag}),
                (206, {"Range": "bytes=0-0", "If_Range": tag}),
                (200, {"Range": "bytes=0-0", "If_Range": other}),
                (200, {"Range": "bytes=0-0", "If_Range": "W/" + tag}),
                (206, {"Range": "bytes=0-0", "If_Range": after}),
                (200, {"Range": "bytes=0-0", "If_Range": before})]:
            answer = self.server.ask(target, **headers)
            self.assertEqual(answer.status, status, headers)
            if status == 304:
                self.assertEqual((answer.body, answer.headers["ETag"]), (b"", tag))

    def test_etags_are_those_of_another_server_and_differ_by_view(self):
        targets = [f"{self.root}/{view}/{name}" for view in (VIEW, "fp32-safetensors", "source")
                   for name in ("config.json", SHARD)]
        tags = [self.server.ask(target, "HEAD").headers["ETag"] for target in targets]
        self.assertEqual(len(set(tags)), len(tags))
        with Server(self.source, "--memory", "64MiB", "--threads", "1") as other:
            self.assertEqual([other.ask(target, "HEAD").headers["ETag"] for target in targets], tags)

    def test_a_file_is_of_no_type_that_a_browser_runs(self):
        for key, kind in [(f"{VIEW}/config.json", "application/json"),
                          (f"{VIEW}/{SHARD}", "application/octet-stream"),
                          ("source/assets/notes/read.txt", "text/plain; charset=utf-8")]:
            answer = self.server.ask(f"{self.root}/{key}", "HEAD")
            self.assertEqual((answer.headers["Content-Type"], answer.headers["X-Content-Type-Options"]),
                             (kind, "nosniff"))

    def test_many_requests_share_a_connection(self):
        with contextlib.closing(self.server.connection()) as connection:
            for _ in range(3):
                answer = self.server.ask(f"{self.root}/{VIEW}/config.json", connection=connection)
                self.assertEqual(answer.status, 200)
                self.assertEqual(
                    self.server.ask(f"{self.root}/nothing", connection=connection).status, 404)

    def test_requests_that_come_together_are_answered_in_their_order(self):
        line = f"GET {self.root}/{VIEW}/config.json HTTP/1.1\r\nHost: localhost\r\nRange: bytes=%d-%d\r\n\r\n"
        got = self.server.raw((line % (0, 0) + line % (2, 2)).encode() +
                              b"GET /nothing HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        self.assertEqual([part.split(b" ")[0] for part in got.split(b"HTTP/1.1 ")[1:]],
                         [b"206", b"206", b"404"])

    def test_targets_in_absolute_form_and_old_clients(self):
        path = f"{self.root}/{VIEW}/config.json"
        whole = self.bytes_of(f"{VIEW}/config.json")
        for request in (f"GET http://localhost:1{path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
                        f"GET {path} HTTP/1.0\r\n\r\n"):
            got = self.server.raw(request.encode())
            self.assertRegex(got, rb"\AHTTP/1.1 200 ")
            self.assertEqual(got.split(b"\r\n\r\n", 1)[1], whole)

    def test_many_readers_of_ranges_at_once(self):
        key = f"fp32-safetensors/{SHARD}"
        whole = self.bytes_of(key)
        wrong = []

        def read(number):
            with contextlib.closing(self.server.connection()) as connection:
                for begin in range(number * 1000, len(whole), 400_000):
                    end = min(begin + 300_000, len(whole))
                    answer = self.server.ask(f"{self.root}/{key}", connection=connection,
                                             Range=f"bytes={begin}-{end - 1}")
                    if (answer.status, answer.body) != (206, whole[begin:end]):
                        wrong.append((begin, answer.status))

        threads = [threading.Thread(target=read, args=(number,)) for number in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT)
        self.assertEqual(wrong, [])

    def test_a_source_that_changed_is_an_error_and_no_bytes(self):
        checkpoint = cli_support.Checkpoint(self.directory / "changing", megabytes=1)
        with Server(checkpoint.path) as server:
            target = f"/changing/{VIEW}/{SHARD}"
            self.assertEqual(server.ask(target).status, 200)
            with open(checkpoint.shard(0), "r+b") as file:
                file.truncate(1000)
            answer = server.ask(target, Range="bytes=300000-300100")
            self.assertEqual(answer.status, 500)
            self.assertRegex(answer.body, rb"\A[^\n]+\n\Z")
            # Where the head is sent before the error is found, the connection breaks.
            with self.assertRaises((http.client.IncompleteRead, ConnectionError, AssertionError)):
                self.assertEqual(server.ask(target).status, 200)


class S3(Base):
    def keys(self, **parameters):
        """All keys and common prefixes, over all pages."""
        keys, prefixes, token = [], [], {}
        while True:
            page = self.server.list(**parameters, **token)
            self.assertEqual(page.status, 200, page.body)
            keys += page.xml("Contents/Key")
            prefixes += page.xml("CommonPrefixes/Prefix")
            if page.xml("IsTruncated") == ["false"]:
                return keys, prefixes
            token = {"continuation_token": page.xml("NextContinuationToken")[0]}

    def listed(self):
        """All keys of views without parameters, by `ckfs ls`."""
        keys = []

        def walk(where):
            for entry in json.loads(self.done("ls", "--json", self.source, *([where] if where else [])))["entries"]:
                path = f"{where}/{entry['path']}" if where else entry["path"]
                if entry["type"] == "directory":
                    walk(path)
                else:
                    keys.append(path)

        walk("")
        return sorted(keys)

    def test_lists_all_keys_in_pages_of_any_size(self):
        everything = self.listed()
        self.assertEqual(self.keys()[0], everything)
        self.assertEqual(self.keys(max_keys=1)[0], everything)
        self.assertEqual(self.keys(max_keys=7)[0], everything)

    def test_prefixes_delimiters_and_beginnings_are_those_of_a_sorted_list(self):
        everything = self.listed()
        for prefix in ("", VIEW, VIEW + "/", VIEW + "/model-0", "source/assets/", "source/a", "f", "zzz"):
            for delimiter in ("", "/", "-", "o", "safetensors"):
                for after in ("", VIEW, "source/", "source/config.json", "z"):
                    keys, prefixes = [], []
                    for key in everything:
                        if not key.startswith(prefix):
                            continue
                        at = key.find(delimiter, len(prefix)) if delimiter else -1
                        common = key[:at + len(delimiter)] if at >= 0 else None
                        if (common or key) <= after:
                            continue
                        if common is None:
                            keys.append(key)
                        elif common not in prefixes:
                            prefixes.append(common)
                    for most in (1000, 2):
                        self.assertEqual(
                            self.keys(prefix=prefix, delimiter=delimiter, start_after=after,
                                      max_keys=most), (keys, prefixes), (prefix, delimiter, after))

    def test_a_view_with_parameters_is_listed_by_its_prefix_alone(self):
        name = f"{VIEW}@max_shard=1MB"
        keys, _ = self.keys(prefix=name + "/")
        self.assertIn(f"{name}/model.safetensors.index.json", keys)
        self.assertNotIn(name + "/", self.keys(delimiter="/")[1])
        self.assertEqual(self.keys(prefix=f"{VIEW}@no_such=1/"), ([], []))

    def test_an_entry_says_what_head_says(self):
        page = self.server.list(prefix=f"{VIEW}/{SHARD}")
        head = self.server.ask(f"{self.root}/{VIEW}/{SHARD}", "HEAD")
        self.assertEqual(page.xml("Contents/Size"), [head.headers["Content-Length"]])
        self.assertEqual(page.xml("Contents/ETag"), [head.headers["ETag"]])
        self.assertEqual(page.xml("Contents/LastModified"), ["2023-11-14T22:13:20.000Z"])

    def test_the_older_list_has_markers(self):
        first = self.server.ask(f"{self.root}?max-keys=3&encoding-type=url")
        rest = self.server.ask(f"{self.root}?encoding-type=url&marker=" +
                               urllib.parse.quote(first.xml("NextMarker")[0], safe=""))
        self.assertEqual(first.xml("Contents/Key") + rest.xml("Contents/Key"), self.listed())

    def test_buckets_and_what_is_known_of_one(self):
        self.assertEqual(self.server.ask("/?x-id=ListBuckets").xml("Buckets/Bucket/Name"), ["model"])
        self.assertEqual(self.server.ask(self.root, "HEAD").status, 200)
        self.assertEqual(self.server.ask("/other", "HEAD").status, 404)
        self.assertEqual(self.server.ask(f"{self.root}?location").status, 200)
        self.assertEqual(self.server.ask(f"{self.root}/?acl").status, 501)

    def test_errors_are_s3s_for_its_clients(self):
        for target, status, code in [
                (f"{self.root}/{VIEW}/nothing", 404, "NoSuchKey"),
                (f"{self.root}/{VIEW}", 404, "NoSuchKey"),
                (f"{self.root}/no-such-view/x", 404, "NoSuchKey"),
                ("/other/key", 404, "NoSuchBucket")]:
            answer = self.server.ask(target, x_amz_checksum_mode="ENABLED")
            self.assertEqual((answer.status, answer.xml("Code")), (status, [code]), target)
        self.assertEqual(self.server.list(continuation_token="xyz").xml("Code"), ["InvalidArgument"])

    def test_the_bucket_may_be_in_the_hosts_name(self):
        answer = self.server.ask(f"/{VIEW}/config.json", Host="model.localhost:9000")
        self.assertEqual((answer.status, answer.body), (200, self.bytes_of(f"{VIEW}/config.json")))

    def test_nothing_can_be_written(self):
        for method in ("PUT", "POST", "DELETE", "PATCH", "OPTIONS", "TRACE"):
            answer = self.server.ask(f"{self.root}/{VIEW}/config.json", method)
            self.assertEqual(answer.status, 405, method)
            self.assertEqual(answer.headers["Allow"], "GET, HEAD")


class Pages(Base):
    def test_directories_are_pages_of_links(self):
        for target, links in [("/", ["model/"]), (f"{self.root}/source/assets/", ["../", "notes/"]),
                              (f"{self.root}/source/assets/notes/", ["../", "read.txt"])]:
            answer = self.server.ask(target)
            self.assertEqual(answer.status, 200)
            self.assertTrue(answer.headers["Content-Type"].startswith("text/html"))
            found = [part.split('"')[0] for part in answer.body.decode().split('<a href="')[1:]]
            self.assertEqual(found, links, target)

    def test_a_directory_without_its_slash_leads_there(self):
        for path in ("", f"/{VIEW}", "/source/assets"):
            answer = self.server.ask(self.root + path)
            self.assertEqual((answer.status, answer.headers["Location"]), (301, self.root + path + "/"))

    def test_a_directory_is_no_file_for_those_that_ask_whether_it_is_one(self):
        """rclone, by S3 without a key."""
        for path in (f"/{VIEW}", "/source/assets"):
            self.assertEqual(self.server.ask(self.root + path, "HEAD").status, 404)

    def test_metrics_are_those_of_a_mount(self):
        answer = self.server.ask("/.ckfs/metrics")
        self.assertIn(b"ckfs_", answer.body)
        self.assertEqual(self.server.ask("/.ckfs/status.json").json()["pid"], self.server.process.pid)


class Hub(Base):
    API = f"/api/models/ckfs/{VIEW}"

    def test_a_model_is_a_view(self):
        files = [line.split("/", 1)[1] for line in
                 self.server.list(prefix=VIEW + "/").xml("Contents/Key")]
        for target in (self.API, self.API + "/revision/main"):
            model = self.server.ask(target).json()
            self.assertEqual(model["id"], f"ckfs/{VIEW}")
            self.assertRegex(model["sha"], r"\A[0-9a-f]{40}\Z")
            self.assertEqual([each["rfilename"] for each in model["siblings"]], files)
        tree = self.server.ask(f"{self.API}/tree/{model['sha']}?recursive=true&expand=false").json()
        self.assertEqual([each["path"] for each in tree], files)

    def test_a_file_by_branch_and_by_commit(self):
        sha = self.server.ask(self.API).json()["sha"]
        for revision in ("main", sha):
            answer = self.server.ask(f"/ckfs/{VIEW}/resolve/{revision}/config.json")
            self.assertEqual((answer.status, answer.body), (200, self.bytes_of(f"{VIEW}/config.json")))
            self.assertEqual(answer.headers["X-Repo-Commit"], sha)

    def test_parameters_are_a_revision(self):
        model = self.server.ask(f"{self.API}/revision/max_shard%3D1MB").json()
        self.assertNotEqual(model["sha"], self.server.ask(self.API).json()["sha"])
        name = "model.safetensors.index.json"
        answer = self.server.ask(f"/ckfs/{VIEW}/resolve/{model['sha']}/{name}")
        self.assertEqual(answer.body, self.bytes_of(f"{VIEW}@max_shard=1MB/{name}"))

    def test_what_is_missing_has_the_code_that_clients_look_for(self):
        for target, code in [("/api/models/ckfs/none", "RepoNotFound"),
                             ("/api/models/other/model", "RepoNotFound"),
                             (f"{self.API}/revision/{'0' * 40}", "RevisionNotFound"),
                             (f"/ckfs/{VIEW}/resolve/main/none.json", "EntryNotFound")]:
            answer = self.server.ask(target)
            self.assertEqual((answer.status, answer.headers["X-Error-Code"]), (404, code), target)


class GoogleCloudStorage(Base):
    OBJECTS = "/storage/v1/b/model/o"

    def test_lists_between_two_names(self):
        page = self.server.ask(f"{self.OBJECTS}?startOffset={VIEW}%2Fd&endOffset={VIEW}%2Fz").json()
        names = [item["name"] for item in page["items"]]
        self.assertEqual(names, [key for key in self.server.list().xml("Contents/Key")
                                 if f"{VIEW}/d" <= key < f"{VIEW}/z"])
        name = f"{VIEW}@max_shard=1MB"
        page = self.server.ask(f"{self.OBJECTS}?startOffset={urllib.parse.quote(name + '/', safe='')}"
                               f"&endOffset={urllib.parse.quote(name + '0', safe='')}").json()
        self.assertIn(f"{name}/model.safetensors.index.json", [item["name"] for item in page["items"]])
        page = self.server.ask(f"{self.OBJECTS}?startOffset={urllib.parse.quote(name + '/', safe='')}"
                               "&endOffset=z").json()
        self.assertFalse([item["name"] for item in page["items"] if "@" in item["name"]])
        page = self.server.ask(f"{self.OBJECTS}?delimiter=%2F&maxResults=1").json()
        self.assertEqual(len(page["prefixes"]), 1)
        second = self.server.ask(f"{self.OBJECTS}?delimiter=%2F&pageToken={page['nextPageToken']}").json()
        self.assertIn("source/", second["prefixes"])
        self.assertNotIn(page["prefixes"][0], second["prefixes"])

    def test_an_object_its_bytes_and_its_generation(self):
        name = urllib.parse.quote(f"{VIEW}/config.json", safe="")
        whole = self.bytes_of(f"{VIEW}/config.json")
        known = self.server.ask(f"{self.OBJECTS}/{name}").json()
        self.assertEqual((known["name"], known["size"]), (f"{VIEW}/config.json", str(len(whole))))
        generation = known["generation"]
        for prefix in ("", "/download"):
            answer = self.server.ask(f"{prefix}{self.OBJECTS}/{name}?alt=media", Range="bytes=1-2")
            self.assertEqual((answer.status, answer.body), (206, whole[1:3]))
            self.assertEqual(answer.headers["x-goog-generation"], generation)
        for query, status in [(f"generation={generation}", 200), ("generation=7", 404),
                              (f"ifGenerationMatch={generation}", 200), ("ifGenerationMatch=7", 412),
                              (f"ifGenerationNotMatch={generation}", 304)]:
            self.assertEqual(
                self.server.ask(f"{self.OBJECTS}/{name}?alt=media&{query}").status, status, query)
        self.assertEqual(self.server.ask(f"{self.OBJECTS}/none?alt=media").json()["error"]["code"], 404)


class Keys(cli_support.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        key = cls.source.parent / "key"
        key.write_text(f"me:{SECRET}\n")
        cls.server = Server(cls.source, "--key-file", key)
        cls.addClassCleanup(cls.server.end)
        cls.host = f"127.0.0.1:{cls.server.port}"

    def signed(self, path, query="", method="GET", target=None, **options):
        headers = sign(method, self.host, path, query, **options)
        return self.server.ask(target or path + ("?" + query if query else ""), method, **headers)

    def test_without_a_key_nothing_is_told(self):
        for target in ("/", "/model", "/model/source/config.json", "/api/models/ckfs/source",
                       "/.ckfs/metrics", "/storage/v1/b/model/o", "/nothing"):
            answer = self.server.ask(target)
            self.assertEqual((answer.status, answer.headers["WWW-Authenticate"]),
                             (401, 'Basic realm="ckfs"'), target)
            self.assertNotIn(b"config", answer.body)
        self.assertEqual(self.server.ask("/.ckfs/health").body, b"ok\n")  # for probes

    def test_signatures_are_checked(self):
        path, query = "/model/source/config.json", "list-type=2&prefix=source%2Fa%3D%2B%20b"
        self.assertEqual(self.signed(path).status, 200)
        self.assertEqual(self.signed(path, payload=b"").status, 200)
        self.assertEqual(self.signed(path, payload=b"x").status, 403)
        self.assertEqual(self.signed("/model", query).status, 200)
        self.assertEqual(self.signed("/model", query, target="/model?prefix=source%2Fa%3d%2b%20b&list-type=2")
                         .status, 200)
        old = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(minutes=16)
        for code, answer in [
                ("SignatureDoesNotMatch", self.signed(path, key=("me", "another"))),
                ("InvalidAccessKeyId", self.signed(path, key=("you", SECRET))),
                ("SignatureDoesNotMatch", self.signed(path, target="/model/source/tokenizer.json")),
                ("SignatureDoesNotMatch", self.signed("/model", "list-type=2", target="/model?list-type=2&x=1")),
                ("RequestTimeTooSkewed", self.signed(path, when=old))]:
            self.assertEqual((answer.status, answer.xml("Code")), (403, [code]))
        headers = sign("GET", self.host, path)
        headers["Authorization"] = headers["Authorization"].replace("host;", "")
        self.assertEqual(self.server.ask(path, **headers).status, 403)

    def test_a_range_that_is_signed_is_the_one_that_counts(self):
        path = "/model/source/config.json"
        headers = sign("GET", self.host, path, range="bytes=0-1")
        self.assertEqual(self.server.ask(path, **headers).status, 206)
        headers["range"] = "bytes=0-2"
        self.assertEqual(self.server.ask(path, **headers).status, 403)

    def test_the_secret_as_password_or_token(self):
        path = "/model/source/config.json"
        basic = base64.b64encode(f"me:{SECRET}".encode()).decode()
        wrong = base64.b64encode(b"me:other").decode()
        for value, status in [("Bearer " + SECRET, 200), ("Bearer x", 403), ("Basic " + basic, 200),
                              ("Basic " + wrong, 401), ("Basic !", 401), ("Digest x", 400)]:
            self.assertEqual(self.server.ask(path, Authorization=value).status, status, value)

    def test_a_presigned_url(self):
        path = "/model/source/config.json"
        for age, lives, status in [(0, 60, 200), (120, 60, 403), (3600, 7200, 200), (0, 700_000, 400)]:
            now = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(seconds=age)
            stamp, scope = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d/us-east-1/s3/aws4_request")
            query = "&".join(f"{name}={urllib.parse.quote(value, safe='')}" for name, value in [
                ("X-Amz-Algorithm", "AWS4-HMAC-SHA256"), ("X-Amz-Credential", f"me/{scope}"),
                ("X-Amz-Date", stamp), ("X-Amz-Expires", str(lives)), ("X-Amz-SignedHeaders", "host")])
            canonical = "\n".join(["GET", path, query, f"host:{self.host}", "", "host", "UNSIGNED-PAYLOAD"])
            text = "\n".join(["AWS4-HMAC-SHA256", stamp, scope,
                              hashlib.sha256(canonical.encode()).hexdigest()])
            secret = ("AWS4" + SECRET).encode()
            for part in scope.split("/"):
                secret = hmac.new(secret, part.encode(), hashlib.sha256).digest()
            signature = hmac.new(secret, text.encode(), hashlib.sha256).hexdigest()
            answer = self.server.ask(f"{path}?{query}&X-Amz-Signature={signature}")
            self.assertEqual(answer.status, status, (age, lives))

    def test_addresses_that_others_reach_need_one(self):
        for address in ("0.0.0.0:0", "[::]:0"):
            self.fails(1, r"is reached by other machines, so clients need a key \(--key-file FILE\)",
                       "serve", self.source, "--listen", address)
        with Server(self.source, "--key-file", self.source.parent / "key", listen="0.0.0.0:0") as server:
            self.assertEqual(server.ask("/").status, 401)
            self.assertEqual(server.ask("/", Authorization="Bearer " + SECRET).status, 200)

    def test_a_file_that_is_none_is_refused_and_not_shown(self):
        for text, pattern in [("nothing of the sort", "not a key pair"), ("me:short", "too short"),
                              (":no name of a key", "not a key pair")]:
            key = self.directory / "key"
            key.write_text(text)
            ended = self.fails(1, pattern, "serve", self.source, "--key-file", key)
            self.assertNotIn(text.encode(), ended.stderr)


class Clients(cli_support.TestCase):
    """That mean no good, or take their time."""

    def request(self, server, text):
        return server.raw(text.encode() if isinstance(text, str) else text)

    def test_what_is_no_request_is_refused(self):
        with Server(self.source) as server:
            for text, status in [
                    ("nonsense\r\n\r\n", 400), ("GET / HTTP/1.1\r\n\r\n", 400),
                    ("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
                    ("GET / HTTP/2.0\r\nHost: localhost\r\n\r\n", 505),
                    ("GET /%zz HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
                    ("GET /%00 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
                    ("GET * HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
                    ("GET / HTTP/1.1\r\nHost: localhost\r\nName : value\r\n\r\n", 400),
                    ("GET / HTTP/1.1\r\nHost: local host\r\n\r\n", 400),
                    (b"GET / HTTP/1.1\r\nHost: localhost\r\nA: \x00\r\n\r\n", 400),
                    ("GET /" + "a" * 20000 + " HTTP/1.1\r\n\r\n", 431),
                    ("GET / HTTP/1.1\r\nHost: localhost\r\n" + "A: b\r\n" * 200 + "\r\n", 431),
                    ("GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello", 200),
                    ("PUT /model/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello", 405)]:
                got = self.request(server, text)
                self.assertEqual(got.split(b" ")[1:2], [str(status).encode()], text[:60])
            self.assertEqual(server.ask("/").status, 200)

    def test_paths_lead_nowhere_else(self):
        with Server(self.source) as server:
            for path in ("/model/source/../../etc/passwd", "/model/source/%2e%2e/%2e%2e/etc/passwd",
                         "/../etc/passwd", "//etc/passwd", "/model//config.json", "/model/source//config.json",
                         "/model/../../../etc/passwd", "/model/source/./config.json"):
                self.assertEqual(server.ask(path).status, 404, path)

    def test_other_names_for_this_machine_are_not_taken(self):
        with Server(self.source) as server:
            for host, status in [("localhost", 200), ("127.0.0.1:80", 200), ("[::1]:1", 200),
                                 ("model.localhost", 404), ("evil.example", 421), ("10.0.0.1", 421)]:
                self.assertEqual(server.ask("/x" if status == 404 else "/", Host=host).status, status, host)

    def test_an_idle_client_makes_room_and_busy_ones_stay(self):
        with Server(self.source, "--clients", "3") as server:
            idle = [socket.create_connection((server.host, server.port), timeout=LIMIT) for _ in range(3)]
            try:
                self.assertEqual(server.ask("/").status, 200)
                self.assertEqual(server.ask("/").status, 200)
                self.assertEqual(idle[0].recv(1), b"")  # the one that was idle longest
            finally:
                for connection in idle:
                    connection.close()

    def test_a_client_that_takes_nothing_holds_up_no_other(self):
        with Server(self.source, "--memory", "64MiB") as server:
            target = f"/model/fp32-safetensors/{SHARD}"
            whole = self.done("cat", self.source, target[len("/model/"):])
            slow = []
            try:
                for _ in range(40):
                    connection = socket.create_connection((server.host, server.port), timeout=LIMIT)
                    connection.sendall(f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
                    slow.append(connection)
                for connection in slow:
                    self.assertEqual(connection.recv(8), b"HTTP/1.1")
                self.assertEqual(server.ask(target).body, whole)
                # And it still gets all of its bytes when it takes them.
                got = b""
                while len(got) < len(whole):
                    piece = slow[0].recv(1 << 20)
                    self.assertTrue(piece)
                    got += piece
                self.assertIn(whole[-1000:], got)
            finally:
                for connection in slow:
                    connection.close()

    def test_a_signal_ends_it(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            with Server(self.source) as server:
                idle = socket.create_connection((server.host, server.port))
                self.assertEqual(server.ask("/").status, 200)
                self.assertEqual(server.end(number), 0)
                idle.close()

    def test_names_that_are_no_bucket_are_refused(self):
        for name, pattern in [("ab", "is not a name"), ("UPPER", "is not a name"), ("a/b", "is not a name"),
                              ("api", "another route"), ("ckfs", "another route")]:
            self.fails(1, pattern, "serve", self.source, "--bucket", name)
        with Server(self.source, "--bucket", "other.name-2") as server:
            self.assertEqual(server.ask("/other.name-2/source/config.json").status, 200)

    def test_an_address_that_is_taken_or_none_is_refused(self):
        with Server(self.source) as server:
            self.fails(1, "bind", "serve", self.source, "--listen", f"127.0.0.1:{server.port}")
        for address in ("9000", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:70000", ":9000"):
            self.fails(1, "listen: ", "serve", self.source, "--listen", address)


class Walls(cli_support.TestCase):
    def test_it_is_confined_as_a_mounts_daemon_is(self):
        with Server(self.source) as server:
            self.assertEqual(server.ask("/model/source/config.json").status, 200)
            status = open(f"/proc/{server.process.pid}/status", encoding="ascii").read()
            self.assertRegex(status, r"(?m)^Seccomp:\t2$")
            self.assertRegex(status, r"(?m)^NoNewPrivs:\t1$")
        with Server(self.source, "--no-sandbox") as server:
            status = open(f"/proc/{server.process.pid}/status", encoding="ascii").read()
            self.assertRegex(status, r"(?m)^Seccomp:\t0$")


if __name__ == "__main__":
    unittest.main()
