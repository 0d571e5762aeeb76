#!/usr/bin/env python3
"""The runs by which golden views are made cover every pair of what must not change a byte."""
import itertools
import pathlib
import random
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import ways  # noqa: E402


def uncovered(rows, factors):
    """The pairs of values of two factors that no row has."""
    return {(i, a, j, b)
            for (i, first), (j, second) in itertools.combinations(enumerate(factors), 2)
            for a, b in itertools.product(first, second)
            if not any(row[i] == a and row[j] == b for row in rows)}


class Pairwise(unittest.TestCase):
    def test_covers_every_pair_with_fewer_rows_than_all(self):
        rng = random.Random(7)
        for _ in range(100):
            factors = [range(rng.randint(1, 4)) for _ in range(rng.randint(3, 6))]
            with self.subTest(sizes=[len(f) for f in factors]):
                rows = ways.pairwise(*factors)
                self.assertEqual(set(), uncovered(rows, factors))
                self.assertEqual(len(rows), len(set(rows)))
                everything = len(list(itertools.product(*factors)))
                self.assertLessEqual(len(rows), everything)

    def test_gives_the_same_rows_each_time(self):
        factors = ways.WAYS, ways.READERS, ways.THREADS, ways.TILES
        self.assertEqual(ways.pairwise(*factors), ways.pairwise(*factors))


class Runs(unittest.TestCase):
    def test_have_every_pair_in_six_to_eight(self):
        rows = []
        for way, engine in ways.RUNS:
            reader, threads, tiles = tuple(engine[:2]), tuple(engine[2:4]), tuple(engine[4:])
            rows.append((way, reader, threads, tiles))
        self.assertEqual(
            set(), uncovered(rows, [ways.WAYS, ways.READERS, ways.THREADS, ways.TILES]))
        self.assertTrue(6 <= len(rows) <= 8, rows)


if __name__ == "__main__":
    unittest.main()
