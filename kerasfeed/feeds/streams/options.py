"""What the user of a stream asks for, checked, and the parts made of it.

Invariant: nothing is started before `make_core`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from kerasfeed.feeds.streams.item_store import FileStore, ItemStore, MemoryStore
from kerasfeed.feeds.streams.pipeline import Chained, Function, StoredItems, StreamCore
from kerasfeed.feeds.streams.plan import StreamPlan
from kerasfeed.feeds.streams.source import Source
from kerasfeed.loaders.arguments import check_collate, check_policy, check_seed, check_workers
from kerasfeed.loaders.base import Job, Loader
from kerasfeed.loaders.environment import Environment
from kerasfeed.loaders.factory import make_loader
from kerasfeed.loaders.failures.policy import FailurePolicy
from kerasfeed.loaders.inline import InlineLoader
from kerasfeed.loaders.processes.loader import processes_supported
from kerasfeed.orders.base import Sequential
from kerasfeed.spec.collation import Collation
from kerasfeed.spec.conformance import scene_spec_of
from kerasfeed.spec.scene_spec import SceneSpec
from kerasfeed.util.error_text import guarded, shown
from kerasfeed.util.resources import cores, memory
from kerasfeed.util.validate import check_integer


@dataclass(frozen=True)
class StreamOptions:
    """The arguments that all streams have.

    Attributes:
        plan: Batch size, seed and remainder.
        workers: As it was given.
        worker_type: "auto", "process" or "thread".
        policy: What to do about scenes that fail.
        max_memory: Ceiling of the slots, bytes.
        ahead: Batches made ahead of the consumer, at least 1.
        collation: How scenes become a batch.
        spec: Spec of a scene, where it was given.
        environment: Directory and environment of worker processes, which start later.
    """

    plan: StreamPlan
    workers: Any
    worker_type: str
    policy: FailurePolicy
    max_memory: int
    ahead: int
    collation: Collation
    spec: SceneSpec | None
    environment: Environment

    @classmethod
    def checked(
        cls,
        batch_size: int | None,
        *,
        spec: Any,
        seed: int | None,
        drop_remainder: bool,
        pad_remainder: bool,
        workers: Any,
        worker_type: Any,
        max_queue_size: int,
        max_memory: int | None,
        collate: Any,
        on_error: Any,
        max_failures: Any,
        timeout: float | None,
        error_log: Any,
    ) -> "StreamOptions":
        """Check the arguments of a stream; see `kerasfeed.StreamFeed` for their meaning.

        Raises:
            TypeError: An argument is of the wrong type.
            ValueError: An argument is out of range, or two do not go together.
        """
        if batch_size is not None:
            batch_size = check_integer("batch_size", batch_size, 1)
        if pad_remainder:
            _check_padding(batch_size, drop_remainder, on_error)
        plan = StreamPlan(
            batch_size=batch_size, seed=check_seed(seed, Sequential(), 1), drop_remainder=bool(drop_remainder),
            pad_remainder=bool(pad_remainder),
        )  # fmt: skip
        count = check_workers(workers, worker_type)
        policy = check_policy(on_error, max_failures, timeout, error_log, batched=batch_size is not None, workers=count)
        if on_error == "replace":
            raise ValueError(
                "on_error='replace' draws another scene by its index, and a stream has none: use on_error='skip', or "
                "'mask', which gives failed scenes sample_weight 0"
            )
        return cls(
            plan=plan, workers=workers, worker_type=worker_type, policy=policy,
            max_memory=memory() // 4 if max_memory is None else check_integer("max_memory", max_memory, 1),
            ahead=check_integer("max_queue_size", max_queue_size, 1),
            collation=check_collate(collate, plan, on_error),
            spec=None if spec is None else scene_spec_of(spec),
            environment=Environment.now(),
        )  # fmt: skip

    def make_core(
        self,
        plan: StreamPlan,
        make_source: Callable[[], Source],
        functions: tuple[Function, ...],
        spec: SceneSpec | None,
    ) -> StreamCore:
        """Start what makes batches of a source's items.

        Args:
            plan: Nobody else's.
            make_source: Makes the source.
            functions: Applied to every item one after the other, by workers.
            spec: Spec of what they return, where it is known.

        Raises:
            TypeError: Something cannot be sent to worker processes.
            OSError: There can be no worker processes.
        """
        count = self._map_workers() if functions else 0
        processes = count > 0 and self.worker_type != "thread" and processes_supported()
        source = make_source()
        item_store: ItemStore = FileStore(plan.rows, self.ahead) if processes else MemoryStore(plan.rows)
        item_text = partial(_item_text, item_store) if functions else None
        job = Job(
            StoredItems(item_store, Chained(functions) if functions else None), plan, count, self.max_memory,
            self.ahead, self.policy, self.collation, spec=spec, inherit=item_store.fds, item_text=item_text,
            environment=self.environment,
            # Threads that fill a queue may use the global random generators just then; without functions nothing does.
            watches_random=bool(functions) and (processes or source.afresh),
        )  # fmt: skip
        try:
            loader: Loader = make_loader(job, self.worker_type) if count else InlineLoader(job)
        except BaseException:
            source.close()
            item_store.close()
            raise
        return StreamCore(source, item_store, loader, job, threaded=self.workers != 0)

    def _map_workers(self) -> int:
        return cores() if self.workers == "auto" else int(self.workers)


def _item_text(item_store: ItemStore, epoch: int, index: int) -> str:
    # Its batch may have been cancelled meanwhile, or it may not unpickle.
    return guarded(lambda: shown(item_store.item(epoch, index)), lambda _: f"number {index} of repetition {epoch}")


def _check_padding(batch_size: int | None, drop_remainder: bool, on_error: Any) -> None:
    if drop_remainder or batch_size is None or on_error == "skip":
        raise ValueError(
            "pad_remainder=True fills the last batch up with scenes of sample_weight 0, so that all have one size: it "
            "needs a batch_size, and goes neither with drop_remainder=True nor with on_error='skip'"
        )
