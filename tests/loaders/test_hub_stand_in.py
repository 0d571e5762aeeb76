#!/usr/bin/python3
"""The stand-in of the hub is right: huggingface_hub downloads from it, and reads ranges."""
import os
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "fetcher"))
from remote import Servers  # noqa: E402


class HubStandIn(unittest.TestCase):
    def test_it_serves_the_hubs_own_client(self):
        with Servers() as servers, tempfile.TemporaryDirectory() as home:
            for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
                del os.environ[name]
            os.environ.update(HF_ENDPOINT=servers.url("hub"), HF_HOME=home, HF_HUB_OFFLINE="0",
                              HF_HUB_DISABLE_XET="1", HF_HUB_DISABLE_TELEMETRY="1")
            import huggingface_hub
            source = servers.root / "hub/org/model"
            copy = pathlib.Path(huggingface_hub.snapshot_download("org/model", cache_dir=home))
            self.assertEqual(
                {path.relative_to(copy): path.read_bytes()
                 for path in copy.rglob("*") if path.is_file()},
                {path.relative_to(source): path.read_bytes()
                 for path in source.rglob("*") if path.is_file()})
            files = huggingface_hub.HfFileSystem(endpoint=servers.url("hub"))
            with files.open("org/model/te/model.safetensors", "rb") as file:
                file.seek(1000)
                self.assertEqual(file.read(100),
                                 (source / "te/model.safetensors").read_bytes()[1000:1100])


if __name__ == "__main__":
    unittest.main()
