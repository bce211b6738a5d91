"""What `kf.profile` predicts of changes, and the sentence that it comes to.

Invariant: pure functions of figures.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kerasfeed.loaders.scene_cost import SceneCost
from kerasfeed.loaders.worker_choice import Setup, held_text

_NOTABLE = 1.1  # times as fast
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
    """

    change: str
    rate: float
    gain: float
    measured: bool = False
    wait_share: float | None = None
    note: str = ""
    remedy: bool = True
    setup: Setup | None = None

    @property
    def how(self) -> str:
        """Whether it was measured or predicted, in a word."""
        return "measured" if self.measured else "predicted"


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
        if best is None:
            return f"{setup} load {rate:,.0f} scenes/s; {scene}; nothing that was tried loads more"
        return f"{setup} load {rate:,.0f} scenes/s; {scene}; {change_text(best)} would load {best.rate:,.0f}"
    if share < LITTLE:
        return f"training does not wait: the feed loads {rate:,.0f} scenes/s, and the model takes {step_rate:,.0f}"
    if best is None:
        return f"training waits {share:.0%} of the time; {scene}; nothing that was tried loads more"
    left = best.wait_share or 0.0
    ends = "would end it" if left < LITTLE else f"would load {best.gain:.2g} times as much and leave {left:.0%}"
    return f"training waits {share:.0%} of the time; {scene}; {change_text(best)} {ends}"


def change_text(prediction: Prediction) -> str:
    """A change in words where it is one of workers, else as code."""
    return prediction.change if prediction.setup is None else str(prediction.setup)


def recommended(predictions: Sequence[Prediction]) -> Prediction | None:
    """The change to make: other workers where these help, for they cost nothing else; None where nothing helps.

    Args:
        predictions: The best first.
    """
    helpful = [each for each in predictions if each.remedy and each.gain > _NOTABLE]
    workers = [each for each in helpful if each.setup is not None]
    # What was measured is worth more than what was calculated.
    surest = [each for each in workers if each.measured] or workers
    ends = [each for each in (*surest, *helpful) if each.wait_share is not None and each.wait_share < LITTLE]
    return next(iter((*ends, *surest, *helpful)), None)
