"""How metrics are distributed over batches: values, and what is told of them.

Invariant: a value says nothing that was not measured; two of them merge into what one measurement of all their batches
would have been.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.util.counted import counted
from kerasfeed.util.report import Report, Table

QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
_HEADS = ("mean", "std. error", "std", "min", "5 %", "25 %", "median", "75 %", "95 %", "max")


@dataclass(frozen=True, eq=False)
class MetricDistribution:
    """One metric of a model on each of several batches.

    Attributes:
        name: Keras's name of the metric.
        values: float64[B], the metric on each batch.
        rows: int64[B], the number of scenes in each batch that count (those without weight 0), at least 1.
        repeats: int64[B], the repeat in which each batch was evaluated, from 0.
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
        """Mean over scenes: each batch has its number of `rows` as weight."""
        return float(np.average(self.values, weights=self.rows))

    @cached_property
    def std(self) -> float:
        """Standard deviation of the batches about `mean`, weighted alike, with Bessel's correction; NaN for one batch.

        The weights count as measures of how reliable a value is: the sum of squares is divided by
        sum(rows) - sum(rows**2) / sum(rows), which is count - 1 if all batches have the same size.
        """
        total = float(self.rows.sum())
        freedom = total - float((self.rows.astype(np.float64) ** 2).sum()) / total
        if self.count < 2 or freedom <= 0:
            return float("nan")
        with np.errstate(all="ignore"):  # a metric may be inf
            return float(np.sqrt((self.rows * (self.values - self.mean) ** 2).sum() / freedom))

    @cached_property
    def standard_error(self) -> float:
        """Standard error of `mean` for batches drawn at random: std / sqrt(number of batches in one repeat).

        Repeats evaluate the same scenes again. They make `std` and the quantiles more exact, but not `mean`. If batches
        differ in size, their number is sum(rows)**2 / sum(rows**2).
        """
        total, squares = float(self.rows.sum()), float((self.rows.astype(np.float64) ** 2).sum())
        batches = total**2 / squares / len(np.unique(self.repeats))
        return float(self.std / np.sqrt(batches))

    @cached_property
    def quantiles(self) -> Mapping[float, float]:
        """Quantiles 0, 0.05, 0.25, 0.5, 0.75, 0.95 and 1 of `values`, linearly interpolated; each batch counts once."""
        with np.errstate(all="ignore"):
            found = np.quantile(self.values, QUANTILES)
        return MappingProxyType(dict(zip(QUANTILES, found.tolist(), strict=True)))

    def __str__(self) -> str:
        return f"{self.name}: {self.mean:.6g} ± {self.standard_error:.2g} (std {self.std:.2g}, {self.count:,} batches)"


class Evaluation(Mapping[str, MetricDistribution]):
    """The metrics of a model on each of several batches; what `kerasfeed.evaluate` returns.

    A mapping from the name of a metric to its
    [MetricDistribution][kerasfeed.adapters.keras.evaluation.MetricDistribution]. Printed, or in a notebook, it is a
    table.

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
        """An evaluation of `metrics`, at least one, all over the same batches."""
        self._metrics = {metric.name: metric for metric in metrics}

    def __getitem__(self, name: str) -> MetricDistribution:
        return self._metrics[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._metrics)

    def __len__(self) -> int:
        return len(self._metrics)

    def merge(self, others: "Evaluation | Iterable[Evaluation]") -> "Evaluation":
        """This evaluation and others of the same metrics as one, for example those of all shards.

        Args:
            others: An evaluation, or several.

        Returns:
            What one evaluation of all the batches would have returned.

        Raises:
            TypeError: One of `others` is not an `Evaluation`.
            ValueError: They have different metrics.
        """
        parts = [self, *([others] if isinstance(others, Evaluation) else others)]
        for other in parts:
            if not isinstance(other, Evaluation):
                raise TypeError(
                    f"merge() takes evaluations, received a {type(other).__name__}; Evaluation.from_dict(...) makes "
                    "one of what to_dict() gave"
                )
            if set(other) != set(self):
                raise ValueError(
                    f"evaluations of different metrics cannot be merged: {sorted(self)} and {sorted(other)}. Compile "
                    "the models alike"
                )
        return Evaluation(
            MetricDistribution(
                name, *(np.concatenate([getattr(part[name], field) for part in parts]) for field in _FIELDS)
            )
            for name in self
        )

    def to_dict(self) -> dict[str, Any]:
        """The evaluation as dicts, lists and numbers, for JSON; `from_dict` makes an evaluation of it again."""
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
        """The evaluation whose `to_dict` returned `content`.

        Args:
            content: What `to_dict` returned.

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
                f"Evaluation.from_dict() needs what to_dict() gives, received {str(content)[:80]!r}"
            ) from error
        return cls(metrics)

    @property
    def _some(self) -> MetricDistribution:
        return next(iter(self.values()))

    def _report(self) -> Report:
        some = self._some
        facts = [
            ("", counted(some.count, "batch", "batches")),
            ("", counted(int(some.rows.sum()), "scene")),
            ("", counted(len(np.unique(some.repeats)), "repeat")),
        ]
        rows = [
            [name, *(f"{value:.5g}" for value in (m.mean, m.standard_error, m.std, *m.quantiles.values()))]
            for name, m in self.items()
        ]
        return Report("Evaluation", facts, [Table(["metric", *_HEADS], rows, _HEADS)])

    def __repr__(self) -> str:
        return self._report().text

    def _repr_html_(self) -> str:
        return self._report().html


_FIELDS = ("values", "rows", "repeats")
