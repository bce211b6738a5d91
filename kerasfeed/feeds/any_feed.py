"""`AnyFeed`: what every feed has, whether it can be indexed or only be read forward.

Invariant: it decides nothing about data: a feed's batches are those that its one loader makes.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Self

from kerasfeed.feeds.cursor import CursorThreads, RequestLog
from kerasfeed.feeds.display import public_names
from kerasfeed.feeds.options import FeedOptions
from kerasfeed.loaders.arguments import NO_METHODS
from kerasfeed.loaders.auto_workers import Choice
from kerasfeed.loaders.base import Job, LoaderStats
from kerasfeed.loaders.batches.masking import weighted
from kerasfeed.loaders.loader import Loader
from kerasfeed.orders.plan import Plan
from kerasfeed.spec.field_forms import batch_structure
from kerasfeed.spec.nesting import lists_as_tuples
from kerasfeed.spec.scene_spec import SceneSpec, with_open_rows

_PACKAGE = __name__.split(".")[0]
# Each is called by some consumers of a feed, and not by others.
_FINAL = ("__getitem__", "__iter__", "__len__", "epoch", "num_batches", "on_epoch_begin", "on_epoch_end")


class AnyFeed(ABC):
    """Batches of a loader.

    Attributes:
        plan: Which scenes each batch has.
        job: What the loader was told.
        request_log: When batches were asked for.
        cursors: Threads that take batches for datasets.
    """

    _public: ClassVar[frozenset[str]]
    _no_methods: ClassVar[Mapping[str, str]] = NO_METHODS
    _instead_of_overriding = (
        "kf.Feed(kf.Map(sequence, function), ...) changes scenes, and collate=function makes the batches. "
        "on_epoch_begin and on_epoch_end belong to the class of the sequence"
    )
    plan: Plan
    job: Job
    _loader: Loader

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Refuse a subclass of users that overrides what only some consumers would call.

        Raises:
            TypeError: It does.
        """
        super().__init_subclass__(**arguments)
        kinds = (kind for kind in cls.__mro__ if kind.__module__.partition(".")[0] == _PACKAGE)
        base: type = next(kinds)
        changed = [name for name in _FINAL if getattr(cls, name, None) is not getattr(base, name, None)]
        if changed and base is not cls:
            raise TypeError(
                f"{cls.__name__} overrides {' and '.join(changed)} of kf.{base.__name__}, which only some of loops, "
                f"fit and datasets would call. {cls._instead_of_overriding}"
            )

    def __init__(self, options: FeedOptions) -> None:
        self._options = options
        self._reset_state()

    def _reset_state(self) -> None:
        self.request_log = RequestLog()
        self.cursors = CursorThreads()

    # ---- what a framework adds

    def _init_framework(self, ahead: int) -> None:  # noqa: B027 - frameworks may add to it
        """The feed is made; `ahead`: batches in flight ahead of the consumer."""

    def _is_read_by_framework(self) -> bool:
        """Whether code of a framework reads the property that calls this."""
        return False

    # ---- what subclasses say

    @property
    @abstractmethod
    def scene_spec(self) -> SceneSpec:
        """Spec of a scene; the first use may read a few scenes, or wait for them. The loader is there then."""

    @abstractmethod
    def stats(self) -> LoaderStats:
        """Counters at this moment."""

    @abstractmethod
    def issue_warnings(self) -> None:
        """Issue the warnings that wait, here where the user stands."""

    @abstractmethod
    def close(self) -> None:
        """Nothing more is wanted of the feed, or nothing more comes; idempotent."""

    # ---- what they share

    if not TYPE_CHECKING:  # which would take any name for one that there is

        def __getattr__(self, name: str) -> Any:
            if name in self._no_methods:
                raise AttributeError(f"{type(self).__name__} has no method {name!r}. {self._no_methods[name]}")
            return object.__getattribute__(self, name)  # for its error: a property that fails says what it lacks

    @property
    def worker_choice(self) -> Choice | None:
        """What "auto" came to, with what it was chosen by; None where nothing was to be chosen, or not yet."""
        loader = getattr(self, "_loader", None)  # of a stream there is none before its first batch
        return None if loader is None else loader.choice

    @property
    def workers(self) -> int:
        """Number of workers; 0 where scenes are loaded in the calling thread. Of "auto" known with the first batch.

        A stream has none before its first batch: until then, as many as were asked for, or the number of cores.

        Examples:
            >>> with kf.Feed([1.0, 2.0], batch_size=2, workers=0) as feed:
            ...     feed.workers
            0
        """
        if self._is_read_by_framework():
            return 1  # a Keras that takes the feed as any PyDataset would start this many threads
        if getattr(self, "_loader", None) is None:  # of a stream
            return self._options.workers
        stats: LoaderStats = self.stats()
        return stats.workers_argument

    @workers.setter
    def workers(self, value: object) -> None:
        raise AttributeError(f"the workers of a feed are given when it is made: {type(self).__name__}(..., workers=N)")

    @property
    def seed(self) -> int:
        """The seed of the feed, at least 0: the argument, or the one that was drawn.

        Examples:
            >>> with kf.Feed([1.0, 2.0], batch_size=2, seed=7, workers=0) as feed:
            ...     feed.seed
            7
        """
        return self.plan.seed

    @property
    def element_spec(self) -> Any:
        """Spec of a batch: nested as a batch, with an `ArraySpec` for each array.

        The first axis is the batch; an axis whose size varies is None. A ragged field is a `kerasfeed.RaggedArray` of
        two specs. The first use reads a few scenes; that of a stream waits for the first batch.

        Examples:
            >>> with kf.Feed(np.zeros((10, 3), np.float32), batch_size=5, workers=0) as feed:
            ...     feed.element_spec
            ArraySpec(shape=(5, 3), dtype=dtype('float32'))
        """
        spec = self.scene_spec
        full = weighted(spec) if self.job.weighs else spec
        layout = self._loader.layout
        if self.plan.batch_size is None and self.job.spec is None:
            full = with_open_rows(full)
        if layout is None or not layout.batched:
            return full.unflatten(full.fields)
        return batch_structure(full, layout.forms, self.plan.rows if self.plan.is_uniform else None)

    def without_lists(self, batch: Any) -> Any:
        """A batch with tuples in place of lists, as TensorFlow and Keras take it. Issues the warnings that wait."""
        self.issue_warnings()
        return lists_as_tuples(batch) if self._loader.spec.has_lists else batch

    def __dir__(self) -> list[str]:
        return public_names(self, self._public)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
