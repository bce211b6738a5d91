"""`kf.show`: a picture of scenes, of a batch, or of an order.

Invariant: all data are read before anything is drawn; the user's objects do not change.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.explore.show.parts import check_kinds, check_names
from kerasfeed.explore.show.shown_scenes import scenes_of_feed, scenes_of_sequence
from kerasfeed.feeds.any_feed import AnyFeed
from kerasfeed.loaders.sequence_argument import check_sequence
from kerasfeed.orders.base import Order
from kerasfeed.orders.custom import CustomOrder
from kerasfeed.orders.plan import Plan
from kerasfeed.sequences.frames import as_sequence
from kerasfeed.sequences.indexing import chosen_indices
from kerasfeed.util.error_text import class_name, pluralize
from kerasfeed.util.validate import check_integer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SCENES = 12
_MOST_POINTS = 4_000  # drawn for an order, whatever its length
_FEWEST_STEPS = 50  # drawn for an order, whatever their size
_LENGTH = 1_000
_COLOURS = ("#4a90d9", "#d9784a")  # alternate by batch; readable on white and on a notebook's dark grey
_MOST_COLOURED_STEPS = 60


def show(
    data: Any,
    index: Any = None,
    batch_size: int | None = None,
    *,
    scenes: Any = None,
    kinds: dict[str, str] | None = None,
    names: Any = None,
    seed: int = 0,
    epoch: int = 0,
    step: int = 0,
    length: int | None = None,
    axes: Any = None,
) -> "Figure":
    """Draw scenes, a batch of a feed, or an order.

    * `kf.show(sequence)`: some scenes, spread over the sequence, in a grid. `kf.show(sequence, [3, 8])`: these scenes.
      `kf.show(sequence, index)`: one scene, large.
    * `kf.show(feed)`: the scenes of one batch, augmented, padded and weighted as the model gets them, loaded in the
      calling thread. Padding is grey, or left out of point clouds. `kf.show(feed, index)`: one scene as the feed's
      workers load it, large.
    * `kf.show(order, length)`: one point for each scene of an epoch, with its position on the horizontal axis and its
      index on the vertical one. A full shuffle looks like an even cloud, a sequential order like a diagonal, and blocks
      like steps. `kf.show(feed.plan)` shows the order of a feed. `kf.show(stream.plan, length)` shows the effect of a
      stream's shuffle buffer on that many scenes.

    The kind of a field is guessed from its name, shape, dtype and values: images (gray, RGB, RGBA; channels first or
    last), masks and label maps (drawn over the image of the same height and width), point clouds (float[N, 2 to 16],
    coloured by the labels of the points, else by height; the third coordinate is up), volumes (three slices, or three
    frames if in colour), signals, spectra, tables of numbers, text. Single numbers, labels, and the dtype and shape of
    arrays that cannot be drawn are written above the scene. If a guess is wrong, give `kinds`. Large arrays are
    subsampled, and the picture says so. Needs matplotlib: `pip install matplotlib` (the extra "plot").

    Args:
        data: Any object with `__len__` and `__getitem__(index)`; a feed; an order, a plan, or a function `(length,
            seed, epoch)` that returns indices.
        index: Index of one scene; negative ones count from the end. For a sequence, also a list or a slice of indices,
            as in `scenes`. For an order, the number of scenes in the sequence; None is the length that the order was
            made for, or 1,000.
        batch_size: For an order: divide the epoch into batches of this many scenes.
        scenes: Number of scenes to draw (by default 12), or a list or a slice of indices. For a batch, a number.
        kinds: The right kinds of fields that are guessed wrong: a dict from field to "image", "mask", "points",
            "volume", "signal", "spectrum", "table", "text", "label", "number", "word" or "hidden".
        names: Names of the classes: a list, a dict from class to name, or a dict from field to one of these.
        seed: Seed of the random numbers of scenes, or of an order; a feed uses its own.
        epoch: Epoch, from 0.
        step: For a feed: number of the batch.
        length: For an order: the same as `index`.
        axes: For an order: matplotlib `Axes` to draw into. None makes a new figure.

    Returns:
        The matplotlib `Figure`, which a notebook shows; `.savefig(path)` writes it to a file.

    Raises:
        ImportError: matplotlib is not installed.
        TypeError: `data` cannot be drawn, or an argument does not apply to it.
        ValueError: A kind or a field is unknown, or an order does not fit the length.
        IndexError: `index` or `step` is out of range.
        Exception: The error of scene `index`. In a grid, a scene that fails shows its error instead.

    Examples:
        >>> images = kf.Zip(np.random.default_rng(0).random((20, 32, 32, 3)), np.arange(20) % 2)
        >>> kf.show(images, names=["cat", "dog"]).savefig("scenes.png")
        >>> kf.show(images, 5).savefig("scene_5.png")
        >>> kf.show(kf.BlockShuffled(50, window=4), 1000).savefig("order.png")
    """
    try:
        from kerasfeed.explore.show.scene_picture import draw_scenes, new_picture
    except ImportError as error:
        raise ImportError(
            "kf.show draws with matplotlib, which is not installed: pip install matplotlib "
            '(the extra "kerasfeed[plot]")'
        ) from error
    epoch = check_integer("epoch", epoch, 0)
    if _is_order(data):
        _refuse("an order", scenes=scenes, kinds=kinds, names=names, step=step)
        plan = _plan_of(data, length if index is None else index, batch_size, seed)
        axes = new_picture(6.0, 3.2, "constrained").add_subplot() if axes is None else axes
        _draw_order(plan, epoch, axes)
        return axes.get_figure()  # type: ignore[no-any-return]
    given_kinds, class_names = check_kinds(kinds), check_names(names)
    _refuse("scenes", batch_size=batch_size, length=length, axes=axes)
    if isinstance(data, AnyFeed):
        _refuse("a feed, which has its own", seed=seed)
        if index is not None and not data.plan.length:
            raise TypeError("the scenes of a stream have no index: leave index out, or pass a batch number as step")
        most = _SCENES if scenes is None else check_integer("scenes", scenes, 1)
        chosen = None if index is None else _checked_index(index, data.plan.length)
        shown = scenes_of_feed(data, chosen, most, epoch=epoch, step=check_integer("step", step, 0))
    else:
        _refuse("a sequence", step=step)
        sequence = as_sequence(data)
        if scenes is None and isinstance(index, list | tuple | range | slice | np.ndarray):
            index, scenes = None, index
        count = check_sequence(sequence, "kf.show()")
        if index is None:
            picked = [*map(int, chosen_indices(_SCENES if scenes is None else scenes, count, class_name(sequence)))]
        else:
            picked = [_checked_index(index, count)]
        seed = check_integer("seed", seed, 0)
        shown = scenes_of_sequence(sequence, count, picked, alone=index is not None, seed=seed, epoch=epoch)
    return draw_scenes(shown, given_kinds, class_names)


def _is_order(data: Any) -> bool:
    """Whether to draw `data` as an order, or refuse it as one."""
    if isinstance(data, Order | Plan | type | str | bytes):
        return True
    if isinstance(data, AnyFeed):
        return False
    return not hasattr(type(data), "__getitem__")


def _refuse(what: str, **given: Any) -> None:
    """Refuse arguments that do not apply.

    Raises:
        TypeError: An argument is given.
    """
    for name, value in given.items():
        if value is not None and not (isinstance(value, int) and value == 0):
            raise TypeError(f"kf.show does not use {name}={value!r:.40} to draw {what}: leave it out")


def _checked_index(index: Any, length: int) -> int:
    number = check_integer("index", index, -length)
    if number >= length:
        raise IndexError(f"index {index} is out of range: the sequence has {pluralize(length, 'scene')}")
    return number % length


# ---- orders


def _draw_order(plan: Plan, epoch: int, axes: Any) -> None:
    """Draw a plan into matplotlib axes."""
    positions, indices, steps = points_of(plan, epoch)
    coloured = plan.batch_size is not None and plan.steps <= _MOST_COLOURED_STEPS
    colours = np.array(_COLOURS)[steps % 2] if coloured else _COLOURS[0]
    size = min(16.0, max(1.5, 8_000 / len(positions)))
    axes.scatter(positions, indices, s=size, c=colours, linewidths=0, rasterized=True)
    axes.set_title(_title(plan, epoch), fontsize="medium")
    axes.set_xlabel(f"position in epoch {epoch}")
    axes.set_ylabel("index")
    axes.set_ylim(-0.02 * plan.length, 1.02 * plan.length)


def points_of(plan: Plan, epoch: int) -> NDArray[np.int64]:
    """Return the scenes of all or some steps, as points to draw.

    Without batches, each scene is a step.

    Returns:
        int64[3, points]: for each scene its position, its index, and its step.
    """
    if plan.steps * plan.rows <= _MOST_POINTS:
        steps = np.arange(plan.steps)
    else:
        count = max(_FEWEST_STEPS, _MOST_POINTS // plan.rows)
        steps = np.unique(np.linspace(0, plan.steps - 1, count).astype(np.int64))
    batches = []
    for step in steps.tolist():
        if plan.batch_size is None:
            batches.append(plan.order.indices(step, step + 1, length=plan.length, seed=plan.seed, epoch=epoch))
        else:
            indices = plan.indices(epoch, step)
            batches.append(indices[: len(indices) - plan.padding_rows(epoch, step)])
    counts = np.array([len(indices) for indices in batches])
    if len(steps) == plan.steps:
        begins = np.cumsum(counts) - counts
    else:
        begins = (steps * (plan.batches.kept / (plan.batches.steps * plan.shard_count))).astype(np.int64)
    positions = [begin + np.arange(count) for begin, count in zip(begins.tolist(), counts.tolist(), strict=True)]
    points = np.stack([np.concatenate(positions), np.concatenate(batches), np.repeat(steps, counts)])
    return points[:, :: -(-int(counts.sum()) // _MOST_POINTS)]


def _plan_of(order: Any, length: int | None, batch_size: int | None, seed: int) -> Plan:
    """Return the plan to draw for an order or a plan.

    Raises:
        TypeError: `order` is neither an order nor a plan, or an argument is given that a plan already has.
        ValueError: The order does not fit the length.
    """
    if isinstance(order, Plan) and not order.length:  # the plan of a stream, whose length is unknown
        order, seed = order.order, order.seed
    if isinstance(order, Plan):
        if length is not None or batch_size is not None or seed:
            raise TypeError(
                "a plan has its length, batch_size and seed: write kf.show(feed.plan), or kf.show(order, ...)"
            )
        return order
    seed = check_integer("seed", seed, 0)
    if not isinstance(order, Order):
        if isinstance(order, type) or not callable(order):
            remedy = ". Open a file first: kf.HDF5File(path)" if isinstance(order, str) else ""
            raise TypeError(
                "kf.show draws a sequence of scenes, a feed, or an order such as kf.Shuffled(); received "
                f"{order!r:.80} of type {type(order).__name__}{remedy}"
            )
        order = CustomOrder(order, seed)
    count = (order.made_for or _LENGTH) if length is None else check_integer("length", length, 1)
    size = None if batch_size is None else check_integer("batch_size", batch_size, 1)
    plan = Plan(count, size, order, seed)
    _ = plan.scenes  # raises if the length does not fit
    return plan


def _title(plan: Plan, epoch: int) -> str:
    text = str(plan.order)
    batches = "" if plan.batch_size is None else f", {plan.steps:,} batches"
    shard = f", shard {plan.shard_index} of {plan.shard_count}" if plan.shard_count > 1 else ""
    mixing = plan.order.mixing(plan.length, seed=plan.seed, epoch=epoch)
    return f"{text[:1].upper()}{text[1:]}{batches}{shard}; mixing {mixing:.2f}"
