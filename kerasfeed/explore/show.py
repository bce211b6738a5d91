"""`kf.show`: a picture of scenes, of a batch, or of an order.

Invariant: what a picture needs is read before anything is drawn; nothing of the user's is changed.
"""

from typing import TYPE_CHECKING, Any

from kerasfeed.explore.pictures.order_picture import draw_order, plan_of
from kerasfeed.explore.pictures.parts import ClassNames, check_kinds
from kerasfeed.explore.pictures.shown_scenes import scenes_of_feed, scenes_of_sequence
from kerasfeed.feeds.any_feed import AnyFeed
from kerasfeed.loaders.sequence_argument import check_sequence
from kerasfeed.orders.base import Order
from kerasfeed.orders.plan import Plan
from kerasfeed.sequences.indexing import chosen_indices
from kerasfeed.util.counted import counted
from kerasfeed.util.error_text import class_name
from kerasfeed.util.frames import as_sequence
from kerasfeed.util.validate import check_integer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SCENES = 12


def show(
    data: Any,
    index: int | None = None,
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
    """Draw scenes of a sequence, a batch of a feed as the model gets it, or an order.

    * `kf.show(sequence)`: some scenes, spread over the sequence, in a grid. `kf.show(sequence, index)`: one, large.
    * `kf.show(feed)`: the scenes of one batch, augmented, padded and weighted as the model gets them, loaded in the
      calling thread. Padding is grey, or left out of point clouds. `kf.show(feed, index)`: one scene as its workers
      load it, large.
    * `kf.show(order, length)`: one point for each scene of an epoch, its index over its position. A full shuffle is
      an even cloud, scenes in sequence are a diagonal, and blocks are steps. `kf.show(feed.plan)` is the order of a
      feed, `kf.show(stream.plan, length)` what the shuffle buffer of a stream does to so many scenes.

    What a field is, its shape, dtype, values and name tell: images (gray, RGB, RGBA; with channels first or last),
    masks and label maps (drawn over the image of the same height and width), point clouds (float[N, 2 to 16],
    coloured by the labels of the points, else by height; the third coordinate is up), volumes (three slices; of
    frames in colour three frames), signals, spectra, tables of numbers, text; single numbers and labels are written
    above. Where that guesses wrong, give `kinds`. Large arrays are subsampled, and the picture says so. Needs
    matplotlib: `pip install matplotlib` (the extra "plot").

    Args:
        data: Any object with `__len__` and `__getitem__(index)`; a feed; an order, a plan, or a function `(length,
            seed, epoch)` that returns indices.
        index: Index of one scene; negative ones count from the end. Of an order, the number of scenes in the sequence
            (None: what the order was made for, or 1,000).
        batch_size: Of an order: draw the epoch as it is divided into batches of this many scenes.
        scenes: How many scenes to draw (12), or which: a list or a slice of indices. Of a batch, how many.
        kinds: What fields are, where that is guessed wrong: a dict from field to "image", "mask", "points", "volume",
            "signal", "spectrum", "table", "text", "label", "number", "word" or "hidden".
        names: Names of the classes: a list, a dict from class to name, or a dict from field to one of these.
        seed: Seed of the random numbers of scenes, or of an order; a feed has its own.
        epoch: Epoch, from 0.
        step: Of a feed: number of the batch.
        length: Of an order: the same as `index`.
        axes: Of an order: matplotlib `Axes` to draw into. None makes a new figure.

    Returns:
        The matplotlib `Figure`, which a notebook shows; `.savefig(path)` writes it to a file.

    Raises:
        ImportError: matplotlib is not installed.
        TypeError: `data` is nothing that can be drawn, or an argument does not go together with it.
        ValueError: A kind or a field is unknown, or an order does not fit the length.
        IndexError: `index` or `step` is out of range.
        Exception: What scene `index` raised. In a grid, a scene that fails takes its place with the error.

    Examples:
        >>> images = kf.Zip(np.random.default_rng(0).random((20, 32, 32, 3)), np.arange(20) % 2)
        >>> kf.show(images, names=["cat", "dog"]).savefig("scenes.png")
        >>> kf.show(images, 5).savefig("scene_5.png")
        >>> kf.show(kf.BlockShuffled(50, window=4), 1000).savefig("order.png")
    """
    try:
        from kerasfeed.explore.pictures.scene_picture import draw_scenes, new_picture
    except ImportError as error:
        raise ImportError(
            "kf.show draws with matplotlib, which is not installed: pip install matplotlib "
            '(the extra "kerasfeed[plot]")'
        ) from error
    epoch = check_integer("epoch", epoch, 0)
    if _is_order(data):
        _refuse("an order", scenes=scenes, kinds=kinds, names=names, step=step)
        plan, batched = plan_of(data, length if index is None else index, batch_size, seed)
        axes = new_picture(6.0, 3.2, "constrained").add_subplot() if axes is None else axes
        draw_order(plan, batched, epoch, axes)
        return axes.get_figure()  # type: ignore[no-any-return]
    said, class_names = check_kinds(kinds), ClassNames(names)
    _refuse("scenes", batch_size=batch_size, length=length, axes=axes)
    if isinstance(data, AnyFeed):
        _refuse("a feed, which has its own,", seed=seed)
        most = _SCENES if scenes is None else check_integer("scenes", scenes, 1)
        chosen = None if index is None else _place(index, data.plan.length)
        shown = scenes_of_feed(data, chosen, most, epoch=epoch, step=check_integer("step", step, 0))
    else:
        _refuse("a sequence", step=step)
        sequence = as_sequence(data)
        count = check_sequence(sequence, "kf.show()")
        if index is None:
            picked = [*map(int, chosen_indices(_SCENES if scenes is None else scenes, count, class_name(sequence)))]
        else:
            picked = [_place(index, count)]
        seed = check_integer("seed", seed, 0)
        shown = scenes_of_sequence(sequence, count, picked, alone=index is not None, seed=seed, epoch=epoch)
    return draw_scenes(shown, said, class_names)


def _is_order(data: Any) -> bool:
    """Whether `data` is drawn as an order; also where it can be drawn as nothing, for which the orders' error is."""
    if isinstance(data, Order | Plan | type | str | bytes):
        return True
    if isinstance(data, AnyFeed):
        return False
    return not hasattr(type(data), "__getitem__")


def _refuse(what: str, **given: Any) -> None:
    """Refuse arguments that are of no use.

    Raises:
        TypeError: One is given.
    """
    for name, value in given.items():
        if value is not None and not (isinstance(value, int) and value == 0):
            raise TypeError(f"kf.show has no use for {name}={value!r:.40} where it draws {what}: leave it out")


def _place(index: Any, length: int) -> int:
    number = check_integer("index", index, -length if -length < 0 else 0)
    if number >= length:
        raise IndexError(f"index {index} is out of range: the sequence has {counted(length, 'scene')}")
    return number % length
