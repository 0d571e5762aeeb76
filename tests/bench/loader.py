"""loads.py, run by the benchmark."""
import os
import subprocess
import sys

from harness import HERE


class Loader:
    """A load whose imports are over and which has not begun: the caches can be dropped now."""

    def __init__(self, *words):
        self.command = [sys.executable, os.path.join(HERE, "loads.py"), *map(str, words)]
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        if self.process.stdout.readline() != "ready\n":
            raise SystemExit(f"bench: {' '.join(self.command)}: not ready")

    def run(self):
        """-> seconds."""
        seconds, _ = self.process.communicate("\n")
        if self.process.returncode:
            raise SystemExit(f"bench: {' '.join(self.command)}: exit {self.process.returncode}")
        return float(seconds)


def load(*words):
    return Loader(*words).run()
