"""What a feed does about scenes that fail, and what it remembers of them.

Invariant: what becomes of a failed scene is a function of (policy, seed, epoch, index), never of the worker that met
it or of the time, so that every loader and every shard decides alike. All methods may be called from any thread.
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
MOST_STAND_INS = 64  # that are tried in place of one scene


@dataclass(frozen=True)
class FailurePolicy:
    """What to do about scenes that fail.

    Attributes:
        on_error: One of `ON_ERROR`.
        max_failures: How often a scene may end its worker before it has failed, and how many scenes may fail where
            `on_error` is not "raise"; a float is a share of the scenes. None is 3 times and a tenth.
        timeout: Seconds that one scene may take; None for any time.
        error_log: Path of a file to which failures are appended as JSON lines; None for none.
    """

    on_error: str = "raise"
    max_failures: int | float | None = None
    timeout: float | None = None
    error_log: str | None = None

    @property
    def tries(self) -> int:
        """How often a scene may end its worker before it has failed."""
        return self.max_failures if isinstance(self.max_failures, int) else _TRIES

    def most_failed(self, length: int) -> int:
        """How many of `length` scenes may fail."""
        if self.max_failures is None:
            return max(_TRIES, _share(_RATE, length))
        return self.max_failures if isinstance(self.max_failures, int) else _share(self.max_failures, length)

    def most_failed_so_far(self, length: int) -> int:
        """How many of the first `length` scenes of a stream may fail, of which nobody knows how many will come."""
        most = self.most_failed(length)
        return most if isinstance(self.max_failures, int) else max(_TRIES, most)


def _share(rate: float, length: int) -> int:
    return int(rate * length + 1e-6)  # 0.29 of 100 are 29, though floating point makes it 28.999


class FailureLog:
    """The policy of one feed and the record of its failures.

    Attributes:
        policy: What to do.
        deferred_warnings: Warnings for the user.
        used_random: The random generators that scenes were seen to use; see `RandomWatch`.
        muted: Whether nothing is recorded: the batches are nobody's.
        on_note: Told of each failure that is recorded, by `note`'s arguments; None for nobody.
    """

    def __init__(self, policy: FailurePolicy, length: int, shard_count: int = 1) -> None:
        """Nothing has failed yet of `length` scenes; 0 for a stream, whose length nobody knows.

        Of a stream that is divided into shards, item k of shard s has the index `k * shard_count + s`.
        """
        self.policy = policy
        self.deferred_warnings = DeferredWarnings()
        self.used_random = 0
        self.muted = False
        self.on_note: Callable[[int | None, int | None, int | None, BaseException], object] | None = None
        self._length = length
        self._shard_count = shard_count
        # Scenes that failed by ending or hanging their workers, with the error. Of a stream those of one repetition,
        # like the failed ones below: in the next one others have their numbers.
        self._fatal: dict[int, BaseException] = {}
        self._repetition = 0
        self._failed_before = 0
        self._lock = threading.Lock()
        self._rows: dict[tuple[int | None, str], FailedScene] = {}
        self._failed: list[int] = []  # sorted
        self._forgotten = 0

    def note(self, index: int | None, epoch: int | None, step: int | None, error: BaseException) -> None:
        """Record one failure, in memory and in the log. Calls the exception's `__str__`, so holds no lock there."""
        if self.muted:
            return
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
        if self.on_note is not None:
            self.on_note(index, epoch, step, error)
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
                file.write(json.dumps(record) + "\n")  # one write of a file opened to append: lines stay whole
        except OSError as trouble:
            self.deferred_warnings.defer(
                "log", f"error_log={path!r} cannot be written: {message_of(trouble)}", FeedWarning
            )

    @property
    def has_fatal(self) -> bool:
        """Whether there are scenes that are not to be tried again."""
        return bool(self._fatal)

    def fatal(self, index: int, epoch: int) -> BaseException | None:
        """Why a scene is not to be tried again; None where it may be."""
        with self._lock:
            return self._fatal.get(index) if self._is_present(epoch) else None

    def note_fatal(self, index: int, epoch: int, error: BaseException) -> None:
        """The scene has ended or hung its workers: it is not to be tried again, except where errors are raised."""
        if self.policy.on_error == "raise":
            return
        with self._lock:
            if self._is_present(epoch):
                self._fatal[index] = error

    def _is_present(self, epoch: int) -> bool:
        """Whether scenes are counted with those of `epoch`: always, but in a stream, which begins anew with a later."""
        if self._length or epoch == self._repetition:
            return True
        if epoch < self._repetition:  # nobody waits for it any more
            return False
        self._repetition = epoch
        self._begin_anew()
        return True

    def _begin_anew(self) -> None:
        self._failed_before += len(self._failed)
        self._failed.clear()
        self._fatal.clear()

    def renew(self, length: int) -> None:
        """The sequence was refreshed and has `length` scenes, which count anew; what has failed stays in the table."""
        with self._lock:
            self._length = length
            self._begin_anew()

    def refusal(self, index: int, epoch: int, error: BaseException) -> TooManyFailuresError | None:
        """Count `index` as failed; the error to end with where that is one scene too many."""
        with self._lock:
            if not self._is_present(epoch):
                return None
            found = self._too_many(index)
        if found is None:
            return None
        count, length, most = found
        scenes = "scenes" if self._length else f"scenes of repetition {epoch}"
        given = "the default, a tenth" if self.policy.max_failures is None else repr(self.policy.max_failures)
        refusal = TooManyFailuresError(
            f"{count:,} of {length:,} {scenes} failed and on_error={self.policy.on_error!r} allows {most:,} "
            f"(max_failures: {given}). The last was scene {index}: {exception_text(error)}. feed.failures lists them; "
            "repair the scenes, or raise max_failures (a count, or a share such as 0.2)"
        )
        refusal.__cause__ = error
        for note in notes_of(error):
            add_note(refusal, note)
        return refusal

    def _too_many(self, index: int) -> tuple[int, int, int] | None:
        """How many have failed with `index`, of how many, and how many may; None where so many may."""
        place = bisect.bisect_left(self._failed, index)
        if self._failed[place : place + 1] != [index]:
            self._failed.insert(place, index)
        if self._length:
            counts = [(len(self._failed), self._length, self.policy.most_failed(self._length))]
        else:  # of the scenes up to a failed one, so that it does not matter in which order workers come to them
            seen = ((k + 1, self._failed[k] // self._shard_count + 1) for k in range(place, len(self._failed)))
            counts = [(count, length, self.policy.most_failed_so_far(length)) for count, length in seen]
        return next((found for found in counts if found[0] > found[2]), None)

    def note_copied(self, ceiling: int) -> None:
        """A batch was copied out of its slot, because the slots, `ceiling` bytes in all, are held by the consumer."""
        self.deferred_warnings.defer(
            "copied",
            f"the consumer keeps so many batches that they fill max_memory ({ceiling:,} bytes): from here on "
            "batches are copied to ordinary memory, which costs time and is not bounded. Let go of batches that are "
            "done with, or raise max_memory",
            FeedWarning,
        )

    def table(self) -> FailureTable:
        """What has failed so far."""
        with self._lock:
            return FailureTable(list(self._rows.values()), self._forgotten)

    @property
    def failed(self) -> int:
        """Scenes that failed and were replaced, masked or skipped."""
        return self._failed_before + len(self._failed)


def replacement(seed: int, epoch: int, index: int, attempt: int, length: int) -> int:
    """The scene that stands in for a failed one: a function of its arguments alone (NumPy's SeedSequence).

    Args:
        seed: Seed of the plan.
        epoch: Epoch number.
        index: The scene that failed.
        attempt: 1 for the first stand-in, 2 for the one after that has failed too.
        length: Scenes of the sequence, at least 2.

    Returns:
        An index in [0, length) that is not `index`.
    """
    source = np.random.SeedSequence(entropy=seed, spawn_key=(SeedStream.REPLACEMENT, epoch, index, attempt))
    drawn = int(source.generate_state(1, np.uint64)[0]) % (length - 1)
    return drawn + (drawn >= index)
