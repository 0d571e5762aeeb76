#!/usr/bin/env python3
"""docs/SECURITY.md: every claim names a test, and every test that it names is there."""
import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs/SECURITY.md").read_text()
# Sections that say what is not done, or whom to write to.
NO_CLAIMS = {"", "What ckfs does not do", "Report"}
CODE = re.compile(r"`([^`]+)`")
CPP_TEST = re.compile(r"^TEST(?:_[FP])?\((\w+), (\w+)\)|^RC_GTEST_PROP\((\w+), (\w+)", re.M)


def sections():
    """{title: paragraphs and items}"""
    found = {}
    for part in re.split(r"^## ", TEXT, flags=re.M):
        title, _, body = part.partition("\n")
        found[title if part is not TEXT and not part.startswith("# ") else ""] = [
            claim for claim in re.split(r"\n\n|\n(?=- )", body) if claim.strip()]
    return found


def tests():
    """Names of all tests: Suite.Name of C++, test_name of Python."""
    names = set()
    for path in (ROOT / "tests").rglob("*_test.cc"):
        for match in CPP_TEST.finditer(path.read_text()):
            names.add(".".join(word for word in match.groups() if word))
    for path in (ROOT / "tests").rglob("test_*.py"):
        names.update(re.findall(r"^    def (test_\w+)", path.read_text(), re.M))
    return names


def is_test(word):
    return bool(re.fullmatch(r"test_\w+|[A-Z]\w+\.[A-Z]\w+", word))


def is_path(word):
    return bool(re.fullmatch(r"(tests|src)/[\w./-]+", word))


class Security(unittest.TestCase):
    def test_every_claim_names_a_test(self):
        found = sections()
        self.assertGreaterEqual(len(found), 7)
        for title, claims in found.items():
            for claim in claims if title not in NO_CLAIMS else []:
                with self.subTest(title, claim=claim[:60]):
                    self.assertTrue([word for word in CODE.findall(claim)
                                     if is_test(word) or word.startswith("tests/")])

    def test_what_it_names_is_there(self):
        known = tests()
        self.assertGreater(len(known), 1000)
        words = set(CODE.findall(TEXT))
        self.assertGreater(len([word for word in words if is_test(word)]), 40)
        for word in sorted(words):
            with self.subTest(word):
                if is_test(word):
                    self.assertIn(word, known)
                elif is_path(word):
                    self.assertTrue((ROOT / word).exists())


if __name__ == "__main__":
    unittest.main()
