"""The result of `kf.profile`: figures and a summary.

Invariant: frozen values and pure functions of figures. A change is recommended only if its slowest run beats the
feed's quickest run.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

from kerasfeed.loaders.auto_workers import Setup, duration, why
from kerasfeed.util.report import ACCENT, PALE, Report, Reported, Table, bar

_NOTABLE = 1.1  # a recommended set-up is more than this many times as fast
_STEADY = 0.75  # the slowest run of a steady set-up, as a share of the quickest


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


@dataclass(frozen=True, repr=False)
class Profile(Reported):
    """Scenes/s of a feed and of up to three alternatives.

    `str()` and a notebook show a table with bars.

    Attributes:
        name: Class of the sequence.
        present: Scenes/s that the feed's own workers load if each batch is consumed as soon as it is ready: a
            [SetupRate][kerasfeed.explore.profile.result.SetupRate].
        scene_seconds: Time to load a scene in one worker and write it into its row of a batch, s.
        waiting_seconds: The part of that time spent waiting for a disk, a server or a lock, s.
        alternatives: Scenes/s of up to three other set-ups.
        recommended: The best alternative; None if none is surely faster.
        verdict: A summary in one sentence.
    """

    name: str
    present: SetupRate
    scene_seconds: float
    waiting_seconds: float
    alternatives: tuple[SetupRate, ...]

    @property
    def recommended(self) -> SetupRate | None:
        """See the attributes."""
        faster = [each for each in self.alternatives if each.least > _NOTABLE * self.present.most]
        return max(faster, key=lambda each: each.least, default=None)

    @property
    def verdict(self) -> str:
        """See the attributes."""
        present, best = self.present, self.recommended
        loads = f"{present.setup} load{'s' if present.setup.workers == 1 else ''} {present} scenes/s"
        scene = why(self.scene_seconds, self.scene_seconds - self.waiting_seconds)
        more = "no alternative is surely faster" if best is None else f"{best.setup} load {best}"
        return f"{loads}; {scene}; {more}"

    def to_dict(self) -> dict[str, Any]:
        """Return all figures as numbers, strings, lists and dicts; times in seconds."""
        figures = dataclasses.asdict(self)
        best = None if self.recommended is None else self.recommended.change
        own = {"recommended": best, "verdict": self.verdict}
        return {**figures, "alternatives": list(figures["alternatives"]), **own}

    def _report(self) -> Report:
        shown = [(f"as it is, {self.present.setup}", self.present.most, str(self.present))]
        shown += [(each.change, each.most, str(each)) for each in self.alternatives]
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
        remark = "runs of one set-up differ: the machine is busy; measure again when it is idle"
        scatters = any(each.scatters for each in (self.present, *self.alternatives))
        table = Table(["with", "scenes/s", ""], rows, right=["scenes/s"])
        return Report(self.name, [("", self.verdict)], [times, table], remark if scatters else "")
