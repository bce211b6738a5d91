"""What `kf.profile` has found, as values and as text.

Invariant: frozen; what is said is made of the figures alone.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

from kerasfeed.explore.profiling.profile_html import profile_html
from kerasfeed.explore.profiling.profile_words import Prediction
from kerasfeed.loaders.scene_cost import SceneCost
from kerasfeed.loaders.worker_choice import Setup, duration


@dataclass(frozen=True, repr=False)
class Profile:
    """Where the time of a feed goes; `str()` and a notebook show it as a table.

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

    def __str__(self) -> str:
        setup = Setup(self.workers, self.worker_type)
        total = self.cost.seconds + self.cost.collate_seconds
        lines = [f"{self.name}: {self.verdict}", "", f"a scene: {duration(total)}"]
        lines += [f"  {name:<26}{duration(seconds):>9}" for name, seconds in self.parts]
        lines += ["", f"{'as it is, ' + str(setup):<44}{self.rate:>12,.0f} scenes/s"]
        if self.training_rate is not None:
            lines.append(f"{'the model, batches being there':<44}{self.training_rate:>12,.0f} scenes/s")
        if self.predictions:
            lines += ["", "with"]
        for each in self.predictions:
            note = f"; {each.note}" if each.note else ""
            lines.append(f"  {each.change:<42}{each.rate:>12,.0f} scenes/s, x {each.gain:.2g} ({each.how}){note}")
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return profile_html(self)
