#!/usr/bin/python3
"""A hub, S3, Google Cloud Storage and a web server on the loopback, with faults: the stand-ins that
tests of remote sources ask instead of the real ones. Standard library only.

    object_server.py --root DIR [--secret KEY] [--token TOKEN]

DIR has a folder for each service, and each of these what it serves:

    hub/ORG/NAME/...      a repository: one commit, `main`
    s3/BUCKET/...         objects; signatures are checked with the keys test/KEY, where --secret is given
    gcs/BUCKET/...        objects
    web/...               files; /plain/... has no ranges, /tagless/... no ETags, /moved/X leads to /X

It prints one line of JSON with the ports ({"hub": 1234, "cdn": ..., "s3": ...}) and serves until its
standard input ends. A port more, "control", takes faults and gives counts:

    POST /faults   {"delay_ms": 20, "rate": 50000000, "page": 1000, "rules": [{"service": "s3", "path": "REGEX",
                    "every": 100, "count": 5, "kind": "503"}]}
    GET  /counts   {"hub": {"requests": 9, "resolves": 3, ...}, "log": [["s3", "GET", "/b/k", 206], ...]}
    POST /touch    {"service": "s3", "path": "b/k"}   the object becomes another one of the same size,
                   until faults are set again

Kinds: a status (429 and 503 with Retry-After: 0; 403; 500), "cut" (half of the body), "stall" (half of
the body, and then nothing), "silent" (no answer at all), "swap" (the bytes and version of another
object of that size), "range" (a byte to the left of what was asked), "whole" (200 and everything).
"""
import argparse
import base64
import datetime
import hashlib
import hmac
import http.server
import json
import pathlib
import re
import socketserver
import sys
import threading
import time
import urllib.parse
from email.utils import formatdate
from xml.sax.saxutils import escape

PAGE = 3  # objects a page where faults say nothing else: every listing has several
COMMIT_TIME = "2024-02-29T00:00:00.000Z"


class State:
    """What all services share."""

    def __init__(self, root, secret, token):
        self.root = root
        self.secret = secret
        self.token = token
        self.lock = threading.Lock()
        self.faults = {"delay_ms": 0, "rate": 0, "page": PAGE, "rules": []}
        self.seen = {}      # id of a rule: how many requests it has matched
        self.counts = {}
        self.log = []
        self.versions = {}  # file: how often it was touched
        self.contents = {}
        self.ports = {}
        self.url_life = 3600
        self.signed = {}    # signature of a CDN URL: (file, end)
        self.stop = threading.Event()

    def count(self, service, what="requests"):
        with self.lock:
            its = self.counts.setdefault(service, {})
            its[what] = its.get(what, 0) + 1

    def fault(self, service, path):
        with self.lock:
            for number, rule in enumerate(self.faults["rules"]):
                if rule.get("service", service) != service:
                    continue
                if not re.search(rule.get("path", ""), path):
                    continue
                seen = self.seen[number] = self.seen.get(number, 0) + 1
                if seen % rule.get("every", 1) == 0:
                    if seen // rule.get("every", 1) <= rule.get("count", 1 << 60):
                        return rule["kind"]
        return None

    def data(self, file):
        """The bytes of a file as it is now: its first byte says how often it was touched."""
        return self.content(file)[0]

    def etag(self, file):
        return '"%s"' % self.content(file)[1]

    def content(self, file):
        """(bytes, their MD5), read once: a large file is asked for a thousand times."""
        touched = self.versions.get(file, 0)
        key = (touched, file.stat().st_mtime_ns)
        with self.lock:
            known = self.contents.get(file)
        if known is None or known[0] != key:
            data = file.read_bytes()
            if touched and data:
                data = bytes([(data[0] + touched) % 256]) + data[1:]
            known = (key, (data, md5(data)))
            with self.lock:
                self.contents[file] = known
        return known[1]

    def version(self, file):
        return self.versions.get(file, 0)


def commit_of(name):
    return hashlib.sha1(name.encode()).hexdigest()


def md5(data):
    return hashlib.md5(data).hexdigest()


CRC32C = [0] * 256
for _i in range(256):
    _crc = _i
    for _ in range(8):
        _crc = _crc >> 1 ^ (0x82F63B78 if _crc & 1 else 0)
    CRC32C[_i] = _crc


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data[:65536]:  # of small objects only: this is slow
        crc = crc >> 8 ^ CRC32C[(crc ^ byte) & 255]
    return crc ^ 0xFFFFFFFF


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    service = "?"
    state = None
    timeout = 600

    def log_message(self, *_):
        pass

    def setup(self):
        super().setup()
        self.connection.setsockopt(6, 1, 1)  # TCP_NODELAY

    def handle_one_request(self):
        try:
            super().handle_one_request()
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    # ---- Answers

    def answer(self, status, headers=None, body=b""):
        with self.state.lock:
            self.state.log.append([self.service, self.command, self.path, status])
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, str(value))
        if "Content-Length" not in (headers or {}):
            self.send_header("Content-Length", str(len(body)))
        self.send_header("x-amz-request-id", "REQUEST%d" % len(self.state.log))
        self.end_headers()
        if self.command != "HEAD":
            self.send_body(body)

    def send_body(self, body):
        rate = self.state.faults["rate"]
        if not rate:
            self.wfile.write(body)
            return
        began, sent = time.monotonic(), 0
        for at in range(0, len(body), 65536):
            piece = body[at:at + 65536]
            self.wfile.write(piece)
            sent += len(piece)
            # A delay, which is the fault: as much time as the rate gives these bytes.
            wait = began + sent / rate - time.monotonic()
            if wait > 0:
                time.sleep(wait)

    def answer_json(self, value, status=200, headers=None):
        self.answer(status, {"Content-Type": "application/json", **(headers or {})},
                    json.dumps(value).encode())

    def end_silently(self, headers, body):
        """Headers and half of the body, and then nothing until the test ends or the client goes."""
        self.send_response(206)
        for name, value in headers.items():
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(body[:len(body) // 2])
        self.wfile.flush()

    def answer_object(self, data, headers):
        """A range of an object, or all of it, with the fault that is due."""
        kind = self.fault
        headers = {"Accept-Ranges": "bytes", **headers}
        wanted = self.headers.get("Range")
        if wanted is None or kind == "whole":
            return self.answer(200, headers, data)
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", wanted)
        begin, end = int(match[1]), int(match[2] or len(data) - 1)
        if begin >= len(data):
            return self.answer(416, {"Content-Range": "bytes */%d" % len(data)})
        end = min(end, len(data) - 1)
        if kind == "range":
            begin, end = begin - 1, end - 1
        body = memoryview(data)[begin:end + 1]
        headers["Content-Range"] = "bytes %d-%d/%d" % (begin, end, len(data))
        headers["Content-Length"] = len(body)
        if kind in ("cut", "stall"):
            self.end_silently(headers, body)
            if kind == "stall":
                # Waits until the server ends or the client has gone: there is nothing to read.
                self.connection.settimeout(600)
                self.rfile.read(1)
            self.close_connection = True
            return None
        return self.answer(206, headers, body)

    def refuse(self, status, code="", message=""):
        self.answer_json({"error": message or code}, status)

    # ---- Requests

    def respond(self):
        state = self.state
        state.count(self.service)
        if state.faults["delay_ms"]:
            time.sleep(state.faults["delay_ms"] / 1000)  # the delay that the test wants
        self.url = urllib.parse.urlsplit(self.path)
        self.query = dict(urllib.parse.parse_qsl(self.url.query, keep_blank_values=True))
        self.fault = state.fault(self.service, self.path)
        if self.fault == "silent":
            self.rfile.read(1)
            self.close_connection = True
        elif self.fault and self.fault.isdigit():
            wait = {"Retry-After": "0"} if self.fault in ("429", "503") else {}
            self.answer(int(self.fault), wait, b"a fault of the test")
        else:
            self.serve()

    do_GET = do_HEAD = respond

    def serve(self):
        raise NotImplementedError

    def file(self, *parts):
        """The file of a name, or None: nothing outside the root."""
        path = self.state.root.joinpath(self.service, *parts).resolve()
        if path.is_file() and path.is_relative_to(self.state.root.resolve()):
            return path
        return None

    def tree(self, *parts):
        """{name: file} below a folder."""
        top = self.state.root.joinpath(self.service, *parts)
        return {file.relative_to(top).as_posix(): file
                for file in sorted(top.rglob("*")) if file.is_file()}


class Hub(Handler):
    service = "hub"

    def serve(self):
        if self.state.token and self.headers.get("Authorization") != "Bearer " + self.state.token:
            return self.answer_json({"error": "Invalid username or password."}, 401)
        path = urllib.parse.unquote(self.url.path)
        if re.match(r"(/api/models)?/old/", path):  # a repository that was renamed
            return self.answer(307, {"Location": self.path.replace("/old/", "/org/", 1)})
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/revision/(.+)", path):
            return self.revision(match[1], match[2])
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)", path):
            return self.revision(match[1], "main")
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/([^/]+)/?(.*)", path):
            return self.list_tree(match[1], match[2], match[3])
        if match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            return self.resolve(match[1], match[2], match[3])
        if match := re.fullmatch(r"/api/resolve-cache/models/([^/]+/[^/]+)/(\w{40})/(.+)", path):
            file = self.file(match[1], match[3])
            return self.answer_object(self.state.data(file), self.small_headers(match[1], file))
        return self.refuse(404, message="no such page")

    def small_headers(self, name, file):
        return {"ETag": '"%s"' % self.oid(file), "X-Repo-Commit": commit_of(name)}

    def oid(self, file):
        data = file.read_bytes()
        return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()

    def is_large(self, file):
        return file.suffix in (".safetensors", ".bin")

    def revision(self, name, revision):
        if not self.state.root.joinpath("hub", name).is_dir():
            return self.answer_json({"error": "Repository not found"}, 404,
                                    {"X-Error-Code": "RepoNotFound"})
        if not self.has(name, revision):
            return self.answer_json({"error": "Invalid rev id"}, 404,
                                    {"X-Error-Code": "RevisionNotFound"})
        return self.answer_json({"id": name, "sha": commit_of(name), "lastModified": COMMIT_TIME,
                                 "siblings": []})

    def has(self, name, revision):
        return revision in ("main", "v1", "refs/pr/1", commit_of(name))

    def list_tree(self, name, revision, folder):
        files = self.tree(name)
        if folder:
            files = {k: v for k, v in files.items() if k.startswith(folder + "/")}
        if not self.has(name, revision) or not files:
            return self.answer_json({"error": "not found"}, 404, {"X-Error-Code": "EntryNotFound"})
        entries, folders = [], {"folder"}
        for path, file in files.items():
            below = path[len(folder):].strip("/")
            if self.query.get("recursive") != "true" and "/" in below:
                folders.add(path[:len(path) - len(below) + below.index("/")])
                continue
            data = file.read_bytes()
            entry = {"type": "file", "oid": self.oid(file), "size": len(data), "path": path}
            if self.is_large(file):
                sha = hashlib.sha256(data).hexdigest()
                entry["lfs"] = {"oid": sha, "size": len(data), "pointerSize": 130}
            entries.append(entry)
        entries += [{"type": "directory", "oid": "0" * 40, "size": 0, "path": path}
                    for path in sorted(folders)]
        begin, page = int(self.query.get("cursor", 0)), self.state.faults["page"]
        headers = {}
        if begin + page < len(entries):
            headers["Link"] = '<http://%s%s?recursive=%s&cursor=%d>; rel="next"' % (
                self.headers["Host"], self.url.path, self.query.get("recursive", "false"),
                begin + page)
        return self.answer_json(entries[begin:begin + page], headers=headers)

    def resolve(self, name, revision, path):
        self.state.count("hub", "resolves")
        file = self.file(name, path)
        commit = commit_of(name)
        if file is None or not self.has(name, revision):
            return self.answer(404, {"X-Error-Code": "EntryNotFound"})
        data = file.read_bytes()
        if not self.is_large(file):
            return self.answer(307, {"Location": "/api/resolve-cache/models/%s/%s/%s" % (
                name, commit, urllib.parse.quote(path)), "X-Repo-Commit": commit})
        sha = hashlib.sha256(data).hexdigest()
        with self.state.lock:
            signature = hashlib.sha256(b"%d" % len(self.state.signed)).hexdigest()
            self.state.signed[signature] = (file, time.time() + self.state.url_life)
        return self.answer(302, {
            "Location": "http://localhost:%d/%s?Expires=9&Signature=%s" % (
                self.state.ports["cdn"], sha, signature),
            "X-Linked-Size": len(data), "X-Linked-Etag": '"%s"' % sha, "X-Repo-Commit": commit})


class Cdn(Handler):
    service = "cdn"

    def serve(self):
        if self.headers.get("Authorization"):
            return self.answer(400, body=b"Only one auth mechanism allowed")
        file, end = self.state.signed.get(self.query.get("Signature"), (None, 0))
        if file is None or time.time() > end:
            return self.answer(403, body=b"<Error><Code>AccessDenied</Code>"
                                         b"<Message>Request has expired</Message></Error>")
        data = self.state.data(file)
        if self.fault == "swap":
            data = data[:-1]  # all that can be seen of it: a CDN says no version
        return self.answer_object(data, {"ETag": self.state.etag(file)})


class S3(Handler):
    service = "s3"

    def serve(self):
        if self.state.secret and not self.is_signed():
            return self.error(403, "SignatureDoesNotMatch", "The signature does not match")
        path = urllib.parse.unquote(self.url.path)
        bucket, _, key = path[1:].partition("/")
        if not self.state.root.joinpath("s3", bucket).is_dir():
            return self.error(404, "NoSuchBucket", "The specified bucket does not exist")
        if "list-type" in self.query:
            return self.list(bucket)
        file = self.file(bucket, key)
        if file is None:
            return self.error(404, "NoSuchKey", "The specified key does not exist.")
        data = self.state.data(file)
        etag = self.state.etag(file)
        if self.fault == "swap":
            data = bytes([data[0] ^ 255]) + data[1:]
            etag = '"%s"' % md5(data)
        if self.fault != "swap" and self.headers.get("If-Match", etag) != etag:
            return self.error(412, "PreconditionFailed", "At least one condition did not hold")
        return self.answer_object(data, {"ETag": etag})

    def error(self, status, code, message):
        self.answer(status, {"Content-Type": "application/xml"},
                    ("<?xml version=\"1.0\"?><Error><Code>%s</Code><Message>%s</Message></Error>"
                     % (code, message)).encode())

    def list(self, bucket):
        files = {name: file for name, file in self.tree(bucket).items()
                 if name.startswith(self.query.get("prefix", ""))}
        names = sorted(files)
        begin = int(self.query.get("continuation-token", "0+").rstrip("+"))
        page = self.state.faults["page"]
        rows = []
        for name in names[begin:begin + page]:
            rows.append("<Contents><Key>%s</Key><LastModified>%s</LastModified>"
                        "<ETag>%s</ETag><Size>%d</Size></Contents>" % (
                            urllib.parse.quote_plus(name, safe="/"), COMMIT_TIME,
                            escape(self.state.etag(files[name]), {'"': "&quot;"}),
                            files[name].stat().st_size))
        more = begin + page < len(names)
        token = "<NextContinuationToken>%d+</NextContinuationToken>" % (begin + page)
        self.answer(200, {"Content-Type": "application/xml"}, (
            "<?xml version=\"1.0\"?><ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">"
            "<Name>%s</Name><EncodingType>url</EncodingType><IsTruncated>%s</IsTruncated>%s%s"
            "</ListBucketResult>" % (escape(bucket), "true" if more else "false",
                                     token if more else "", "".join(rows))).encode())

    def is_signed(self):
        """Signature Version 4, written from AWS's manual and not from ckfs."""
        match = re.fullmatch(
            r"AWS4-HMAC-SHA256 Credential=test/(\d{8})/([\w-]+)/s3/aws4_request, "
            r"SignedHeaders=([\w;-]+), Signature=([0-9a-f]{64})",
            self.headers.get("Authorization", ""))
        if not match:
            return False
        date, region, names, signature = match.groups()
        query = "&".join("%s=%s" % (urllib.parse.quote(name, safe="-_.~"),
                                    urllib.parse.quote(value, safe="-_.~"))
                         for name, value in sorted(urllib.parse.parse_qsl(
                             self.url.query, keep_blank_values=True)))
        path = urllib.parse.quote(urllib.parse.unquote(self.url.path), safe="/-_.~")
        headers = "".join("%s:%s\n" % (name, " ".join(self.headers.get(name, "").split()))
                          for name in names.split(";"))
        request = "\n".join([self.command, path, query, headers, names,
                             self.headers.get("x-amz-content-sha256", "")])
        to_sign = "\n".join(["AWS4-HMAC-SHA256", self.headers.get("x-amz-date", ""),
                             "%s/%s/s3/aws4_request" % (date, region),
                             hashlib.sha256(request.encode()).hexdigest()])
        key = ("AWS4" + self.state.secret).encode()
        for part in (date, region, "s3", "aws4_request"):
            key = hmac.new(key, part.encode(), hashlib.sha256).digest()
        now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%d")
        return (hmac.new(key, to_sign.encode(), hashlib.sha256).hexdigest() == signature
                and abs(int(now) - int(date)) <= 1)


class Gcs(Handler):
    service = "gcs"

    def serve(self):
        if self.state.token and self.headers.get("Authorization") != "Bearer " + self.state.token:
            return self.answer_json({"error": {"code": 401, "message": "Invalid Credentials"}}, 401)
        match = re.fullmatch(r"/storage/v1/b/([^/]+)/o(?:/([^/]+))?", self.url.path)
        if not match or not self.state.root.joinpath("gcs", match[1]).is_dir():
            return self.answer_json({"error": {"code": 404, "message": "no such bucket"}}, 404)
        if match[2] is None:
            return self.list(match[1])
        file = self.file(match[1], urllib.parse.unquote(match[2]))
        generation = None if file is None else str(1700000000000000 + self.state.version(file))
        if file is None or self.query.get("generation", generation) != generation:
            return self.answer_json({"error": {"code": 404, "message": "No such object"}}, 404)
        data = self.state.data(file)
        if self.fault == "swap":
            generation = "1"
        return self.answer_object(data, {"x-goog-generation": generation, "ETag": "CAE="})

    def list(self, bucket):
        files = {name: file for name, file in self.tree(bucket).items()
                 if name.startswith(self.query.get("prefix", ""))}
        names = sorted(files)
        begin, page = int(self.query.get("pageToken", "0")), self.state.faults["page"]
        answer = {"kind": "storage#objects"}
        if names[begin:begin + page]:
            answer["items"] = [
                {"name": name, "size": str(files[name].stat().st_size), "updated": COMMIT_TIME,
                 "generation": str(1700000000000000 + self.state.version(files[name])),
                 "crc32c": base64.b64encode(
                     crc32c(files[name].read_bytes()).to_bytes(4, "big")).decode()}
                for name in names[begin:begin + page]]
        if begin + page < len(names):
            answer["nextPageToken"] = str(begin + page)
        self.answer_json(answer)


class Web(Handler):
    service = "web"

    def serve(self):
        path = urllib.parse.unquote(self.url.path)
        if path.startswith("/moved/"):
            return self.answer(302, {"Location": self.url.path[len("/moved"):]})
        if path.startswith("/secret/"):
            user = base64.b64encode(b"me:pass word").decode()
            if self.headers.get("Authorization") != "Basic " + user:
                return self.answer(401, {"WWW-Authenticate": "Basic"})
            path = path[len("/secret"):]
        kind, path = re.fullmatch(r"(/plain/|/tagless/|/)(.*)", path).groups()
        file = self.file(path)
        if file is None:
            return self.answer(404)
        data, etag = self.state.data(file), self.state.etag(file)
        headers = {} if kind == "/tagless/" else {"ETag": etag}
        headers["Last-Modified"] = formatdate(1700000000 + self.state.version(file), usegmt=True)
        if kind == "/plain/":
            return self.answer(200, headers, data)
        if self.fault == "swap":
            headers["ETag"] = '"another"'
        elif self.headers.get("If-Match", etag) != etag:
            return self.answer(412)
        return self.answer_object(data, headers)


class Control(Handler):
    service = "control"

    def respond(self):
        state = self.state
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        value = json.loads(body) if body else None
        with state.lock:
            if self.path == "/faults":
                state.faults = {"delay_ms": 0, "rate": 0, "page": PAGE, "rules": [], **value}
                state.url_life = value.get("url_life", 3600)
                state.seen, state.versions = {}, {}
            elif self.path == "/touch":
                file = state.root.joinpath(value["service"], value["path"]).resolve()
                state.versions[file] = state.versions.get(file, 0) + 1
            elif self.path == "/reset":
                state.counts, state.log = {}, []
            value = {**state.counts, "log": state.log[-10000:]}
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = respond


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    request_queue_size = 256
    allow_reuse_address = True

    def handle_error(self, request, client_address):
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", type=pathlib.Path, required=True)
    parser.add_argument("--secret", default="")
    parser.add_argument("--token", default="")
    arguments = parser.parse_args()
    state = State(arguments.root.resolve(), arguments.secret, arguments.token)
    for kind in (Hub, Cdn, S3, Gcs, Web, Control):
        handler = type(kind.__name__, (kind,), {"state": state})
        server = Server(("127.0.0.1", 0), handler)
        state.ports[kind.service] = server.server_address[1]
        threading.Thread(target=server.serve_forever, daemon=True).start()
    print(json.dumps(state.ports), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
