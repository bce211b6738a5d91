"""The policy of a feed for failed scenes, and its record.

Invariant: the treatment of a failed scene is a function of (policy, seed, epoch, index), never of the worker or of the
time, so that every loader and every shard decides alike. All methods may be called from any thread.
"""

import bisect
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kerasfeed.errors import FeedWarning, TooManyFailuresError
from kerasfeed.loaders.failures.exceptions import without_reproduction
from kerasfeed.loaders.failures.table import FailedScene, FailureTable
from kerasfeed.util.deferred_warnings import DeferredWarnings
from kerasfeed.util.error_text import add_note, exception_text, full_text, message_of, notes_of
from kerasfeed.util.seed_streams import SeedStream

ON_ERROR = ("raise", "replace", "mask", "skip")
_TRIES = 3
_RATE = 0.1
_MOST_ROWS = 10_000
MOST_STAND_INS = 64  # tried in place of one scene


@dataclass(frozen=True)
class FailurePolicy:
    """The policy for scenes that fail.

    Attributes:
        on_error: One of `ON_ERROR`.
        max_failures: How often a scene may end its worker before it counts as failed. Unless `on_error` is "raise",
            also how many scenes may fail. A float is a share of the scenes. None means 3 times, and a tenth of the
            scenes, but at least 3.
        timeout: Seconds that one scene may take; None for no limit.
        error_log: Path of a file that receives failures as JSON lines; None for no file.
    """

    on_error: str = "raise"
    max_failures: int | float | None = None
    timeout: float | None = None
    error_log: str | None = None

    @property
    def tries(self) -> int:
        """How many workers a scene may end before it has failed."""
        return self.max_failures if isinstance(self.max_failures, int) else _TRIES

    def most_failed(self, length: int) -> int:
        """Number of scenes out of `length` that may fail."""
        if self.max_failures is None:
            return max(_TRIES, _share(_RATE, length))
        return self.max_failures if isinstance(self.max_failures, int) else _share(self.max_failures, length)

    def most_failed_so_far(self, length: int) -> int:
        """Number of failures allowed among a stream's first `length` scenes."""
        most = self.most_failed(length)
        return most if isinstance(self.max_failures, int) else max(_TRIES, most)


def _share(rate: float, length: int) -> int:
    return int(rate * length + 1e-6)  # 0.29 of 100 is 29, although floating point gives 28.999


class FailureLog:
    """The policy of one feed and the record of its failures.

    Attributes:
        policy: The policy.
        deferred_warnings: Warnings for the user.
        used_random: The random generators that scenes have used; see `RandomWatch`.
        on_record: Called with the arguments of `record` for each recorded failure, or None.
    """

    def __init__(self, policy: FailurePolicy, length: int, shard_count: int = 1) -> None:
        """Begin without failures among `length` scenes.

        `length` is 0 for a stream of unknown length. In a stream with several shards, item k of shard s has the index
        `k * shard_count + s`.
        """
        self.policy = policy
        self.deferred_warnings = DeferredWarnings()
        self.used_random = 0
        self.on_record: Callable[[int | None, int | None, int | None, BaseException], object] | None = None
        self._length = length
        self._shard_count = shard_count
        # Scenes that ended or hung their workers, with the error. For a stream, only those of one repetition, like
        # `_failed` below, because the next repetition numbers other scenes alike.
        self._fatal: dict[int, BaseException] = {}
        self._repetition = 0
        self._failed_before = 0
        self._lock = threading.Lock()
        self._rows: dict[tuple[int | None, str], FailedScene] = {}
        self._failed: list[int] = []  # sorted
        self._forgotten = 0

    def record(self, index: int | None, epoch: int | None, step: int | None, error: BaseException) -> None:
        """Record one failure in memory and in the log.

        Holds no lock while it calls the exception's `__str__`.
        """
        if not self._length:
            without_reproduction(error)
        text = exception_text(error)
        with self._lock:
            before = self._rows.get((index, text))
            if before is None and len(self._rows) >= _MOST_ROWS:
                self._forgotten += 1
            else:
                count = 1 if before is None else before.count + 1
                self._rows[index, text] = FailedScene(index, epoch, step, text, count)
        if self.on_record is not None:
            self.on_record(index, epoch, step, error)
        if self.policy.error_log is not None:
            self._log(self.policy.error_log, index, epoch, step, error)

    def _log(self, path: str, index: int | None, epoch: int | None, step: int | None, error: BaseException) -> None:
        record = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "index": index,
            "epoch": epoch,
            "step": step,
            "exception": exception_text(error),
            "action": self.policy.on_error,
            "traceback": full_text(error),
        }
        try:
            with Path(path).open("a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(json.dumps(record) + "\n")  # one write in append mode: lines stay whole
        except OSError as trouble:
            self.deferred_warnings.defer(
                "log", f"error_log={path!r} cannot be written: {message_of(trouble)}", FeedWarning
            )

    @property
    def has_fatal(self) -> bool:
        """Whether any scene must not be tried again."""
        return bool(self._fatal)

    def fatal(self, index: int, epoch: int) -> BaseException | None:
        """Why a scene must not be tried again.

        None if it may be.
        """
        with self._lock:
            return self._fatal.get(index) if self._is_present(epoch) else None

    def record_fatal(self, index: int, epoch: int, error: BaseException) -> None:
        """Record that a scene must not be tried again.

        The scene has ended its workers, or its workers hung. Ignored if `on_error` is "raise".
        """
        if self.policy.on_error == "raise":
            return
        with self._lock:
            if self._is_present(epoch):
                self._fatal[index] = error

    def _is_present(self, epoch: int) -> bool:
        """Whether scenes of `epoch` count; in a stream, the latest repetition."""
        if self._length or epoch == self._repetition:
            return True
        if epoch < self._repetition:  # the consumer no longer waits for it
            return False
        self._repetition = epoch
        self._restart_counts()
        return True

    def _restart_counts(self) -> None:
        self._failed_before += len(self._failed)
        self._failed.clear()
        self._fatal.clear()

    def renew(self, length: int) -> None:
        """Restart the counts, for a refreshed sequence of `length` scenes.

        The table keeps earlier failures.
        """
        with self._lock:
            self._length = length
            self._restart_counts()

    def refusal(self, index: int, epoch: int, error: BaseException) -> TooManyFailuresError | None:
        """Count `index` as failed.

        Return an error if too many scenes have failed.
        """
        with self._lock:
            if not self._is_present(epoch):
                return None
            counts = self._too_many(index)
        if counts is None:
            return None
        count, length, most = counts
        scenes = "scenes" if self._length else f"scenes of repetition {epoch}"
        given = "the default, a tenth" if self.policy.max_failures is None else repr(self.policy.max_failures)
        refusal = TooManyFailuresError(
            f"{count:,} of {length:,} {scenes} failed and on_error={self.policy.on_error!r} allows {most:,} "
            f"(max_failures: {given}). The last was scene {index}: {exception_text(error)}. feed.failures lists them; "
            "repair the scenes, or raise max_failures (an integer, or a share such as 0.2)"
        )
        refusal.__cause__ = error
        for note in notes_of(error):
            add_note(refusal, note)
        return refusal

    def _too_many(self, index: int) -> tuple[int, int, int] | None:
        """Count `index` as failed.

        Return (failed, total, allowed) if that is too many.
        """
        position = bisect.bisect_left(self._failed, index)
        if self._failed[position : position + 1] != [index]:
            self._failed.insert(position, index)
        if self._length:
            counts = [(len(self._failed), self._length, self.policy.most_failed(self._length))]
        else:  # among the scenes up to each failed one, so that the order of the workers does not matter
            seen = ((k + 1, self._failed[k] // self._shard_count + 1) for k in range(position, len(self._failed)))
            counts = [(count, length, self.policy.most_failed_so_far(length)) for count, length in seen]
        return next((each for each in counts if each[0] > each[2]), None)

    def warn_of_copies(self, ceiling: int) -> None:
        """Warn that a batch was copied because the consumer holds all slots.

        All slots together have `ceiling` bytes.
        """
        self.deferred_warnings.defer(
            "copied",
            f"the consumer keeps so many batches that they fill max_memory ({ceiling:,} bytes). Further batches are "
            "copied to ordinary memory, which takes time and has no limit. Delete batches that you no longer need, or "
            "raise max_memory",
            FeedWarning,
        )

    def table(self) -> FailureTable:
        """Return the failures so far."""
        with self._lock:
            return FailureTable(list(self._rows.values()), self._forgotten)

    @property
    def failed(self) -> int:
        """Number of scenes that failed and were replaced, masked or skipped."""
        return self._failed_before + len(self._failed)


def replacement(seed: int, epoch: int, index: int, attempt: int, length: int) -> int:
    """Draw the stand-in of a failed scene, from the arguments alone.

    Args:
        seed: Seed of the plan.
        epoch: Epoch number.
        index: The failed scene.
        attempt: 1 for the first stand-in, 2 if that has failed too, and so on.
        length: Scenes of the sequence, at least 2.

    Returns:
        An index in [0, length) that is not `index`.
    """
    source = np.random.SeedSequence(entropy=seed, spawn_key=(SeedStream.REPLACEMENT, epoch, index, attempt))
    drawn = int(source.generate_state(1, np.uint64)[0]) % (length - 1)
    return drawn + (drawn >= index)
