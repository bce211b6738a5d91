"""One shard written by one worker: scenes loaded, encoded, and put under the shard's name when all are there.

Invariant: a shard's name stands for a complete shard, through to the disk, or for nothing. Writing one again, after a
crash or because two were told to, gives the same file, so nothing is doubled and nothing lost.
"""

import math
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle

from kerasfeed.errors import KerasfeedError, SpecError
from kerasfeed.loaders.batches.filler import failed, probe
from kerasfeed.loaders.batches.spec_inference import Probe
from kerasfeed.pool.task import FailedTaskError
from kerasfeed.sequences.base import SceneContext, enter_context
from kerasfeed.sequences.context import current_context
from kerasfeed.sequences.view_base import HookForwarder
from kerasfeed.util.error_text import add_note, cause_of, message_of, reworded
from kerasfeed.writers.hdf5.sink import appearing
from kerasfeed.writers.shard_format import ShardFormat
from kerasfeed.writers.shared_progress import PlannedShard, SharedProgress

LEARNING, PROBING, WRITING = range(3)
_TRIED, _TRIALS = 64, 3


class StoppedError(KerasfeedError):
    """Internal: somebody else has failed, or the caller was interrupted."""


class ShardSequence(HookForwarder):
    """A sequence whose items are shards: loading one writes it. So the loaders write shards, whatever befalls workers.

    What an item is the epoch says, so that one loader does all: in `LEARNING`, in which loaders look at a few items to
    learn what they are, nothing; in `PROBING`, the spec of a scene; in `WRITING`, a shard of those on the shared.

    Args:
        sequence: Where the scenes come from.
        length: Its length.
        seed: Behind each scene's `rng`.
        shared: The file of the shared, which is there from `WRITING` on.
    """

    def __init__(self, sequence: Any, length: int, seed: int, shared: Path) -> None:
        self.sequence = sequence
        self._length = length
        self._seed = seed
        self._path = shared
        self._shared: SharedProgress | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_shared": None}

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, item: int) -> bytes:
        """Describe one scene (a pickled `Probe`), or write one shard, unless it is there."""
        context = current_context()
        assert context is not None
        if context.epoch == LEARNING:
            return b""
        return self._described(item) if context.epoch == PROBING else self._done(item)

    def _described(self, index: int) -> bytes:
        begin = time.perf_counter()
        try:
            spec = probe(self.sequence, index, self._seed)
        except FailedTaskError as carrier:
            raise _annotated(carrier) from None
        pickled: bytes = cloudpickle.dumps(Probe(index, spec, time.perf_counter() - begin))
        return pickled

    def _done(self, item: int) -> bytes:
        shared = self._shared
        if shared is None:
            shared = self._shared = SharedProgress(self._path)
        shard, shard_format = shared.shards[item], shared.shard_format
        path = Path(shard.path)
        if not (path.exists() and shard_format.count(path) == len(shard.indices)):
            try:
                _write(shard_format, self._encoded(shard, shard_format, shared), shard, path)
            except FailedTaskError as carrier:
                shared.stop()  # nobody begins another
                raise _annotated(carrier, shard) from None
        shared.note(shard.number, len(shard.indices), shard.indices[-1])
        return b""

    def trial(self, shard_format: ShardFormat, seconds: float) -> float:
        """What a scene takes, all in, s; tried for `seconds` with files that are gone at once.

        The best of three runs over different scenes: short ones are at the mercy of whatever else the machine does.

        Raises:
            OSError: There is no room for such a file.
            Exception: What the sequence raised.
        """
        step = max(1, self._length // _TRIED)
        end = time.perf_counter() + seconds
        found = math.inf
        for first in range(min(step, _TRIALS)):
            found = min(found, self._trial(shard_format, range(first, self._length, step)[:_TRIED], end))
            if time.perf_counter() > end:
                break
        return found

    def _trial(self, shard_format: ShardFormat, indices: range, end: float) -> float:
        shard, done = PlannedShard(0, "", indices), 0

        def some() -> Iterator[Any]:
            nonlocal done
            for encoded in self._encoded(shard, shard_format, None):
                yield encoded
                done += 1
                if time.perf_counter() > end:
                    return

        with tempfile.TemporaryFile() as file:
            begin = time.perf_counter()
            try:
                shard_format.write(file.fileno(), some(), len(shard.indices))
            except FailedTaskError as carrier:
                raise _annotated(carrier) from None
            return (time.perf_counter() - begin) / done

    def _encoded(self, shard: PlannedShard, shard_format: ShardFormat, shared: SharedProgress | None) -> Iterator[Any]:
        # Where a worker process seeds the global random generators for its item, they are for each scene of it.
        context = type(current_context() or SceneContext(0, 0))(self._seed, 0)
        for done, index in enumerate(shard.indices):
            if shared is not None:
                if shared.stopped:
                    raise StoppedError("the writing was broken off")
                shared.note(shard.number, done, index)
            context.move_to(index)
            previous = enter_context(context)
            try:
                encoded = _checked(shard_format, self.sequence[index], index)
            except BaseException as error:
                raise failed(index, None) from error
            finally:
                enter_context(previous)
            yield encoded


def _checked(shard_format: ShardFormat, scene: Any, index: int) -> Any:
    try:
        return shard_format.encode(scene)
    except SpecError as error:
        raise SpecError(f"scene {index}: {message_of(error)}") from None


def _write(shard_format: ShardFormat, encoded: Iterator[Any], shard: PlannedShard, path: Path) -> None:
    with appearing(path, overwrite=True) as (_, descriptor):
        try:
            written = shard_format.write(descriptor, encoded, len(shard.indices))
        except OSError as error:
            raise failed_write(error, shard.path) from error
    shard_format.finish(path, written)


def failed_write(error: OSError, path: str) -> OSError:
    """The same error, of a file that was to be written whole."""
    return reworded(error, f"writing {path!r} failed and left nothing of it: {message_of(error)}")


def _annotated(carrier: FailedTaskError, shard: PlannedShard | None = None) -> BaseException:
    """What the sequence raised, with a note of the scene, and of the shard; None where the spec was to be learnt.

    No comma follows the number: loaders take such a note of the same number for their own, of an earlier time.
    """
    error = cause_of(carrier)
    assert error is not None
    where = "(read to learn the spec)" if shard is None else f"of shard {shard.number} ({Path(shard.path).name!r})"
    add_note(
        error, f"kerasfeed: scene {carrier.place.scene} {where}\nReproduce it here: sequence[{carrier.place.scene}]"
    )
    return error
