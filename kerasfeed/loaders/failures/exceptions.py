"""Messages about scenes that raise exceptions or end their workers.

Invariant: a message names the scene, the failure, a way to reproduce it, and a remedy.
"""

from dataclasses import dataclass

from kerasfeed.pool.task import Crash
from kerasfeed.util.error_text import notes_of, set_notes, with_note

_REPRODUCTION = "Reproduce it here: "
_ONLY_HERE = (
    "If it loads here, your program has set something that the worker process lacks: a flag of a package, a warnings "
    "filter, np.seterr, an open descriptor. Or the class has changed since the feed was made: make the feed again"
)


@dataclass(frozen=True)
class SceneLocation:
    """The scenes that were being loaded, and the worker.

    Attributes:
        indices: Indices of the scenes: one, or several of a `get_batch` call.
        epoch: Epoch number; None while the spec is inferred.
        step: Step number; None while the spec is inferred, and for a scene loaded by itself.
        worker: The worker, for example "worker process 1 (pid 4711)".
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
    """The lines of a note on how to reproduce a worker's exception."""
    return f"{_REPRODUCTION}{calls}" + (f"\n{_ONLY_HERE}" if worker.startswith("worker process") else "")


def for_consumer(error: BaseException, location: SceneLocation, traceback: str = "") -> BaseException:
    """Return the exception for the consumer, with the location as a note.

    The note replaces an earlier note on the same object for the same scene. See `with_note`.
    """
    return with_note(error, str(location), traceback, replaces=f"kerasfeed: {location.scenes}, ")


def without_reproduction(error: BaseException) -> None:
    """Remove the advice to load a scene by its index.

    The scenes of a stream have no index.
    """
    if notes := notes_of(error):
        set_notes(error, [note.split(f"\n{_REPRODUCTION}")[0] for note in notes])


def fatal_text(crash: Crash, index: int, count: int, batch: str, item: str | None = None) -> str:
    """The message about a scene that has ended its worker.

    Such a scene is not tried again.

    Args:
        crash: The last crash.
        index: Index of the scene.
        count: Number of tries.
        batch: The call that loads the batch, for reproduction; empty while the spec is inferred.
        item: The argument of the stream's function, as text; None for a sequence.
    """
    remedy = f"Reproduce it in a separate Python, which it may end too: sequence[{index}]{batch and f', or {batch}'}."
    other = " To continue without such scenes, use on_error='replace'"
    if item is not None:
        remedy = (
            f"The item was {item}. To reproduce the failure, call the function with it in a separate Python, which it "
            "may end too."
        )
        other = " To continue without such items, use on_error='skip'"
    return f"{ending_text(crash, count, ', and max_failures allows no more')} {remedy}{other}"


def ending_text(crash: Crash, count: int, allowed: str = "") -> str:
    """How a scene ended its worker `count` times; `allowed` describes this number."""
    times = "" if count == 1 else f" {count} times"
    if crash.hung:
        what = (
            f"{crash.position} took longer than timeout={crash.timeout} s{times} in {crash.worker}, which was "
            f"ended{crash.memory}."
        )
    else:
        what = (
            f"{crash.worker} {crash.ending} while it loaded {crash.position}{crash.memory}. The scene has ended its "
            f"worker{times and times + allowed}. SIGKILL often means that the memory is full, SIGSEGV a fault in a "
            "compiled library."
        )
    return what + crash.stack_text


def function_text(crash: Crash, epoch: int, step: int) -> str:
    """The message about a batch whose collate function ended its worker."""
    what = "took too long and was ended" if crash.hung else crash.ending
    return (
        f"{crash.worker} {what} while the collate function made the batch of epoch {epoch}, step {step}"
        f"{crash.memory}, and max_failures allows no further try.{crash.stack_text} Reproduce it in a separate "
        f"Python, which it may end too: kf.load(feed, epoch={epoch}, step={step})"
    )
