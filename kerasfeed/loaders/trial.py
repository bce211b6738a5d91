"""A trial: how many scenes a second workers load.

Invariant: only batches that come after others count, so that the start of the workers does not.
"""

import itertools
import math
import time
from collections.abc import Callable
from typing import Any

from kerasfeed.orders.plan import Plan


class Trial:
    """Workers that load batches of epoch 0 for some time, and then, each time that they run, those that come next.

    What is new at first is met in the first run: memory of batches, and what a sequence keeps of files.
    """

    def __init__(self, submit: Callable[[int, int], Any], plan: Plan, workers: int, ahead: int, first: int = 0) -> None:
        """Try workers.

        Args:
            submit: From epoch and step to a future of a batch.
            plan: Which scenes the batches have.
            workers: Workers that load them: their first batches come all at once, and do not count.
            ahead: Batches in flight.
            first: The step to begin with.
        """
        self._submit, self._rows, self._ahead = submit, plan.rows, ahead
        self._late = max(1, math.ceil(workers / plan.rows))
        self._steps = ((first + number) % plan.steps for number in itertools.count())

    def run(self, seconds: float) -> float | None:
        """Load for so long after the first batch, s; scenes/s, or None where a scene raises."""
        pending: list[Any] = []
        left = self._late
        try:
            pending = [self._submit(0, next(self._steps)) for _ in range(self._ahead)]
            count, begun = 0, 0.0
            while True:
                pending.pop(0).result()
                now = time.perf_counter()
                left -= 1
                if left == 0:
                    begun = now
                elif begun:
                    count += 1
                if begun and now - begun >= seconds:
                    return count * self._rows / (now - begun) if count else None
                pending.append(self._submit(0, next(self._steps)))
        except Exception:  # noqa: BLE001 - whatever a scene raises, it will raise again where the user sees it
            return None
        finally:
            for future in pending:
                future.cancel()
