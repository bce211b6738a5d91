"""`AnyFeed`: the base class of indexed feeds and of streams.

Invariant: it decides nothing about data: one loader makes all batches of a feed.
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
# Only some consumers of a feed call these methods.
_FINAL = ("__getitem__", "__iter__", "__len__", "epoch", "num_batches", "on_epoch_begin", "on_epoch_end")


class AnyFeed(ABC):
    """Batches of a loader.

    Attributes:
        plan: Which scenes each batch has.
        job: The job of the loader.
        request_log: Times of the requests for batches.
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
        """Refuse an override of a method that only some consumers call.

        Raises:
            TypeError: The subclass overrides such a method.
        """
        super().__init_subclass__(**arguments)
        kinds = (kind for kind in cls.__mro__ if kind.__module__.partition(".")[0] == _PACKAGE)
        base: type = next(kinds)
        changed = [name for name in _FINAL if getattr(cls, name, None) is not getattr(base, name, None)]
        if changed and base is not cls:
            raise TypeError(
                f"{cls.__name__} overrides {' and '.join(changed)} of kf.{base.__name__}, which only some "
                f"consumers (loops, fit, datasets) would call. {cls._instead_of_overriding}"
            )

    def __init__(self, options: FeedOptions) -> None:
        self._options = options
        self._reset_state()

    def _reset_state(self) -> None:
        self.request_log = RequestLog()
        self.cursors = CursorThreads()

    # ---- hooks for frameworks

    def _init_framework(self, ahead: int) -> None:  # noqa: B027 - frameworks may add to it
        """Finish `__init__` for a framework.

        A stream calls this again for its copy in `map`.

        `ahead` is the number of batches in flight ahead of the consumer.
        """

    def _is_read_by_framework(self) -> bool:
        """Whether a framework reads the property that calls this method."""
        return False

    # ---- defined by subclasses

    @property
    @abstractmethod
    def scene_spec(self) -> SceneSpec:
        """Spec of a scene.

        The first use creates the loader, and may read a few scenes or wait for them.
        """

    @abstractmethod
    def stats(self) -> LoaderStats:
        """Return the current counters."""

    @abstractmethod
    def issue_warnings(self) -> None:
        """Issue the deferred warnings with the user's line as their location."""

    @abstractmethod
    def close(self) -> None:
        """Stop the feed and free its resources; idempotent."""

    # ---- shared

    if not TYPE_CHECKING:  # else type checkers would accept every name

        def __getattr__(self, name: str) -> Any:
            if name in self._no_methods:
                raise AttributeError(f"{type(self).__name__} has no method {name!r}. {self._no_methods[name]}")
            return object.__getattribute__(self, name)  # raises the original AttributeError of a failing property

    @property
    def worker_choice(self) -> Choice | None:
        """The choice for "auto" and its reason; None if there is none."""
        loader = getattr(self, "_loader", None)  # a stream has none before its first batch
        return None if loader is None else loader.choice

    @property
    def workers(self) -> int:
        """Number of workers; 0 if the calling thread loads the scenes.

        "auto" is resolved with the first batch. Before its first batch a stream has no workers; the value is then the
        requested number, or the number of cores.

        Examples:
            >>> with kf.Feed([1.0, 2.0], batch_size=2, workers=0) as feed:
            ...     feed.workers
            0
        """
        if self._is_read_by_framework():
            return 1  # Keras would start this many threads for a PyDataset
        if getattr(self, "_loader", None) is None:  # a stream before its first batch
            return self._options.workers
        stats: LoaderStats = self.stats()
        return stats.workers_argument

    @workers.setter
    def workers(self, value: object) -> None:
        raise AttributeError(f"the workers of a feed are given when it is made: {type(self).__name__}(..., workers=N)")

    @property
    def seed(self) -> int:
        """The seed of the feed, at least 0: the argument, or random.

        Examples:
            >>> with kf.Feed([1.0, 2.0], batch_size=2, seed=7, workers=0) as feed:
            ...     feed.seed
            7
        """
        return self.plan.seed

    @property
    def element_spec(self) -> Any:
        """Spec of a batch, with an `ArraySpec` for each array.

        The first axis is the batch; an axis whose size varies is None. A ragged field is a `kerasfeed.RaggedArray` of
        two specs. The first use reads a few scenes, or waits for the first batch of a stream.

        Examples:
            >>> with kf.Feed(np.zeros((10, 3), np.float32), batch_size=5, workers=0) as feed:
            ...     feed.element_spec
            ArraySpec(shape=(5, 3), dtype=dtype('float32'))
        """
        spec = self.scene_spec
        full = weighted(spec) if self.job.has_weights else spec
        layout = self._loader.layout
        if self.plan.batch_size is None and self.job.spec is None:
            full = with_open_rows(full)
        if layout is None or not layout.batched:
            return full.unflatten(full.fields)
        return batch_structure(full, layout.forms, self.plan.rows if self.plan.is_uniform else None)

    def without_lists(self, batch: Any) -> Any:
        """Return a batch with tuples for lists; issue deferred warnings.

        TensorFlow and Keras need tuples.
        """
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
