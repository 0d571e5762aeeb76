#!/usr/bin/env python3
"""docs/TROUBLESHOOTING.md: each message that it quotes is one that the program has, in its fixed
parts; what it says of the system is what the system's own table of errors says."""
import errno
import os
import pathlib
import re
import signal
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs/TROUBLESHOOTING.md").read_text()
LITERALS = re.compile(r'"(?:[^"\\\n]|\\.)*"(?:\s*"(?:[^"\\\n]|\\.)*")*')
SECTIONS = {"Mounting fails": 8, "A checkpoint does not open": 8, "A view is not available": 8,
            "An export or a comparison fails": 4}


def section(title):
    return TEXT.split(f"\n## {title}\n")[1].split("\n## ")[0]


def quoted(title):
    """The messages in the first cells of the section's table."""
    cells = re.findall(r"^\| (.*?) \|", section(title), re.M)[2:]
    return [message for cell in cells for message in re.findall(r"`([^`]+)`", cell)]


def program_texts():
    """All string literals of src/, those joined that the compiler joins, without placeholders."""
    texts = []
    for path in sorted((ROOT / "src").rglob("*")):
        if path.suffix not in (".cc", ".h"):
            continue
        for match in LITERALS.finditer(path.read_text()):
            parts = re.findall(r'"((?:[^"\\\n]|\\.)*)"', match[0])
            text = "".join(parts).replace('\\"', '"').replace("\\\\", "\\")
            texts.append(re.sub(r"\{[^{}]*\}", "…", text))
    return texts


class Messages(unittest.TestCase):
    def test_of_the_program_are_in_its_source(self):
        texts = "\n".join(program_texts())
        for title, least in SECTIONS.items():
            messages = quoted(title)
            self.assertGreaterEqual(len(messages), least, title)
            for message in messages:
                fixed = [part.strip(" ():,") for part in message.split("…")]
                fixed = [part for part in fixed if len(part) > 3]
                with self.subTest(title, message=message):
                    self.assertTrue(fixed)
                    self.assertEqual([], [part for part in fixed if part not in texts])

    def test_of_the_system_are_its_own(self):
        known = {os.strerror(number) for number in errno.errorcode}
        known |= {signal.strsignal(number) for number in signal.valid_signals()}
        messages = quoted("A program that reads from a mount fails")
        self.assertGreaterEqual(len(messages), 8)
        for message in messages:
            with self.subTest(message=message):
                self.assertIn(message, known)

    def test_every_row_says_what_to_do(self):
        rows = [row for row in TEXT.splitlines() if row.startswith("| ")]
        self.assertGreater(len(rows), 50)
        for row in rows:
            cells = re.split(r"(?<!\\) \| ", row.strip("| "))
            with self.subTest(row=row):
                self.assertIn(len(cells), (2, 3))
                self.assertTrue(all(cells))


if __name__ == "__main__":
    unittest.main()
