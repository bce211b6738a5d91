"""What `kf.profile` has found: figures, what is predicted of changes, and the sentence that it comes to.

Invariant: frozen values and pure functions of figures.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kerasfeed.explore.profiling.scene_cost import SceneCost
from kerasfeed.loaders.auto_workers import Setup, duration
from kerasfeed.util.report import ACCENT, PALE, Report, Table, bar

_NOTABLE = 1.1  # times as fast
_STEADY = 0.75  # of the quickest run: the others reach that on a machine that does nothing else
LITTLE = 0.05  # share of the time: training that waits so little does not wait


@dataclass(frozen=True)
class Prediction:
    """What a change of the feed is expected to bring.

    Attributes:
        change: The change as code: `workers=4, worker_type="process"`, `order=kf.BlockShuffled(64)`.
        rate: Scenes/s that the feed then loads.
        gain: `rate` over that of the feed as it is.
        measured: Whether `rate` was measured with the change in place, and is not a calculation.
        wait_share: Share of the time that training would still wait, in [0, 1]; None without a model.
        note: What speaks against it, or what it needs; may be empty.
        remedy: Whether it is a change to make, and not only a set-up to compare with.
        setup: The workers, where it is these that change; else None.
        least: Scenes/s of the slowest run of those that measured `rate`; None where it was not measured.
    """

    change: str
    rate: float
    gain: float
    measured: bool = False
    wait_share: float | None = None
    note: str = ""
    remedy: bool = True
    setup: Setup | None = None
    least: float | None = None

    @property
    def how(self) -> str:
        """Whether it was measured or predicted, and between which rates runs scatter."""
        return _how(self.least, self.rate) if self.measured else "predicted"


def _how(least: float | None, most: float) -> str:
    return "measured" + (f", {least:,.0f} to {most:,.0f}" if scatters(least, most) else "")


def scatters(least: float | None, most: float) -> bool:
    """Whether runs of one set-up differ by more than noise, in scenes/s: something else was at work meanwhile."""
    return least is not None and least < _STEADY * most


def verdict(
    cost: SceneCost, setup: Setup, rate: float, step_rate: float | None, share: float | None, best: Prediction | None
) -> str:
    """One sentence: what training waits for, why, and what would change it.

    Args:
        cost: What a scene costs.
        setup: The workers that there are.
        rate: Scenes/s that they load.
        step_rate: Scenes/s that the model trains on; None without one.
        share: Share of the time that training waits; None likewise.
        best: The change to make, if there is one.
    """
    scene = held_text(cost)
    if share is None or step_rate is None:
        more = "nothing that was tried loads more"
        if best is not None:
            more = f"{_change_text(best)} would load {best.rate:,.0f}"
        return f"{setup} load{'s' if setup.workers == 1 else ''} {rate:,.0f} scenes/s; {scene}; {more}"
    if share < LITTLE:
        return f"training does not wait: the feed loads {rate:,.0f} scenes/s, and the model takes {step_rate:,.0f}"
    if best is None:
        return f"training waits {share:.0%} of the time; {scene}; nothing that was tried loads more"
    left = best.wait_share or 0.0
    ends = "would end it" if left < LITTLE else f"would load {_gain_text(best)} times as much and leave {left:.0%}"
    return f"training waits {share:.0%} of the time; {scene}; {_change_text(best)} {ends}"


def held_text(cost: SceneCost) -> str:
    """What scenes do for most of their time, in words."""
    parts = [
        (cost.waiting_seconds, "scenes wait for"),
        (cost.gil_seconds, "scenes hold the GIL for"),
        (cost.free_seconds, "scenes compute without the GIL for"),
        (cost.collate_seconds, "writing scenes into the batch takes"),
    ]
    seconds, text = max(parts)
    return f"{text} {duration(seconds)} of {duration(cost.total_seconds)}"


def _gain_text(prediction: Prediction) -> str:
    return f"{prediction.gain:,.0f}" if prediction.gain >= 10 else f"{prediction.gain:.2g}"


def _change_text(prediction: Prediction) -> str:
    """A change in words where it is one of workers, else as code."""
    return prediction.change if prediction.setup is None else str(prediction.setup)


def recommended(predictions: Sequence[Prediction]) -> Prediction | None:
    """The change to make: other workers where these help, for they cost nothing else; None where nothing helps.

    Args:
        predictions: The best first.
    """
    helpful = [option for option in predictions if option.remedy and option.gain > _NOTABLE and _surely(option)]
    workers = [option for option in helpful if option.setup is not None]
    # What was measured is worth more than what was calculated.
    surest = [option for option in workers if option.measured] or workers
    ends = [option for option in (*surest, *helpful) if option.wait_share is not None and option.wait_share < LITTLE]
    return next(iter((*ends, *surest, *helpful)), None)


def _surely(option: Prediction) -> bool:
    """Whether the slowest run was faster, too, than the feed as it is."""
    return option.least is None or option.least * option.gain > option.rate


@dataclass(frozen=True, repr=False)
class Profile:
    """Where the time of a feed goes; `str()` and a notebook show it as tables with bars.

    Attributes:
        name: Class of the sequence.
        workers: Number of workers of the feed; 0 for none.
        worker_type: "thread", "process" or "inline".
        batch_size: Scenes in a batch.
        rate: Scenes/s that the feed loads where each batch is taken as soon as it is there.
        cost: What a scene costs: a [SceneCost][kerasfeed.explore.profiling.scene_cost.SceneCost].
        transport_seconds: Time to bring a scene from a worker process to the consumer, s: that of a batch, divided by
            its scenes; None where there can be no worker processes.
        step_seconds: Time of a training step with a batch that is loaded already, s; None without a model.
        wait_share: Share of the time that training waits for batches, in [0, 1]; None without a model.
        predictions: What other workers and other changes are expected to bring, the best first.
        recommended: The one to make; None where nothing helps, or nothing is needed.
        verdict: All of it in a sentence.
        least: Scenes/s of the slowest run of those that measured `rate`.
    """

    name: str
    workers: int
    worker_type: str
    batch_size: int
    rate: float
    cost: SceneCost
    transport_seconds: float | None
    step_seconds: float | None
    wait_share: float | None
    predictions: tuple[Prediction, ...]
    recommended: Prediction | None
    verdict: str
    least: float | None = None

    @property
    def training_rate(self) -> float | None:
        """Scenes/s that the model trains on when batches are always there; None without a model."""
        return self.batch_size / self.step_seconds if self.step_seconds else None

    @property
    def parts(self) -> tuple[tuple[str, float], ...]:
        """The time of a scene, by what it is spent on: name and seconds."""
        transport = self.transport_seconds if self.worker_type == "process" else None
        return (
            ("waiting", self.cost.waiting_seconds),
            ("holding the GIL", self.cost.gil_seconds),
            ("computing without the GIL", self.cost.free_seconds),
            ("collation", self.cost.collate_seconds),
            *([] if transport is None else [("transport", transport)]),
        )

    def to_dict(self) -> dict[str, Any]:
        """All figures as numbers, texts, lists and dicts; times in seconds."""
        figures = dataclasses.asdict(self)
        own = {"parts": dict(self.parts), "training_rate": self.training_rate}
        return {**figures, "predictions": list(figures["predictions"]), **own}

    def _report(self) -> Report:
        total = self.cost.seconds + self.cost.collate_seconds
        longest = max([total, *(seconds for _, seconds in self.parts)]) or 1.0
        parts = [(name, duration(seconds), bar(seconds / longest)) for name, seconds in self.parts]
        scene = Table(["a scene in one worker", duration(total), ""], parts, right=[duration(total)])
        shown = [(f"as it is, {Setup(self.workers, self.worker_type)}", self.rate, "", _how(self.least, self.rate), "")]
        shown += [(each.change, each.rate, f"x {_gain_text(each)}", each.how, each.note) for each in self.predictions]
        if self.training_rate is not None:
            shown.append(("the model, batches being there", self.training_rate, "", "", ""))
        most = max(rate for _, rate, *_ in shown) or 1.0
        best = None if self.recommended is None else self.recommended.change
        rows = [
            (what, f"{rate:,.0f}", gain, bar(rate / most, ACCENT if what == best else PALE), how, note)
            for what, rate, gain, how, note in shown
        ]
        note = "runs of one set-up scatter: the machine does other things; measure again when it is quiet"
        changes = Table(["with", "scenes/s", "gain", "", "", ""], rows, right=["scenes/s", "gain"])
        more = note if scatters(self.least, self.rate) else ""
        return Report(self.name, [("", self.verdict)], [scene, changes], more)

    def __repr__(self) -> str:
        return self._report().text

    def _repr_html_(self) -> str:
        return self._report().html
