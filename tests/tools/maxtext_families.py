#!/usr/bin/env python3
"""Prints the models that a checkout of MaxText maps and no recipe here covers.

  maxtext_families.py CHECKOUT

CHECKOUT holds MaxText's sources: a git checkout, or the unpacked wheel. Nothing of it is imported
or run. Exits with 1 where a model is not covered.
"""
import ast
import collections
import json
import pathlib
import sys

RECIPES = pathlib.Path(__file__).resolve().parents[2] / "src/view/recipes"


def mapped(path):
    """{function: [model name]} of PARAM_MAPPING."""
    found = collections.defaultdict(list)
    for node in ast.parse(path.read_text()).body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if any(getattr(target, "id", "") == "PARAM_MAPPING" for target in targets):
            for key, value in zip(node.value.keys, node.value.values):
                found[value.id].append(key.value)
    return found


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    files = sorted(pathlib.Path(sys.argv[1]).rglob("checkpoint_conversion/utils/param_mapping.py"))
    if len(files) != 1:
        sys.exit(f"{sys.argv[1]}: {len(files)} files are called param_mapping.py, not one")
    functions = mapped(files[0])
    if not functions:
        sys.exit(f"{files[0]}: has no PARAM_MAPPING that is a dictionary of names")
    stems = tuple(stem for recipe in sorted(RECIPES.glob("*.json"))
                  for stem in json.loads(recipe.read_text()).get("maxtext", {}).get("models", []))
    missing = {function: [name for name in names if not name.startswith(stems)]
               for function, names in functions.items()}
    total = sum(map(len, functions.values()))
    for function, names in sorted(missing.items()):
        if names:
            print(f"{function}: {', '.join(names)}")
    count = sum(map(len, missing.values()))
    print(f"{total - count} of {total} models are covered")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
