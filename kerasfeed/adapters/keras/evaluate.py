"""`kf.evaluate`: the metrics of a model on each batch.

Invariant: the model learns nothing, its metrics are restored afterwards, and the feed's epochs do not advance.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

import keras
import numpy as np
import optree
from numpy.typing import NDArray

from kerasfeed.adapters.keras.feed import Feed
from kerasfeed.sequences.base import SceneSequence
from kerasfeed.spec.field_forms import RaggedArray
from kerasfeed.spec.field_values import lists_as_arrays
from kerasfeed.spec.nesting import lists_as_tuples
from kerasfeed.util.error_text import pluralize
from kerasfeed.util.report import Report, Reported, Table
from kerasfeed.util.validate import check_integer

QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
_HEADS = ("mean", "std. error", "std", "min", "5 %", "25 %", "median", "75 %", "95 %", "max")


@dataclass(frozen=True, eq=False)
class MetricDistribution:
    """One metric of a model on each of several batches.

    Attributes:
        name: Keras's name of the metric.
        values: float64[B], the metric on each batch.
        rows: int64[B], the number of scenes with nonzero weight in each batch, at least 1.
        repeats: int64[B], the repeat of each batch, from 0.
    """

    name: str
    values: NDArray[np.float64]
    rows: NDArray[np.int64]
    repeats: NDArray[np.int64]

    @property
    def count(self) -> int:
        """Number of batches."""
        return len(self.values)

    @cached_property
    def mean(self) -> float:
        """Mean over scenes: each batch is weighted by its number of `rows`."""
        return float(np.average(self.values, weights=self.rows))

    @cached_property
    def std(self) -> float:
        """Standard deviation of the batches about `mean`; NaN for one batch.

        Batches are weighted by `rows`. Uses Bessel's correction for reliability weights: the weighted sum of squares is
        divided by sum(rows) - sum(rows**2) / sum(rows). If all batches have the same size, this is the unweighted sum,
        divided by count - 1.
        """
        total = float(self.rows.sum())
        freedom = total - float((self.rows.astype(np.float64) ** 2).sum()) / total
        if self.count < 2 or freedom <= 0:
            return float("nan")
        with np.errstate(all="ignore"):  # a metric may be inf
            return float(np.sqrt((self.rows * (self.values - self.mean) ** 2).sum() / freedom))

    @cached_property
    def standard_error(self) -> float:
        """Standard error of `mean` for random batches.

        It is std / sqrt(number of batches in one repeat). Repeats evaluate the same scenes again. They make `std` and
        the quantiles more exact, but not `mean`. If batches differ in size, sum(rows)**2 / sum(rows**2) replaces the
        number of batches.
        """
        total, squares = float(self.rows.sum()), float((self.rows.astype(np.float64) ** 2).sum())
        batches = total**2 / squares / len(np.unique(self.repeats))
        return float(self.std / np.sqrt(batches))

    @cached_property
    def quantiles(self) -> Mapping[float, float]:
        """Quantiles 0, 0.05, 0.25, 0.5, 0.75, 0.95 and 1 of `values`."""
        with np.errstate(all="ignore"):
            found = np.quantile(self.values, QUANTILES)
        return MappingProxyType(dict(zip(QUANTILES, found.tolist(), strict=True)))

    def __str__(self) -> str:
        return f"{self.name}: {self.mean:.6g} ± {self.standard_error:.2g} (std {self.std:.2g}, {self.count:,} batches)"


class Evaluation(Reported, Mapping[str, MetricDistribution]):
    """The metrics of a model on each batch; see `kerasfeed.evaluate`.

    A mapping from the name of a metric to its
    [MetricDistribution][kerasfeed.adapters.keras.evaluate.MetricDistribution]. It prints as a table, also in a
    notebook.

    Args:
        metrics: `MetricDistribution`s, at least one, all of the same batches.

    Examples:
        >>> import json, keras
        >>> x = np.arange(8, dtype=np.float32).reshape(8, 1)
        >>> model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="zeros")])
        >>> model.compile(loss="mse")
        >>> with kf.Feed(kf.Zip(x, x), batch_size=4, workers=0) as feed:
        ...     found = kf.evaluate(model, feed)
        >>> print(found["loss"])
        loss: 17.5 ± 14 (std 20, 2 batches)
        >>> again = kf.Evaluation.from_dict(json.loads(json.dumps(found.to_dict())))
        >>> again["loss"].mean
        17.5
        >>> found.merge(again)["loss"].count
        4
    """

    def __init__(self, metrics: Iterable[MetricDistribution]) -> None:
        """Make an evaluation of `metrics`, all over the same batches."""
        self._metrics = {metric.name: metric for metric in metrics}

    def __getitem__(self, name: str) -> MetricDistribution:
        return self._metrics[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._metrics)

    def __len__(self) -> int:
        return len(self._metrics)

    def merge(self, others: "Evaluation | Iterable[Evaluation]") -> "Evaluation":
        """Combine this evaluation with others, for example of other shards.

        Args:
            others: An evaluation, or several.

        Returns:
            The evaluation of all the batches together.

        Raises:
            TypeError: One of `others` is not an `Evaluation`.
            ValueError: The evaluations have different metrics.
        """
        parts = [self, *([others] if isinstance(others, Evaluation) else others)]
        for other in parts:
            if not isinstance(other, Evaluation):
                raise TypeError(
                    f"merge() takes evaluations, received a {type(other).__name__}; Evaluation.from_dict(...) "
                    "converts the result of to_dict()"
                )
            if set(other) != set(self):
                raise ValueError(
                    f"evaluations of different metrics cannot be merged: {sorted(self)} and {sorted(other)}. Compile "
                    "the models with the same metrics"
                )
        return Evaluation(
            MetricDistribution(
                name, *(np.concatenate([getattr(part[name], field) for part in parts]) for field in _FIELDS)
            )
            for name in self
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the evaluation for JSON; `from_dict` is the inverse."""
        some = self._some
        return {
            "rows": some.rows.tolist(),
            "repeats": some.repeats.tolist(),
            "metrics": {
                name: {
                    "mean": metric.mean,
                    "std": metric.std,
                    "standard_error": metric.standard_error,
                    "quantiles": {f"{quantile:g}": value for quantile, value in metric.quantiles.items()},
                    "values": metric.values.tolist(),
                }
                for name, metric in self.items()
            },
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> "Evaluation":
        """Return the evaluation whose `to_dict` returned `content`.

        Args:
            content: Result of `to_dict`.

        Raises:
            ValueError: `content` is something else.
        """
        try:
            rows = np.array(content["rows"], np.int64)
            repeats = np.array(content["repeats"], np.int64)
            metrics = [
                MetricDistribution(name, np.array(metric["values"], np.float64), rows, repeats)
                for name, metric in content["metrics"].items()
            ]
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(
                f"Evaluation.from_dict() needs the result of to_dict(), received {str(content)[:80]!r}"
            ) from error
        return cls(metrics)

    @property
    def _some(self) -> MetricDistribution:
        return next(iter(self.values()))

    def _report(self) -> Report:
        some = self._some
        facts = [
            ("", pluralize(some.count, "batch", "batches")),
            ("", pluralize(int(some.rows.sum()), "scene")),
            ("", pluralize(len(np.unique(some.repeats)), "repeat")),
        ]
        rows = [
            [name, *(f"{value:.5g}" for value in (m.mean, m.standard_error, m.std, *m.quantiles.values()))]
            for name, m in self.items()
        ]
        return Report("Evaluation", facts, [Table(["metric", *_HEADS], rows, _HEADS)])


_FIELDS = ("values", "rows", "repeats")


def evaluate(
    model: Any, feed: Feed | Iterable[Any], repeats: int = 1, *, first_epoch: int = 0, steps: int | None = None
) -> Evaluation:
    """Return the distribution of a model's loss and metrics over batches.

    `model.evaluate` returns one number for each metric. This function returns the metric of each batch, and so shows
    how uncertain that number is and how bad the worst batches are. The `mean` of a metric equals the result of
    `model.evaluate` if the metric is a mean over scenes, and there are no weights. On several hosts, each evaluates its
    own shard, and `Evaluation.merge` combines the results. The model, its metrics and the feed's epochs do not change.

    Rows with sample_weight 0 (added by `pad_remainder`, or failed with `on_error="mask"`) are removed before the
    model sees them, and so are batches without other rows. Other weights are passed to the model. A batch is weighted
    by the number of its rows, whatever their weights.

    Args:
        model: A compiled `keras.Model`, on any backend.
        feed: A `kerasfeed.Feed`, or any iterable of batches, such as a `tf.data.Dataset`. Batches are `x`, `(x,)`, `(x,
            y)` or `(x, y, sample_weight)`.
        repeats: Number of epochs of the feed to evaluate, at least 1. Each epoch has a different order if the feed
            shuffles, and different augmentation if the sequence uses `self.rng`.
        first_epoch: The first of these epochs.
        steps: Batches of each epoch; None for all.

    Returns:
        An [Evaluation][kerasfeed.Evaluation]: a mapping from name to `MetricDistribution`, for "loss" and each metric.
        A metric that is an array becomes several: `name[0]`, `name[1]`. The evaluation prints as a table, also in a
        notebook.

    Raises:
        TypeError: `model` is not a Keras model, or `feed` is not an iterable of batches.
        ValueError: The model is not compiled; a number is out of range; or no row has a nonzero weight.
        Exception: The error of the feed or the model.

    Examples:
        >>> import keras
        >>> x = np.arange(8, dtype=np.float32).reshape(8, 1)
        >>> model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="zeros")])
        >>> model.compile(loss="mse")
        >>> with kf.Feed(kf.Zip(x, x), batch_size=4, workers=0) as feed:
        ...     found = kf.evaluate(model, feed)
        >>> found["loss"].mean
        17.5
        >>> found["loss"].values
        array([ 3.5, 31.5])
    """
    _check(model, feed)
    repeats = check_integer("repeats", repeats, 1)
    first_epoch = check_integer("first_epoch", first_epoch, 0)
    steps = None if steps is None else check_integer("steps", steps, 1)
    names: tuple[str, ...] | None = None
    values: list[list[float]] = []
    counted_rows: list[tuple[int, int]] = []  # number of weighted rows and repeat of each batch
    with _restored_metrics(model):
        for repeat in range(repeats):
            # Not in a variable: the frame of an exception would keep the loop over the feed open.
            for batch in itertools.islice(feed.epoch(first_epoch + repeat) if isinstance(feed, Feed) else feed, steps):
                parts = keras.utils.unpack_x_y_sample_weight(lists_as_arrays(batch))
                x, y, weight, count = _weighted_rows(*map(lists_as_tuples, parts))
                if not count:
                    continue
                model.reset_metrics()
                found = _numbers_of(model.test_on_batch(x, y, weight, return_dict=True))
                if names is not None and tuple(found) != names:
                    raise ValueError(f"batches gave different metrics: {list(names)} and {list(found)}")
                names = tuple(found)
                values.append(list(found.values()))
                counted_rows.append((count, repeat))
    if names is None:
        raise ValueError("no row has a nonzero weight: the feed gave no batch, or all sample weights are 0")
    table, (rows, repeated) = np.array(values, np.float64), np.array(counted_rows, np.int64).T
    return Evaluation(MetricDistribution(name, table[:, number], rows, repeated) for number, name in enumerate(names))


def _check(model: Any, feed: Any) -> None:
    if not isinstance(model, keras.Model):
        raise TypeError(
            f"kf.evaluate(model, feed) needs a keras.Model first, received a {type(model).__name__}. For a "
            "torch.nn.Module, loop over feed.to_torch() and compute the metrics there; keras.layers.TorchModuleWrapper "
            "makes it a layer of a Keras model"
        )
    if not model.compiled:
        raise ValueError(
            "the model is not compiled, so it has no loss and no metrics: call model.compile(loss=..., metrics=[...])"
        )
    if isinstance(feed, SceneSequence):
        raise TypeError(
            f"kf.evaluate needs batches, but {type(feed).__name__} holds single scenes: write "
            "kf.Feed(sequence, batch_size=...)"
        )
    if isinstance(feed, np.ndarray | tuple | Mapping | str):
        raise TypeError(
            f"kf.evaluate needs batches, but would use the items of this {type(feed).__name__} as batches: write "
            "kf.Feed(list(zip(x, y)), batch_size=...) for arrays x and y, or a list of batches"
        )
    if isinstance(feed, Iterator):
        raise TypeError(f"kf.evaluate needs a feed that can be iterated again, received a {type(feed).__name__}")
    if not isinstance(feed, Iterable):
        raise TypeError(f"kf.evaluate needs a kerasfeed.Feed, received a {type(feed).__name__}")


@contextmanager
def _restored_metrics(model: Any) -> Iterator[None]:
    """Restore the state of the model's metrics at the end."""
    sync = getattr(model, "jax_state_sync", None)
    if sync is not None:  # inside `fit` on JAX the state is elsewhere
        sync()
    before = [(variable, np.array(variable.numpy())) for variable in model.metrics_variables]
    executions, function = model.steps_per_execution, model.test_function
    if executions != 1:  # test_on_batch passes one batch
        model.steps_per_execution, model.test_function = 1, None
    try:
        yield
    finally:
        if executions != 1:
            model.steps_per_execution, model.test_function = executions, function
        model.reset_metrics()  # also the metrics that were created meanwhile
        for variable, value in before:
            variable.assign(value)


def _weighted_rows(x: Any, y: Any, weight: Any) -> tuple[Any, Any, Any, int]:
    """Return the rows with a nonzero weight, and their number."""
    count = _row_count(optree.tree_leaves(x, is_leaf=_is_ragged)[0])
    leaves = optree.tree_leaves(weight)
    if not leaves:
        return x, y, weight, count
    counts: NDArray[np.bool_] = np.zeros(count, bool)
    for leaf in leaves:
        counts |= (np.asarray(leaf).reshape(count, -1) != 0).any(axis=1)
    if counts.all():
        return x, y, weight, count
    chosen = [optree.tree_map(lambda leaf: _chosen(leaf, counts), part, is_leaf=_is_ragged) for part in (x, y, weight)]
    return chosen[0], chosen[1], chosen[2], int(counts.sum())


def _is_ragged(leaf: Any) -> bool:
    """Whether `leaf` is a `RaggedArray`, or a `tf.RaggedTensor`."""
    return isinstance(leaf, RaggedArray) or hasattr(leaf, "from_row_splits")


def _row_count(leaf: Any) -> int:
    return len(leaf.row_splits) - 1 if _is_ragged(leaf) else len(leaf)


def _chosen(leaf: Any, counts: NDArray[np.bool_]) -> Any:
    """Return the rows of a field where `counts`, bool[B], is true."""
    if not _is_ragged(leaf):
        return np.asarray(leaf)[counts]
    lengths = np.diff(np.asarray(leaf.row_splits))
    values = np.asarray(leaf.values)[np.repeat(counts, lengths)]
    splits = np.concatenate([[0], np.cumsum(lengths[counts])])
    return RaggedArray(values, splits) if isinstance(leaf, RaggedArray) else leaf.from_row_splits(values, splits)


def _numbers_of(logs: Mapping[str, Any]) -> dict[str, float]:
    """Return metrics by name; an array becomes several: `name[0]`, `name[1]`.

    Raises:
        TypeError, ValueError: A metric is not a number.
    """
    found = {}
    for name, value in logs.items():
        array = np.asarray(keras.ops.convert_to_numpy(value), np.float64)
        for indices, single in np.ndenumerate(array):
            found[name + "".join(f"[{index}]" for index in indices)] = float(single)
    return found
