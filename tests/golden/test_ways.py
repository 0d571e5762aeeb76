#!/usr/bin/env python3
"""The runs by which golden views are made cover every pair of what must not change a byte."""
import itertools
import os
import pathlib
import random
import sys
import unittest
import unittest.mock

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

    def test_of_two_a_view_every_pair_comes_by(self):
        with unittest.mock.patch.dict(os.environ, {"CKFS_SANITIZE": "", "CKFS_GOLDEN": ""}):
            turns = len(ways.RUNS) * (len(ways.RUNS) - 1)
            pairs = [[ways.RUNS.index(run) for run in ways.golden_runs()] for _ in range(turns)]
        self.assertEqual({frozenset(pair) for pair in pairs},
                         {frozenset(pair)
                          for pair in itertools.combinations(range(len(ways.RUNS)), 2)})
        # Also of the views that a test has at every third place, say.
        for step in (2, 3, 4):
            met = {run for pair in pairs[::step] for run in pair}
            self.assertEqual(met, set(range(len(ways.RUNS))))


if __name__ == "__main__":
    unittest.main()
