"""SEMANTICS: .ckfs."""

import json
import os
import pathlib
import re
import socket
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import mounted_fs
from mounted_fs import ckfs

SHARD = "fp32-safetensors/" + mounted_fs.Checkpoint.SHARDS[0]


class Control(mounted_fs.TestCase):
    def test_files_have_size_zero_and_content(self):
        mount = self.mount()
        self.assertEqual(os.listdir(mount / ".ckfs"), ["metrics", "refused", "status.json", "views.json"])
        for name in os.listdir(mount / ".ckfs"):
            path = mount / ".ckfs" / name
            self.assertEqual(os.stat(path).st_size, 0)
            if path.suffix == ".json":
                self.assertEqual(json.loads(path.read_text())["version"], 1)

    def test_refused_says_why_a_name_is_not_there(self):
        mount = self.mount()
        self.assertFalse((mount / "bf16-safetensors@max_shard=5XB").exists())
        reasons = (mount / ".ckfs/refused").read_text()
        self.assertRegex(reasons, r"\Abf16-safetensors@max_shard=5XB: .* is not a size .*\n\Z")

    def test_views_lists_every_file_of_every_view(self):
        mount = self.mount()
        views = json.loads((mount / ".ckfs/views.json").read_text())["views"]
        listed = {view["name"]: {f["path"]: f["size"] for f in view["files"]} for view in views}
        found = {}
        for view in os.listdir(mount.target):
            if view == ".ckfs":
                continue
            top = mount / view
            found[view] = {
                str(pathlib.Path(directory, name).relative_to(top)): os.stat(
                    pathlib.Path(directory, name)
                ).st_size
                for directory, _, names in os.walk(top)
                for name in names
            }
        self.assertEqual(listed, found)

    def test_status_counts_what_was_read(self):
        mount = self.mount("direct")
        before = mount.status()
        size = len((mount / SHARD).read_bytes())
        after = mount.status()
        self.assertEqual(after["bytes_to_readers"] - before["bytes_to_readers"], size)
        self.assertGreater(after["requests"], before["requests"])
        view, _, path = SHARD.partition("/")
        self.assertEqual(after["given"], [{"view": view, "path": path, "bytes": size}])
        self.assertIn(f"{size} bytes given", ckfs("stats", mount.target).stdout)
        needed = sum(
            len(data) for name, data in self.checkpoint.tensors.items() if ".00001." in name
        )
        self.assertGreaterEqual(after["source_bytes"], needed)
        self.assertLessEqual(after["source_bytes"], int(needed * 1.02) + 100_000)

    def test_all_bytes_that_a_copy_got_are_counted_once(self):
        mount = self.mount()
        with open(mount / SHARD, "rb", buffering=0) as file:
            size = 0
            while got := len(os.read(file.fileno(), 64 << 10)):
                size += got
        status = mount.status()
        self.assertGreaterEqual(status["bytes_to_readers"], size)
        self.assertLess(status["bytes_to_readers"], 1.2 * size)
        self.assertEqual(status["bytes_to_readers"], status["given"][0]["bytes"])

    def test_a_snapshot_stays_as_it_was_opened(self):
        mount = self.mount("direct")
        with open(mount / ".ckfs/status.json", "rb", buffering=0) as file:
            first = os.pread(file.fileno(), 1 << 20, 0)
            (mount / SHARD).read_bytes()
            self.assertEqual(os.pread(file.fileno(), 1 << 20, 0), first)
        self.assertNotEqual((mount / ".ckfs/status.json").read_bytes(), first)

    def test_stats_reads_it(self):
        mount = self.mount()
        (mount / SHARD).read_bytes()
        told = json.loads(ckfs("stats", mount.target, "--json").stdout)
        self.assertEqual(told["bytes_to_readers"], mount.status()["bytes_to_readers"])
        self.assertIn("requests", ckfs("stats", mount.target).stdout)

    def metrics(self, mount):
        """{name with labels: value}, without the labels that each has; each line has a HELP and a TYPE
        before it."""
        here = f'mount="{mount.target}",source="{self.checkpoint.path}"'
        found, known = {}, {}
        for line in (mount / ".ckfs/metrics").read_text().splitlines():
            if line.startswith("# "):
                _, word, name, rest = line.split(" ", 3)
                known.setdefault(name, {})[word] = rest
                continue
            name, value = line.rsplit(" ", 1)
            family = re.sub(r"(_bucket|_sum|_count)?(\{.*)?$", "", name)
            self.assertEqual(set(known[family]), {"HELP", "TYPE"}, line)
            self.assertIn("{" + here, name)
            name = name.replace(here + ",", "").replace("{" + here + "}", "")
            found[name] = float(value)
        return found

    def test_metrics_are_what_prometheus_reads(self):
        mount = self.mount()
        data = (mount / SHARD).read_bytes()
        found = self.metrics(mount)
        status = mount.status()
        self.assertEqual(found["ckfs_bytes_to_readers_total"], status["bytes_to_readers"])
        self.assertEqual(found["ckfs_memory_budget_bytes"], status["memory_budget"])
        for name in ("tiles_unread", "decoded_bytes", "spilled_bytes"):
            self.assertEqual(found[f"ckfs_{name}_total"], status[name])
        kinds = ("text", "copy", "decode", "gather")
        count = sum(found[f'ckfs_read_seconds_count{{kind="{kind}"}}'] for kind in kinds)
        self.assertGreater(count, 0)
        self.assertGreater(found['ckfs_read_seconds_count{kind="decode"}'], 0)
        for kind in kinds:
            buckets = [value for name, value in found.items()
                       if name.startswith(f'ckfs_read_seconds_bucket{{kind="{kind}"')]
            self.assertEqual(buckets, sorted(buckets))
            self.assertEqual(buckets[-1], found[f'ckfs_read_seconds_count{{kind="{kind}"}}'])
        self.assertGreater(found['ckfs_source_bytes_total{class="safetensors"}'], len(data) // 4)

    def test_errors_are_counted_by_errno(self):
        mount = self.mount()
        with self.assertRaises(OSError):
            os.open(mount / SHARD, os.O_WRONLY)
        with self.assertRaises(FileNotFoundError):
            os.stat(mount / "fp32-safetensors/none")
        errors = [name for name in self.metrics(mount) if name.startswith("ckfs_errors_total")]
        self.assertFalse([name for name in errors if "ENOENT" in name])
        # What the caller did wrong is no news for an operator.
        self.assertNotIn("last_error", mount.status())

    def test_two_mounts_have_no_sample_in_common(self):
        found = [set(re.findall(r"(?m)^(ckfs_.*) \S+$", (mount / ".ckfs/metrics").read_text()))
                 for mount in (self.mount(), self.mount(name="two"))]
        self.assertFalse(found[0] & found[1])

    def test_collected_for_node_exporter(self):
        """By the script of mount-helpers, with a mount that is gone the second time."""
        collect = mounted_fs.ROOT / "mount-helpers/prometheus/collect"
        out = self.directory / "textfile"
        out.mkdir()
        (out / "other.prom").write_text("")
        mounts = [self.mount(), self.mount(name="two")]
        for left in (2, 1):
            subprocess.run([collect, out], check=True, timeout=mounted_fs.LIMIT)
            # Other tests may have mounts at the same time.
            texts = [path.read_text() for path in out.glob("ckfs-*.prom")]
            for number, mount in enumerate(mounts):
                name = f'ckfs_info{{mount="{mount.target}"'
                self.assertEqual(sum(name in text for text in texts), int(number < left))
            if left == 2:
                ckfs("umount", mounts[1].target)
        self.assertEqual([path.name for path in out.glob("other*")], ["other.prom"])
        self.assertFalse(list(out.glob(".*")))

    def test_the_log_may_be_copied_and_cut(self):
        """As logrotate does it (copytruncate): the daemon goes on at the file's new end."""
        log = self.directory / "log"
        mount = self.mount(f"log_file={log}")
        self.assertIn(": mounted", log.read_text())
        os.truncate(log, 0)
        with self.assertRaises(FileNotFoundError):
            os.stat(mount / "bf16-safetensors@nonsense=1")
        (line,) = log.read_text().splitlines()
        self.assertRegex(line, f" warning {mount.target}: a view that cannot be shown: ")

    def test_stats_watches_it(self):
        mount = self.mount()
        (mount / SHARD).read_bytes()
        text = ckfs("stats", mount.target, "--watch", "--count", "2").stdout
        self.assertEqual(text.count("bytes to readers"), 2)
        self.assertEqual(text.count("/s\n"), 6)

    def test_stats_that_watches_ends_with_the_mount(self):
        mount = self.mount()
        words = [mounted_fs.CKFS, "stats", mount.target, "--watch", "--interval", "3600"]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as watch:
            self.assertIn("/s", watch.stdout.readline())
            ckfs("umount", mount.target)
            try:
                self.assertEqual(watch.wait(timeout=60), 0)
            finally:
                watch.kill()

    def test_a_service_manager_hears_that_it_is_ready_and_that_it_stops(self):
        target = self.directory / "notified"
        target.mkdir()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            path = str(self.directory / "notify")
            manager.bind(path)
            manager.settimeout(60)
            daemon = subprocess.Popen([mounted_fs.CKFS, "mount", "-f", self.checkpoint.path, target],
                                      env={**os.environ, "NOTIFY_SOCKET": path})
            try:
                self.assertEqual(manager.recv(100), b"READY=1")
                self.assertIn("fp32-safetensors", os.listdir(target))
                # Once: by the second one, before it is over, a daemon ends at once.
                daemon.terminate()
                self.assertEqual(manager.recv(100), b"STOPPING=1")
                self.assertEqual(daemon.wait(timeout=60), 0)
            finally:
                daemon.kill()
                daemon.wait()

    def test_mounting_and_listing_read_no_tensor_data(self):
        mount = self.mount()
        headers = mount.status()["source_bytes"]
        self.assertLess(headers, 100_000)
        for directory, _, names in os.walk(mount.target):
            for name in names:
                os.stat(os.path.join(directory, name))
        self.assertEqual(mount.status()["source_bytes"], headers)


if __name__ == "__main__":
    mounted_fs.main()
