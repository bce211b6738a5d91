"""Apply `on_error` to rows whose scene failed.

Invariant: a failed row is either counted as done or split into ranges to load again, never both. Every loader uses this
module, so all agree. Not thread-safe: the session's lock guards the batch.
"""

from dataclasses import dataclass

from kerasfeed.errors import SceneError
from kerasfeed.loaders.base import Job
from kerasfeed.loaders.batches.pending_batch import BatchInProgress
from kerasfeed.loaders.failures.failure_log import MOST_STAND_INS, FailureLog, replacement
from kerasfeed.util.error_text import exception_text

Range = tuple[int, int]
LEFT_OUT = -1  # replaces a scene's index in a batch of a collate function


@dataclass(frozen=True)
class Recovery:
    """Apply the policy of one feed."""

    job: Job
    failure_log: FailureLog

    def begin(self, batch: BatchInProgress, ranges: list[Range]) -> list[Range]:
        """Return the ranges of a new batch that are safe to load.

        Scenes that are known to end their workers are left out.
        """
        for row in range(batch.rows) if self.failure_log.has_fatal else ():
            error = self.failure_log.fatal(int(batch.slot.view.indices[row]), batch.epoch)
            if error is None:
                continue
            number = next((number for number, (start, stop) in enumerate(ranges) if start <= row < stop), None)
            if number is not None:
                ranges[number : number + 1] = self.handle(batch, *ranges[number], row, error)
        return ranges

    def handle(
        self, batch: BatchInProgress, start: int, stop: int, row: int | None, error: BaseException
    ) -> list[Range]:
        """Handle rows [start, stop) after the scene in `row` failed.

        `row` is None if the scenes were read at once, and any may be the cause.

        Returns:
            Ranges to load (again). If there are none, all of [start, stop) is done.
        """
        if batch.future.done():
            batch.add(start, stop, {})
            return []
        if self.failure_log.policy.on_error == "raise":
            batch.fail(start, stop, start if row is None else row, error)
            return []
        if row is None and self.job.maker:  # the collate function failed, or a call before it
            batch.fail(start, stop, start, error)
            return []
        if row is None and stop - start > 1:
            return [(each, each + 1) for each in range(start, stop)]
        row = start if row is None else row
        index = int(batch.slot.view.indices[row])
        refusal = self.failure_log.refusal(index, batch.epoch, error)
        if refusal is not None:
            batch.fail(start, stop, row, refusal)
            return []
        if self.failure_log.policy.on_error != "replace":
            return self._left_out(batch, start, stop, row)
        stand_in = self._stand_in(batch, row, index)
        if stand_in is None:
            batch.fail(start, stop, row, _no_stand_in(batch.replaced[row][0], error))
            return []
        batch.slot.view.indices[row] = stand_in
        return [(start, stop)] if self.job.maker else [*_around(start, stop, row), (row, row + 1)]

    def _left_out(self, batch: BatchInProgress, start: int, stop: int, row: int) -> list[Range]:
        """Continue without a row.

        A batch of a collate function is made again.
        """
        if not self.job.maker:
            batch.leave_out(row)
            return _around(start, stop, row)
        batch.empty_rows.add(row)
        batch.slot.view.indices[row] = LEFT_OUT
        if len(batch.empty_rows) < batch.rows:
            return [(start, stop)]
        batch.add(start, stop, {})
        return []

    def _stand_in(self, batch: BatchInProgress, row: int, index: int) -> int | None:
        original, attempt = batch.replaced.get(row, (index, 0))
        batch.replaced[row] = (original, attempt)
        while self.job.plan.length > 1 and attempt < MOST_STAND_INS:
            attempt += 1
            batch.replaced[row] = (original, attempt)
            drawn = replacement(self.job.plan.seed, batch.epoch, original, attempt, self.job.plan.length)
            if self.failure_log.fatal(drawn, batch.epoch) is None:
                return drawn
        return None


def _around(start: int, stop: int, row: int) -> list[Range]:
    return [(first, last) for first, last in ((start, row), (row + 1, stop)) if first < last]


def _no_stand_in(index: int, error: BaseException) -> SceneError:
    failure = SceneError(
        f"scene {index} failed, and no other scene could be loaded to replace it ({MOST_STAND_INS} were tried, or "
        f"there is none). The last one failed with {exception_text(error)}"
    )
    failure.__cause__ = error
    return failure
