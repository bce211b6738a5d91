"""The process of one case: `python -m benchmarks.faults.case ORDER`, where ORDER is the JSON of an `Order`.

Invariant: batches are reported as they come, so the parent knows of them even if the program crashes. Each line for the
parent is JSON after `MARK`. The process ends like a user's script, at its last line.
"""

import importlib
import json
import re
import resource
import sys
import time
import traceback
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.faults.scenes import BAD_INDEX, FaultyScenes, content
from benchmarks.peers.job import Job

MARK = "faults: "
DESCRIPTORS = 1024
"""The usual limit of open files of a process."""
BREAK_AFTER = 5
"""Batches after which a consumer stops early."""
LINGER = 2.0
"""Seconds that the program continues afterwards, so that remaining workers can be counted."""
_NAMED = re.compile(rf"(?<!line )(?<![\w.]){BAD_INDEX}(?!\.?\w)")


@dataclass(frozen=True)
class Order:
    """The task of one case.

    Attributes:
        module: Module of the library's opener.
        function: Name of the opener, from a `Job` to a context manager around the batches.
        fault: Key of `scenes.FAULTS`, or another name for scenes without a fault.
        consumer: "loop" or "fit".
        habit: Behaviour of the consumer: "reads", "breaks" or "hoards".
        folder: Folder for the marks of `FaultyScenes`.
        length: Number of scenes.
        seconds: Wait per scene, in seconds.
        values: float32 numbers a scene.
        batch_size: Scenes a batch.
        workers: Concurrent reads.
    """

    module: str
    function: str
    fault: str
    consumer: str
    habit: str
    folder: str
    length: int
    seconds: float
    values: int
    batch_size: int
    workers: int


class Enough(Exception):
    """The consumer stops in mid-epoch."""


class Receiver:
    """Checks each batch as it comes.

    Args:
        order: The task of the case.
    """

    def __init__(self, order: Order) -> None:
        self.order = order
        self.kept: list[tuple[Any, Any]] = []
        self.batches = 0

    def take(self, points: Any, labels: Any) -> None:
        """Reports to the parent which scenes came and how many of them are damaged.

        Raises:
            Enough: The consumer stops here.
        """
        self.batches += 1
        names = np.asarray(labels).reshape(-1)
        tell("batch", labels=names.tolist(), wrong=self.damaged(points, names))
        if self.order.habit == "hoards":
            self.kept.append((points, labels))
        if self.order.habit == "breaks" and self.batches == BREAK_AFTER:
            raise Enough

    def damaged(self, points: Any, labels: Any) -> int:
        """Number of scenes of a batch with wrong values."""
        names = np.asarray(labels).reshape(-1)
        return int(np.any(np.asarray(points) != content(names, self.order.values), axis=1).sum())

    def damaged_since(self) -> int:
        """Number of kept scenes that have changed since they came."""
        return sum(self.damaged(*batch) for batch in self.kept)


def tell(event: str, **values: Any) -> None:
    """Sends one event to the parent."""
    print(MARK + json.dumps({"event": event, **values}), flush=True)


def names_scene(text: str) -> bool:
    """Whether a text names the faulty scene; the number of a line of code does not count."""
    return bool(_NAMED.search(text))


def tell_error(error: BaseException) -> None:
    """Reports the exception that the consumer caught."""
    text = "".join(traceback.format_exception(error))
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    tell("raised", type=type(error).__name__, message=lines[0] if lines else "", names_scene=names_scene(text))


def _tell_warning(message: Warning | str, category: type[Warning], *place: Any) -> None:
    tell("warning", type=category.__name__, names_scene=names_scene(str(message)))


def _loop(opener: Any, job: Job, receiver: Receiver) -> None:
    with opener(job) as batches:
        tell("ready")
        try:
            for points, labels in batches:
                receiver.take(points, labels)
        except Enough:
            tell("end", damaged=0)
        except BaseException as error:  # noqa: BLE001 (a notebook shows all of them)
            tell_error(error)
        else:
            tell("end", damaged=receiver.damaged_since())


def _fit(opener: Any, job: Job, receiver: Receiver) -> None:
    from benchmarks.faults.fitting import receiving_model

    model = receiving_model(job.scene, receiver.take)
    with opener(job) as batches:
        tell("ready")
        try:
            model.fit(batches, epochs=1, verbose=0, shuffle=False)
        except Enough:
            tell("end", damaged=0)
        except BaseException as error:  # noqa: BLE001
            tell_error(error)
        else:
            tell("end", damaged=0)


def run(order: Order) -> None:
    """Feeds the consumer and reports the result."""
    opener = getattr(importlib.import_module(order.module), order.function)
    scenes = FaultyScenes(order.fault, order.folder, order.length, order.seconds, order.values)
    job = Job(scenes, scenes[0], order.batch_size, order.workers, order.consumer == "fit")
    warnings.showwarning = _tell_warning
    consume = _fit if order.consumer == "fit" else _loop
    try:
        consume(opener, job, Receiver(order))
    except TypeError as error:
        if "on_error" not in str(error):
            raise
        tell("unavailable", message=str(error))
        return
    tell("closed")
    if order.habit == "breaks":
        time.sleep(LINGER)
        tell("lingered")


def main() -> None:
    """Runs the order on the command line."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, hard))
    run(Order(**json.loads(sys.argv[1])))


if __name__ == "__main__":
    main()
