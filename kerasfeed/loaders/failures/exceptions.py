"""What the consumer is told of scenes that raise, and of those that end their workers.

Invariant: a message names the scene, what has become of it, how to see that again, and what to do.
"""

from dataclasses import dataclass

from kerasfeed.pool.task import Crash
from kerasfeed.util.error_text import noted, notes_of, set_notes

_REPRODUCTION = "Reproduce it here: "
_ONLY_HERE = (
    "If it loads here, the worker process lacks something that your program has set: a flag of a package, a warnings "
    "filter, np.seterr, an open descriptor"
)


@dataclass(frozen=True)
class SceneLocation:
    """Where a scene was being loaded.

    Attributes:
        indices: Indices of the scenes at work: one, or those of a `get_batch` call.
        epoch: Epoch number; None while the spec is inferred.
        step: Step number; None while the spec is inferred, and for a scene loaded by itself.
        worker: What loaded it, for example "worker process 1 (pid 4711)".
        method: The method of the sequence that was given several indices.
    """

    indices: tuple[int, ...]
    epoch: int | None
    step: int | None
    worker: str
    method: str = "get_batch"

    def __str__(self) -> str:
        if self.epoch is None:
            when = "while inferring the spec"
        else:
            when = f"epoch {self.epoch}" + ("" if self.step is None else f", step {self.step}")
        return f"kerasfeed: {self.scenes}, {when}, in {self.worker}\n{self.reproduction}"

    @property
    def scenes(self) -> str:
        """The scenes, as a message names them."""
        if len(self.indices) == 1:
            return f"scene {self.indices[0]}"
        known = [index for index in self.indices if index >= 0]  # the others were left out of the batch
        shown = ", ".join(map(str, known[:8])) + (", ..." if len(known) > 8 else "")
        return f"scenes {shown} ({self.method})"

    @property
    def reproduction(self) -> str:
        """See `reproduction`."""
        ways = []
        if self.step is not None:
            ways.append(f"kf.load(feed, epoch={self.epoch}, step={self.step})")
        elif self.epoch is not None:
            ways.append(f"kf.load(feed, epoch={self.epoch}, index={self.indices[0]})")
        if len(self.indices) == 1:
            ways.append(f"sequence[{self.indices[0]}]")
        return reproduction(", or ".join(ways), self.worker)


def reproduction(calls: str, worker: str) -> str:
    """The lines of a note that say how to raise an exception of `worker` again, in the user's own thread."""
    return f"{_REPRODUCTION}{calls}" + (f"\n{_ONLY_HERE}" if worker.startswith("worker process") else "")


def for_consumer(error: BaseException, place: SceneLocation, traceback: str = "") -> BaseException:
    """The exception to raise in the consumer, with the place as a note; see `noted`.

    What was noted when the same object was raised for the same scene before goes.
    """
    return noted(error, str(place), traceback, replaces=f"kerasfeed: {place.scenes}, ")


def without_reproduction(error: BaseException) -> None:
    """Drop the advice to load the scene by its index, which a stream has not."""
    if notes := notes_of(error):
        set_notes(error, [note.split(f"\n{_REPRODUCTION}")[0] for note in notes])


def fatal_text(crash: Crash, index: int, count: int, batch: str, item: str | None = None) -> str:
    """Why a scene that ended its worker is not tried again.

    Args:
        crash: The last.
        index: Index of the scene.
        count: How often it was tried.
        batch: The call that loads the batch, for reproduction; empty while the spec is inferred.
        item: What was given to the function of a stream, as text; None for a sequence.
    """
    remedy = (
        f"Reproduce it in a Python of its own, for it may end that too: sequence[{index}]{batch and f', or {batch}'}."
    )
    other = " To go on without such scenes use on_error='replace'"
    if item is not None:
        remedy = (
            f"The item was {item}. To reproduce it call the function with that in a Python of its own, for it may end "
            "that too."
        )
        other = " To go on without such items use on_error='skip'"
    return f"{ending_text(crash, count, ', as often as max_failures allows')} {remedy}{other}"


def ending_text(crash: Crash, count: int, allowed: str = "") -> str:
    """How a scene has ended its worker, `count` times; `allowed` says of these times what they are."""
    times = "" if count == 1 else f" {count} times"
    if crash.hung:
        what = (
            f"{crash.place} took longer than timeout={crash.timeout} s{times} in {crash.worker}, which was ended for "
            f"that{crash.memory}."
        )
    else:
        what = (
            f"{crash.worker} {crash.ending} while it loaded {crash.place}{crash.memory}. The scene has ended its worker"
            f"{times and times + allowed}. Out of memory shows as SIGKILL, a fault in a compiled library as SIGSEGV."
        )
    return what + crash.stack_text


def function_text(crash: Crash, epoch: int, step: int) -> str:
    """Why a batch is not tried again whose making, by the function given as collate, ended its worker."""
    what = "took too long and was ended" if crash.hung else crash.ending
    return (
        f"{crash.worker} {what} while the function given as collate made the batch of epoch {epoch}, step {step}"
        f"{crash.memory}, as often as max_failures allows.{crash.stack_text} Reproduce it in a Python of its own, for "
        f"it may end that too: kf.load(feed, epoch={epoch}, step={step})"
    )
