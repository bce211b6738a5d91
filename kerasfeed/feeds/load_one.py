"""`kf.load`: loads one batch or scene in the calling thread.

Invariant: the result equals the workers' result for the same epoch and step, bit for bit. An exception of the sequence
is raised here, whatever the feed's `on_error`. The feed, its workers and its epochs do not change.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from kerasfeed.errors import FeedWarning
from kerasfeed.loaders.base import Job
from kerasfeed.loaders.batches.masking import with_weights
from kerasfeed.loaders.batches.spec_inference import layout_for
from kerasfeed.loaders.failures.exceptions import SceneLocation, for_consumer
from kerasfeed.loaders.loader import Loader
from kerasfeed.pool.processes.shared_objects import held_by
from kerasfeed.pool.worker_hooks import end_worker
from kerasfeed.sequences.base import SceneContext, Worker, optional_method
from kerasfeed.sequences.context import MakeContext
from kerasfeed.sequences.global_random import SeedingContext, frameworks, generators_put_back
from kerasfeed.sequences.view_base import shallow_copy
from kerasfeed.spec.inference import describe
from kerasfeed.util.deferred_warnings import warn_caller
from kerasfeed.util.error_text import pluralize
from kerasfeed.util.validate import check_integer

if TYPE_CHECKING:
    from kerasfeed.feeds.base import BaseFeed

_WORKER = "the calling thread"
_MEMORY = 1 << 62  # no limit, because only one batch is loaded


def load(feed: "BaseFeed", *, epoch: int, step: int | None = None, index: int | None = None) -> Any:
    """Load one batch or scene in the calling thread, for debugging.

    This works even if the workers hang or die, and after `feed.close()`. `on_worker_begin` and `on_worker_end` are
    called on a shallow copy of the sequence, before and after loading. A sequence that changes between epochs is read
    in its current state.

    Args:
        feed: The feed.
        epoch: Epoch, from 0. It determines the order of the scenes, and `self.rng` in each.
        step: Number of the batch, in [0, len(feed)).
        index: Index of a scene, in [0, len(feed.sequence)). Give either `step` or `index`.

    Returns:
        With `step` the batch, nested like the scenes; each field has a leading axis of B <= batch_size scenes. With
        `index` the scene `sequence[index]`, with the random numbers of that epoch.

    Raises:
        TypeError: `feed` is not a feed; both or neither of `step` and `index` are given; or one is not an integer.
        ValueError, IndexError: A number is out of range.
        Exception: An exception of the sequence, with epoch, step and index as a note.

    Examples:
        >>> with kf.Feed(np.arange(10), batch_size=4, workers=0) as feed:
        ...     print(kf.load(feed, epoch=0, step=2))
        ...     print(kf.load(feed, epoch=0, index=7))
        [8 9]
        7
    """
    if not hasattr(feed, "plan") or not hasattr(feed, "sequence"):
        raise TypeError(
            f"kf.load(feed, epoch=..., step=...) loads a batch of a kerasfeed.Feed, received a {type(feed).__name__}"
        )
    if (step is None) == (index is None):
        raise TypeError(
            f"kf.load needs either step (a whole batch) or index (one scene), received step={step!r}, index={index!r}"
        )
    epoch = check_integer("epoch", epoch, 0)
    kind: MakeContext = SceneContext
    put_back: Callable[[], AbstractContextManager[None]] = nullcontext
    if feed.stats().worker_type == "process":  # worker processes seed the global random generators
        held = held_by(feed.sequence, feed.job.maker)
        kind, put_back = partial(SeedingContext, held=held), partial(generators_put_back, held)
    if index is not None:
        index = check_integer("index", index, 0)
        if index >= feed.plan.length:
            last = feed.plan.length - 1
            raise IndexError(
                f"index {index} is out of range: the sequence has {pluralize(last + 1, 'scene')}, 0 to {last}"
            )
        with scenes_read_here(feed.sequence, kind(feed.plan.seed, epoch)) as read, put_back():
            return _loaded(partial(read, index, None), kind)
    step = check_integer("step", step, 0)
    indices = feed.plan.indices(epoch, step).tolist()  # refuses a step that is out of range
    job = Job(_copy_for_hooks(feed.sequence), feed.plan, 1, _MEMORY, 1, collate=feed.collation)
    layout = feed.layout
    if layout is None:  # infer it from the scenes of this batch only, because other scenes may fail
        describe_scene = describe if job.maker is None else job.maker.describe
        with scenes_read_here(feed.sequence, kind(feed.plan.seed, epoch)) as read, put_back():
            # An index may repeat: by padding, or drawn twice.
            scenes = [(index, read(index, step)) for index in dict.fromkeys(indices)]
        layout = layout_for(job, [(index, describe_scene(scene)) for index, scene in scenes])
    with closing(Loader(job, "inline", layout, kind)) as loader, put_back():
        batch = _loaded(lambda: loader.submit(epoch, step).result(), kind)
    # This job raises on failures, so it adds no weights for them.
    return with_weights(batch, len(indices), (), 0) if feed.job.has_weights and not job.has_weights else batch


def _loaded(load: Callable[[], Any], kind: MakeContext) -> Any:
    """Return `load()`, called again if it imported PyTorch or TensorFlow.

    The import creates an unseeded random generator. Worker processes reload such scenes too.
    """
    before = frameworks()
    loaded = load()
    return loaded if kind is SceneContext or frameworks() == before else load()


def _copy_for_hooks(sequence: Any) -> Any:
    """Return a copy for the worker hooks, if there are any.

    The hooks may change the copy without affecting the feed's sequence.
    """
    if optional_method(sequence, "on_worker_begin") is None and optional_method(sequence, "on_worker_end") is None:
        return sequence
    return shallow_copy(sequence)


@contextmanager
def scenes_read_here(sequence: Any, context: SceneContext) -> Iterator[Callable[[int, int | None], Any]]:
    """Read scenes in the calling thread, between the worker hooks.

    The hooks are called on a copy of the sequence.

    Yields:
        A function from the index of a scene, and the step for error messages, to the scene.
    """
    own = _copy_for_hooks(sequence)

    def read(index: int, step: int | None) -> Any:
        context.move_to(index)
        try:
            with context:
                return own[index]
        except Exception as error:
            # Adds the note; the exception itself is raised below.
            for_consumer(error, SceneLocation((index,), context.epoch, step, _WORKER))
            raise

    begin = optional_method(own, "on_worker_begin")
    if begin is not None:
        begin(Worker(0, 1, "inline"))
    try:
        yield read
    finally:
        warning = end_worker(own, _WORKER)
        if warning:
            warn_caller(warning, FeedWarning)
