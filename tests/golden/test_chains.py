#!/usr/bin/env python3
"""Views of one program's checkpoint for another program: equal to what the steps by way of the Hugging
Face model give."""
import pathlib
import sys
import unittest

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1] / "tools"),
                str(pathlib.Path(__file__).resolve().parent)]
import digest  # noqa: E402
import ways  # noqa: E402

DATA = ways.DATA.parent
TITAN = "fsdp/titan-deepseek3-mtp-dcp"

# The source below tests/data, and the views of it.
CHAINS = {
    "fsdp/fsdp1-w2-sharded-tensor/source": ["maxtext-scanned@fsdp=4", "megatron-torch-dist"],
    "hf/deepseek-v3-fp8/source": ["megatron-torch-dist", "dcp@names=torchtitan"],
    "megatron/qwen3-moe-pp2-ep2-chained/source": ["maxtext-scanned@fsdp=16",
                                                  "bf16-safetensors@experts=fused",
                                                  "dcp@names=torchtitan"],
    f"{TITAN}/source/step-10": ["maxtext-unscanned@mtp=1", "megatron-torch-dist",
                                "bf16-safetensors@experts=fused"],
}


class Chains(ways.Exports):
    def content(self, out, view):
        """What does not depend on where the source has its tensors."""
        if view.startswith("maxtext"):  # the order of chunks in a data file does
            return digest.digest(str(self.export(out, "safetensors")), lambda *_: False)
        if "experts=fused" in view:
            return digest.digest(str(out), lambda *_: False)
        return ways.files_of(out)

    def test_equal_the_same_by_steps(self):
        for source, views in CHAINS.items():
            config = next((part / "source-config" for part in (DATA / source).parents
                           if (part / "source-config").is_dir()), None)
            options = ["--config", config] if config else []
            model = self.export(DATA / source, "bf16-safetensors", *options)
            for view in views:
                with self.subTest(source=source, view=view):
                    at_once = self.content(self.export(DATA / source, view, *options), view)
                    by_steps = self.content(self.export(model, view), view)
                    self.assertEqual(sorted(by_steps), sorted(at_once))
                    self.assertGreater(len(at_once), 2)
                    for name, content in by_steps.items():
                        self.assertTrue(at_once[name] == content, name)


if __name__ == "__main__":
    unittest.main(verbosity=2)
