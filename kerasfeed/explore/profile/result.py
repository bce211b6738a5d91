"""The result of `kf.profile`: figures and a summary.

Invariant: frozen values and pure functions of figures. A change is recommended only if its slowest run beats the
feed's quickest run, and only if training waits.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kerasfeed.loaders.auto_workers import Setup, duration, why
from kerasfeed.util.report import ACCENT, PALE, Report, Reported, Table, bar

_NOTABLE = 1.1  # times as fast
_STEADY = 0.75  # of the quickest run
LITTLE = 0.05  # share of the time: training that waits less counts as not waiting


@dataclass(frozen=True)
class SetupRate:
    """Scenes/s of one set-up of workers, in several runs.

    Attributes:
        setup: The workers: `setup.workers`, 0 for none, and `setup.worker_type`.
        least: Scenes/s of the slowest run.
        most: Scenes/s of the quickest run.
    """

    setup: Setup
    least: float
    most: float

    @property
    def change(self) -> str:
        """The arguments of a feed with these workers, as code."""
        if not self.setup.workers:
            return "workers=0"
        return f'workers={self.setup.workers}, worker_type="{self.setup.worker_type}"'

    @property
    def scatters(self) -> bool:
        """Whether the runs differ by more than noise."""
        return self.least < _STEADY * self.most

    def __str__(self) -> str:
        return f"{self.least:,.0f} to {self.most:,.0f}" if self.scatters else f"{self.most:,.0f}"


@dataclass(frozen=True)
class WaitShares:
    """Shares of the time waiting, in [0, 1], in two measurements.

    Attributes:
        least: The smaller one.
        most: The larger one.
    """

    least: float
    most: float

    def __str__(self) -> str:
        return f"{self.most:.0%}" if self.most - self.least < LITTLE else f"{self.least:.0%} to {self.most:.0%}"


def recommended(present: SetupRate, alternatives: Sequence[SetupRate], waits: WaitShares | None) -> SetupRate | None:
    """Return the fastest alternative that is surely faster, or None.

    Args:
        present: Scenes/s of the feed's own workers.
        alternatives: Scenes/s of other set-ups.
        waits: Share of the time that training waits; None without a model.
    """
    if waits is not None and waits.least < LITTLE:
        return None
    faster = [each for each in alternatives if each.least > _NOTABLE * present.most]
    return max(faster, key=lambda each: each.least, default=None)


def verdict(
    present: SetupRate, scene: str, step_rate: float | None, waits: WaitShares | None, best: SetupRate | None
) -> str:
    """Say what training waits for, why, and what loads more.

    Args:
        present: Scenes/s of the feed's own workers.
        scene: What dominates the time of a scene, in words.
        step_rate: Scenes/s that the model trains on; None without a model.
        waits: Share of the time that training waits; None without a model.
        best: The recommended alternative, or None.
    """
    loads = f"{present.setup} load{'s' if present.setup.workers == 1 else ''} {present} scenes/s"
    if waits is not None and waits.most < LITTLE:
        return f"training does not wait: {loads}, and the model takes {step_rate:,.0f}"
    if waits is not None and waits.least < LITTLE:
        return f"training waits {waits} of the time, but the figure varies: measure again when the machine is quiet"
    more = "no alternative is surely faster" if best is None else f"{best.setup} load {best}"
    if waits is None:
        return f"{loads}; {scene}; {more}"
    return f"training waits {waits} of the time: {loads}, and the model takes {step_rate:,.0f}; {scene}; {more}"


@dataclass(frozen=True, repr=False)
class Profile(Reported):
    """Scenes/s of a feed and of three alternatives.

    `str()` and a notebook show a table with bars.

    Attributes:
        name: Class of the sequence.
        batch_size: Scenes in a batch.
        present: Scenes/s that the feed's own workers load if each batch is consumed as soon as it is ready: a
            [SetupRate][kerasfeed.explore.profile.result.SetupRate].
        scene_seconds: Time to load a scene in one worker and write it into its row of a batch, s.
        waiting_seconds: The part of that time spent waiting for a disk, a server or a lock, s.
        alternatives: Scenes/s of up to three other set-ups.
        recommended: The best alternative; None if none is surely faster, or training does not wait.
        step_seconds: Time of a training step with a batch that is loaded already, s; None without a model.
        wait_shares: Share of the time that training waits for batches:
            [WaitShares][kerasfeed.explore.profile.result.WaitShares]; None without a model.
        verdict: A summary in one sentence.
    """

    name: str
    batch_size: int
    present: SetupRate
    scene_seconds: float
    waiting_seconds: float
    alternatives: tuple[SetupRate, ...]
    step_seconds: float | None = None
    wait_shares: WaitShares | None = None

    @property
    def training_rate(self) -> float | None:
        """Scenes/s that the model could train on; None without a model."""
        return self.batch_size / self.step_seconds if self.step_seconds else None

    @property
    def recommended(self) -> SetupRate | None:
        """See the attributes."""
        return recommended(self.present, self.alternatives, self.wait_shares)

    @property
    def verdict(self) -> str:
        """See the attributes."""
        scene = why(self.scene_seconds, self.scene_seconds - self.waiting_seconds)
        return verdict(self.present, scene, self.training_rate, self.wait_shares, self.recommended)

    def to_dict(self) -> dict[str, Any]:
        """Return all figures as numbers, texts, lists and dicts; times in seconds."""
        figures = dataclasses.asdict(self)
        best = None if self.recommended is None else self.recommended.change
        own = {"training_rate": self.training_rate, "recommended": best, "verdict": self.verdict}
        return {**figures, "alternatives": list(figures["alternatives"]), **own}

    def _report(self) -> Report:
        shown = [(f"as it is, {self.present.setup}", self.present.most, str(self.present))]
        shown += [(each.change, each.most, str(each)) for each in self.alternatives]
        if self.training_rate is not None:
            shown.append(("the model, batches being there", self.training_rate, f"{self.training_rate:,.0f}"))
        most = max(rate for _, rate, _ in shown) or 1.0
        best = None if self.recommended is None else self.recommended.change
        rows = [(what, text, bar(rate / most, ACCENT if what == best else PALE)) for what, rate, text in shown]
        times = Table(
            (),
            [
                ("a scene in one worker", duration(self.scene_seconds)),
                ("of it, waiting", duration(self.waiting_seconds)),
            ],
        )
        note = "runs of one set-up differ: the machine is busy; measure again when it is quiet"
        scatters = any(each.scatters for each in (self.present, *self.alternatives))
        table = Table(["with", "scenes/s", ""], rows, right=["scenes/s"])
        return Report(self.name, [("", self.verdict)], [times, table], note if scatters else "")
