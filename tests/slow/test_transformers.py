#!/usr/bin/env python3
"""The families whose experts the installed transformers lays out anew when it loads a model, and for
which ckfs has no layouts: none but those that are named here. Prints which ones are new.

  .venv/hf/bin/python tests/slow/test_transformers.py
"""
import json
import pathlib
import unittest

import transformers
from transformers import conversion_mapping
from transformers.core_model_loading import WeightConverter

RECIPES = pathlib.Path(__file__).resolve().parents[2] / "src/view/recipes"
# Why ckfs has no layouts for them.
WITHOUT = {"ernie4_5_vl_moe": "has experts of two sizes"}


def laid_out_anew():
    """Names by which transformers finds a mapping that joins or cuts tensors of experts."""
    mapping = conversion_mapping._build_checkpoint_conversion_mapping()
    return {name for name, entries in mapping.items() if any(
        isinstance(entry, WeightConverter) and "experts" in pattern
        for entry in entries for pattern in [*entry.source_patterns, *entry.target_patterns])}


def known():
    recipes = [json.loads(path.read_text()) for path in RECIPES.glob("*.json")]
    return set().union(*(recipe["family"] for recipe in recipes if "experts" in recipe))


class Families(unittest.TestCase):
    def test_of_transformers_are_those_of_the_recipes(self):
        theirs = laid_out_anew()
        self.assertGreater(len(theirs), 50)
        self.assertEqual([], sorted(theirs - known() - set(WITHOUT)),
                         f"transformers {transformers.__version__} maps these")
        self.assertEqual([], sorted(set(WITHOUT) & known()), "have layouts by now")


if __name__ == "__main__":
    unittest.main()
