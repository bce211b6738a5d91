"""A thread that kills worker processes."""

import os
import random
import signal
import threading


class Killer:
    """Kill a random worker of a feed every `seconds`, but never while all are starting.

    At least one has started if batches have come since the last kill, or if it existed when batches came.
    """

    def __init__(self, feed, seconds=0.2, seed=0):
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(feed, seconds, random.Random(seed)))
        self.kills = 0

    def _run(self, feed, seconds, rng):
        batches, proven = 0, set()
        while not self._over.wait(seconds):
            stats = feed.stats()
            if stats.batches > batches:
                batches, proven = stats.batches, set(stats.pids)
            if proven & set(stats.pids):
                try:
                    os.kill(rng.choice(stats.pids), signal.SIGKILL)
                    self.kills += 1
                except ProcessLookupError:
                    continue

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *error):
        self._over.set()
        self._thread.join()
