"""Somebody who kills worker processes from outside."""

import os
import random
import signal
import threading


class Killer:
    """Kills a random worker of a feed every `seconds`, but never while all are being started."""

    def __init__(self, feed, seconds=0.2, seed=0):
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(feed, seconds, random.Random(seed)))
        self.kills = 0

    def _run(self, feed, seconds, rng):
        while not self._over.wait(seconds):
            pids = feed.stats().pids
            if pids and any(handle.started for session in feed._loader._sessions for handle in session.workers):
                try:
                    os.kill(rng.choice(pids), signal.SIGKILL)
                    self.kills += 1
                except ProcessLookupError:
                    continue

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *error):
        self._over.set()
        self._thread.join()
