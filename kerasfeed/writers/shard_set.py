"""A set of shards written by the loaders' workers: the spec found, each shard loaded like a scene, progress shown.

Invariant: workers are started once. Whatever ends this, no temporary file of ours is left but those of a program that
was killed, which the next call removes; shards that were complete stay.
"""

import contextlib
import math
import pickle
import re
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kerasfeed.errors import FeedWarning, SceneTimeoutError, WorkerDiedError, WorkerStartError
from kerasfeed.loaders.base import Loader
from kerasfeed.loaders.batches.spec_inference import Probe
from kerasfeed.spec.scene_spec import SceneSpec, merge, probe_indices
from kerasfeed.spec.spec_json import as_scene_spec, spec_to_json
from kerasfeed.util.deferred_warnings import warn_caller
from kerasfeed.util.error_text import notes_of, set_notes
from kerasfeed.writers.resume_lock import claimed
from kerasfeed.writers.shard_format import ShardFormat
from kerasfeed.writers.shard_task import PROBING, WRITING, ShardSequence, StoppedError
from kerasfeed.writers.shared_progress import PlannedShard, SharedProgress, shown
from kerasfeed.writers.worker_options import WorkerOptions, copied

SHORT_SECONDS = 1.0  # two processes take 0.5 s to start, and save half
_SLOW_SECONDS = 1e-3  # of a scene; below, describing it is what takes time
_TRIAL_SECONDS = 0.1
_TICK = 0.01
# What loaders note speaks of items, which here are shards.
_LOADERS_NOTE = re.compile(r"kerasfeed: scenes? [\d, .]+(\(\w+\))?, epoch")


@dataclass(frozen=True)
class FileSet:
    """What a call writes.

    Attributes:
        beside: A path of the set, after which the hidden files of an unfinished one are named.
        names: The files that will be there at the end.
        arguments: Those that a call must have to go on with what another began, as JSON.
        most: Shards there are at most.
        cut: From the spec of a scene to the shards, and what a shard is.
        discard: Removes all of an earlier set; takes names of files that an unfinished one had.
        finish: Makes the set of the complete shards.
        title: Of the progress bar.
    """

    beside: Path
    names: tuple[Path, ...]
    arguments: dict[str, Any]
    most: int
    cut: Callable[[SceneSpec], tuple[tuple[PlannedShard, ...], ShardFormat]]
    discard: Callable[[list[str]], None]
    finish: Callable[[SceneSpec, tuple[PlannedShard, ...]], None]
    title: str


def write_set(
    options: WorkerOptions, files: FileSet, *, spec: SceneSpec | None = None, overwrite: bool, progress: bool
) -> None:
    """Write a set of files, each shard by one worker, those that are there already left as they are.

    Raises:
        Exception: What the sequence raised, with scene and shard as a note; FileExistsError; SpecError; OSError;
            WorkerDiedError.
    """
    hidden = files.beside.with_name(f".{files.beside.name}")
    with claimed(Path(f"{hidden}.unfinished")) as claim:
        if not overwrite:
            claim.refuse(files.names)
        with _Writer(options, files, Path(f"{hidden}.progress")) as writer:
            spec = writer.learn(spec)
            shards, shard_format = files.cut(spec)
            fingerprint = {
                "sequence": type(options.sequence).__qualname__,
                "length": options.length,
                "seed": options.seed,
                **files.arguments,
                "files": [path.name for path in files.names],
                "shards": len(shards),
                "spec": spec_to_json(spec),
            }
            claim.begin(fingerprint, overwrite=overwrite, discard=files.discard)
            writer.write(shards, shard_format, bar=progress)
        writer.issue_warnings()
        files.finish(spec, shards)
        claim.done()


class _Writer(contextlib.AbstractContextManager["_Writer"]):
    """One loader that learns the spec, then writes the shards."""

    def __init__(self, options: WorkerOptions, files: FileSet, path: Path) -> None:
        self._length = options.length
        self._files = files
        self._options = options
        self._item = ShardSequence(options.sequence, options.length, options.seed, path)
        self._path = path
        self._shared: SharedProgress | None = None
        self._loader: Loader | None = None
        self._respawns = 0

    def learn(self, spec: SceneSpec | None) -> SceneSpec:
        """Find a loader, and the spec of a scene from a few of them, where it is not given.

        Raises:
            Exception: What the sequence raised; SpecError.
        """
        if self._options.chooses:
            spec = self._try_here(spec)
        if self._loader is None:
            self._loader = self._options.loader(self._item, self._files.most)
        return self._probed(self._loader) if spec is None else spec

    def _try_here(self, spec: SceneSpec | None) -> SceneSpec | None:
        """Take a loader in the calling thread, if that has written all before processes would be of use.

        It loads a copy: a sequence that has opened its files could no longer be sent to anybody.
        """
        item = copied(self._item)
        if item is None:
            return spec
        loader = self._options.loader(item, 0)
        try:
            spec = spec or self._probed_soon(loader)
            if spec is not None and self._seconds(item, spec, loader) < SHORT_SECONDS:
                self._loader = loader
        finally:
            if self._loader is None:
                loader.close()
        return spec

    def _seconds(self, item: ShardSequence, spec: SceneSpec, loader: Loader) -> float:
        """What writing everything takes in this thread, s."""
        _, shard_format = self._files.cut(spec)
        assert loader.spec.fields  # from now on it has begun
        try:
            return item.trial(shard_format, _TRIAL_SECONDS) * self._length
        except Exception:  # noqa: BLE001 - raised where the scene is written
            return math.inf

    def _probed(self, loader: Loader) -> SceneSpec:
        assert loader.spec.fields  # what an item is; no scene is read yet
        indices = probe_indices(self._length)
        futures = [loader.submit(PROBING, index) for index in indices]
        return _merged([self._outcome(future, index, None) for future, index in zip(futures, indices, strict=True)])

    def _probed_soon(self, loader: Loader) -> SceneSpec | None:
        """The spec; None where reading takes so long that workers should do it."""
        assert loader.spec.fields
        found: list[Probe] = []
        for index in probe_indices(self._length):
            found.append(self._outcome(loader.submit(PROBING, index), index, None))
            seconds = [probe.seconds for probe in found]
            is_slow = len(found) > 1 and min(seconds) > _SLOW_SECONDS and min(seconds) * self._length > SHORT_SECONDS
            if is_slow or sum(seconds) > SHORT_SECONDS / 2:
                return None
        return _merged(found)

    def write(self, shards: tuple[PlannedShard, ...], shard_format: ShardFormat, *, bar: bool) -> None:
        """Write all shards.

        Raises:
            Exception: What the sequence raised; OSError; WorkerDiedError.
        """
        for folder in {Path(shard.path).parent for shard in shards}:
            folder.mkdir(exist_ok=True)
        SharedProgress.write(self._path, shards, shard_format)
        self._shared = shared = SharedProgress(self._path)
        loader = self._loader
        assert loader is not None
        # They speak of items; what they would say is said here.
        loader.failure_log.deferred_warnings.mute("stall", "loading", "respawn")
        with shown(shared, bar=bar, title=self._files.title):
            for number, future in _submitted(loader, len(shards)):
                self._outcome(future, shared.index(number), shards[number])
        self._respawns = loader.stats().respawns

    def _outcome(self, future: "Future[Any]", index: int, shard: PlannedShard | None) -> Any:
        """What came of an item: a probe, or nothing."""
        error = future.exception()
        if error is None:
            found = future.result()
            return pickle.loads(found) if found else None
        if issubclass(type(error), WorkerDiedError | SceneTimeoutError) and not isinstance(error, WorkerStartError):
            what = "read" if shard is None else f"wrote shard {shard.number} ({Path(shard.path).name!r}), the last at"
            near = "" if shard is None else " or next to it"
            raise WorkerDiedError(
                f"workers ended again and again while they {what} scene {index}{near}. Load it in a Python of its own, "
                f"for it may end that too: sequence[{index}]. Out of memory shows as SIGKILL, a fault in a compiled "
                "library as SIGSEGV. Shards that are complete stay; the same call goes on with the others"
            ) from error
        if notes := notes_of(error):
            set_notes(error, [note for note in notes if not _LOADERS_NOTE.match(note)])
        raise error

    def __exit__(self, *_: object) -> None:
        if self._shared is not None:
            self._shared.stop()
        if self._loader is not None:
            self._loader.close()
            self._loader.failure_log.deferred_warnings.issue_last()
        if self._shared is not None:
            for path in {Path(shard.path) for shard in self._shared.shards}:
                remove_parts(path)
        self._path.unlink(missing_ok=True)

    def issue_warnings(self) -> None:
        """Warn of workers that died."""
        if self._respawns:
            warn_caller(
                f"{self._respawns} worker process{'es' * (self._respawns > 1)} died and had to be replaced. What they "
                "were writing was begun anew: no scene is lost, none is there twice",
                FeedWarning,
            )


def _merged(probes: list[Probe]) -> SceneSpec:
    return as_scene_spec(merge([(probe.index, probe.spec) for probe in probes]))


def _submitted(loader: Loader, count: int) -> Iterator[tuple[int, "Future[Any]"]]:
    """All shards in turn, a few submitted ahead; one that failed comes first."""
    waiting: deque[tuple[int, Future[Any]]] = deque()
    following = 0
    while following < count or waiting:
        while following < count and len(waiting) < loader.look_ahead:
            waiting.append((following, loader.submit(WRITING, following)))
            following += 1
        done = [each for each in waiting if each[1].done()]
        failed = next((each for each in done if not isinstance(each[1].exception(), StoppedError | None)), None)
        # Those that were only stopped wait for the one that failed.
        if failed is None and (
            waiting[0] not in done or (waiting[0][1].exception() is not None and len(done) < len(waiting))
        ):
            time.sleep(_TICK)
            continue
        yield failed or waiting.popleft()


def remove_parts(path: Path) -> None:
    """Remove temporary files of `path`."""
    for part in path.parent.glob(f".{_literal(path.name)}.*.part"):
        part.unlink(missing_ok=True)


def _literal(name: str) -> str:
    return re.sub(r"([*?\[])", r"[\1]", name)
