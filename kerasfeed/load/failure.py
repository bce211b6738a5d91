"""Exceptions on their way from a worker to the consumer.

Invariant: the consumer catches the type that the sequence raised. What kerasfeed knows (index, epoch, step, worker,
the worker's traceback) is attached as notes, never mixed into the user's own message.
"""

import pickle
import traceback
from dataclasses import dataclass

import cloudpickle

from kerasfeed.errors import SceneError
from kerasfeed.load.fill import FailedSceneError

TRACEBACK_HEAD = "Traceback in the worker:"


@dataclass(frozen=True)
class Place:
    """Where a scene was being loaded.

    Attributes:
        indices: Indices of the scenes at work: one, or those of a `get_batch` call.
        epoch: Epoch number; None while the spec is inferred.
        step: Step number; None while the spec is inferred.
        worker: What loaded it, for example "worker process 1 (pid 4711)".
        method: The method of the sequence that was given several indices.
    """

    indices: tuple[int, ...]
    epoch: int | None
    step: int | None
    worker: str
    method: str = "get_batch"

    def __str__(self) -> str:
        if len(self.indices) == 1:
            scenes = f"scene {self.indices[0]}"
        else:
            shown = ", ".join(map(str, self.indices[:8])) + (", ..." if len(self.indices) > 8 else "")
            scenes = f"scenes {shown} ({self.method})"
        when = "while inferring the spec" if self.step is None else f"epoch {self.epoch}, step {self.step}"
        return f"kerasfeed: {scenes}, {when}, in {self.worker}"


@dataclass(frozen=True)
class Failure:
    """A failed scene in a form that crosses processes.

    Attributes:
        index: Index of the scene; None where many were read at once.
        row: Its row in the batch; None likewise.
        pickled: The exception by cloudpickle; None where it does not pickle.
        summary: Type and message, for when `pickled` is None.
        text: The worker's traceback, formatted.
        method: The method that failed, where many were read at once.
    """

    index: int | None
    row: int | None
    pickled: bytes | None
    summary: str
    text: str
    method: str


def to_failure(carrier: FailedSceneError) -> Failure:
    """Describe the exception behind `carrier` in the worker that met it."""
    error = carrier.__cause__
    assert error is not None
    text = "".join(traceback.format_exception(error))
    summary = "".join(traceback.format_exception_only(error)).strip()
    try:
        pickled = cloudpickle.dumps(error)
        pickle.loads(pickled)  # some exceptions pickle and then fail to load
    except Exception:  # noqa: BLE001 - whatever fails here, the summary and the text still travel
        pickled = None
    return Failure(carrier.index, carrier.row, pickled, summary, text, carrier.method)


def from_failure(failure: Failure, place: Place) -> BaseException:
    """The exception to raise in the consumer for a failure that came from another process."""
    error: BaseException | None = None
    if failure.pickled is not None:
        try:
            error = pickle.loads(failure.pickled)
        except Exception:  # noqa: BLE001 - its class may exist in the worker alone
            error = None
    if not isinstance(error, BaseException):
        error = SceneError(f"the sequence raised {failure.summary} (an exception that cannot be sent to this process)")
    error = for_consumer(error, place)
    # A note and not the cause: Keras raises what it caught `from None`.
    error.add_note(f"{TRACEBACK_HEAD}\n{failure.text}")
    return error


def for_consumer(error: BaseException, place: Place) -> BaseException:
    """The exception to raise in the consumer: `error` itself with the place as a note, where its type can travel.

    `StopIteration` would end a loop in silence, `KeyboardInterrupt`, `SystemExit` and `GeneratorExit` would be taken
    for the consumer's own: these arrive as the cause of a `SceneError`.
    """
    if isinstance(error, StopIteration | StopAsyncIteration) or not isinstance(error, Exception):
        wrapped = SceneError(f"the sequence raised {type(error).__name__}: {error}")
        wrapped.__cause__ = error
        error = wrapped
    if str(place) not in getattr(error, "__notes__", ()):
        try:
            error.add_note(str(place))
        except Exception:  # noqa: BLE001 - a frozen exception takes no note
            wrapped = SceneError(f"the sequence raised {type(error).__name__}: {error}")
            wrapped.__cause__ = error
            wrapped.add_note(str(place))
            return wrapped
    return error
