"""What `kf.profile` has found, as values and as text.

Invariant: frozen; what is said is made of the figures alone.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

from kerasfeed.explore.profiling.profile_words import Prediction
from kerasfeed.loaders.scene_cost import SceneCost
from kerasfeed.loaders.worker_choice import Setup, duration
from kerasfeed.util.report import ACCENT, PALE, Picture, Report, Table, bar


@dataclass(frozen=True, repr=False)
class Profile:
    """Where the time of a feed goes; `str()` and a notebook show it as tables with bars.

    Attributes:
        name: Class of the sequence.
        workers: Number of workers of the feed; 0 for none.
        worker_type: "thread", "process" or "inline".
        batch_size: Scenes in a batch.
        rate: Scenes/s that the feed loads where each batch is taken as soon as it is there.
        cost: What a scene costs, in a worker: a [SceneCost][kerasfeed.loaders.scene_cost.SceneCost].
        transport_seconds: Time to bring a scene from a worker process to the consumer, s: that of a batch, divided by
            its scenes; None where there can be no worker processes.
        step_seconds: Time of a training step with a batch that is loaded already, s; None without a model.
        wait_share: Share of the time that training waits for batches, in [0, 1]; None without a model.
        predictions: What other workers and other changes are expected to bring, the best first.
        recommended: The one to make; None where nothing helps, or nothing is needed.
        verdict: All of it in a sentence.
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

    @property
    def training_rate(self) -> float | None:
        """Scenes/s that the model trains on when batches are always there; None without a model."""
        return self.batch_size / self.step_seconds if self.step_seconds else None

    @property
    def parts(self) -> tuple[tuple[str, float], ...]:
        """The time of a scene, by what it is spent on: name and seconds."""
        found = [
            ("waiting", self.cost.waiting_seconds),
            ("holding the GIL", self.cost.gil_seconds),
            ("computing without the GIL", self.cost.free_seconds),
            ("collation", self.cost.collate_seconds),
        ]
        if self.transport_seconds is not None and self.worker_type == "process":
            found.append(("transport", self.transport_seconds))
        return tuple(found)

    def to_dict(self) -> dict[str, Any]:
        """All figures as numbers, texts, lists and dicts; times in seconds."""
        found = dataclasses.asdict(self)
        found["parts"] = dict(self.parts)
        found["training_rate"] = self.training_rate
        found["predictions"] = [dataclasses.asdict(each) for each in self.predictions]
        return found

    def _report(self) -> Report:
        total = self.cost.seconds + self.cost.collate_seconds
        parts = [(name, duration(seconds), bar(seconds / total)) for name, seconds in self.parts]
        scene = Table(["a scene in one worker", duration(total), ""], parts, right=[duration(total)])
        rows = [self._row(f"as it is, {Setup(self.workers, self.worker_type)}", self.rate)]
        rows += [
            self._row(each.change, each.rate, f"x {each.gain:.2g}", each.how, each.note, best=each == self.recommended)
            for each in self.predictions
        ]
        if self.training_rate is not None:
            rows.append(self._row("the model, batches being there", self.training_rate))
        changes = Table(["with", "scenes/s", "gain", "", "", ""], rows, right=["scenes/s", "gain"])
        return Report(self.name, [("", self.verdict)], [scene, changes])

    def _row(
        self, what: str, rate: float, gain: str = "", how: str = "", note: str = "", *, best: bool = False
    ) -> tuple[str | Picture, ...]:
        most = max([self.rate, self.training_rate or 0.0, *(each.rate for each in self.predictions)])
        return what, f"{rate:,.0f}", gain, bar(rate / most, ACCENT if best else PALE), how, note

    def __repr__(self) -> str:
        return self._report().text

    def _repr_html_(self) -> str:
        return self._report().html
