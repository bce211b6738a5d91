"""Exceptions of every kind that a scene may raise, and the checks of each in every loader."""

import re
import threading
import traceback
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import kerasfeed as kf

WORKERS = [(0, "thread"), (2, "thread"), (2, "process")]
BAD = 13  # in step 2 of batches of 6


class HoldsLockError(Exception):
    def __init__(self, message):
        super().__init__(message)
        self.lock = threading.Lock()


class TwoArgumentsError(Exception):
    def __init__(self, what, why):
        super().__init__(f"{what} because of {why}")
        self.why = why


class DefaultArgumentError(Exception):
    """Pickle calls its constructor with the message, which would grow."""

    def __init__(self, what, why="dust"):
        super().__init__(f"{what} because of {why}")


class MuteError(Exception):
    def __str__(self):
        raise RuntimeError("no words")


class ReducedError(Exception):
    """Its reduce method leaves out its notes."""

    def __reduce__(self):
        return ReducedError, self.args


def _group():
    return ExceptionGroup("several", [ValueError("first"), TwoArgumentsError("rain", "clouds")])


def _only_here():
    return type("HomemadeError", (ValueError,), {"__module__": "__main__"})("homemade")


@dataclass(frozen=True)
class Kind:
    """The exception of a scene, its type, and a pattern in the text; `steers` if it would control a loop."""

    make: object
    type: type
    text: str
    steers: bool = False


KINDS = {
    "ordinary": Kind(lambda: ValueError("bad scan"), ValueError, "ValueError: bad scan"),
    "lock": Kind(lambda: HoldsLockError("bad lock"), HoldsLockError, "HoldsLockError: bad lock"),
    "arguments": Kind(lambda: TwoArgumentsError("rain", "clouds"), TwoArgumentsError, "rain because of clouds"),
    "default": Kind(lambda: DefaultArgumentError("cough"), DefaultArgumentError, r"cough because of dust(?! because)"),
    "reduced": Kind(lambda: ReducedError("cut"), ReducedError, "ReducedError: cut"),
    "group": Kind(_group, ExceptionGroup, r"ExceptionGroup: several \(2 sub-exceptions\)"),
    "huge": Kind(lambda: ValueError("x" * 2_000_000), ValueError, "ValueError: x{1000}"),
    "exit": Kind(lambda: SystemExit(3), SystemExit, "SystemExit: 3", steers=True),
    "interrupt": Kind(lambda: KeyboardInterrupt("stop"), KeyboardInterrupt, "KeyboardInterrupt: stop", steers=True),
    "stop": Kind(lambda: StopIteration("early"), kf.errors.SceneError, "the sequence raised StopIteration: early"),
    "homemade": Kind(_only_here, ValueError, "HomemadeError: homemade"),
    "mute": Kind(MuteError, MuteError, "MuteError"),
    "chain": Kind(None, RuntimeError, r"(?s)KeyError: 'the root'.*direct cause of the following.*RuntimeError: outer"),
    "hdf5": Kind(None, IndexError, r"reading 'points'\[99\] of '.*/scans\.h5'"),
    "spec": Kind(None, kf.errors.SpecError, r"scene 13: field '1': expected float32\[1\], received float32\[2\]"),
}


CASES = [(kind, *workers) for kind in KINDS for workers in WORKERS]
# Each kind once, each kind of worker equally often, and one kind with all workers. Another test shows that all CASES
# take the same path.
PAIRS = [case for n, case in enumerate(CASES) if n // 3 % 3 == n % 3 or case[0] == "ordinary"]


# The default if PAIRS would take too long.
LIGHT = [case for case in PAIRS if case[0] in ("ordinary", "lock", "exit", "homemade")]


class Raising(kf.SceneSequence):
    """Scenes (float32[1], float32[1]); one raises an exception of a given kind, or of the kind named in a file."""

    def __init__(self, kind, path=None):
        self._kind = kind
        self.file = kf.HDF5File(path) if path else None

    @property
    def kind(self):
        return self._kind.read_text() if isinstance(self._kind, Path) else self._kind

    def __len__(self):
        return 24

    def __getitem__(self, index):
        x = np.full(1, index, np.float32)
        if index != BAD:
            return x, x
        kind = self.kind
        if kind == "hdf5":
            return self.file["points"][99], x
        if kind == "spec":
            return x, np.zeros(2, np.float32)
        if kind == "chain":
            try:
                raise KeyError("the root")
            except KeyError as root:
                raise RuntimeError("outer") from root
        raise KINDS[kind].make()


def place_of(worker_type, workers, epoch=r"\d+", step=2):
    """Pattern of the note with the location and the reproduction."""
    where = "the calling thread" if not workers else f"worker {worker_type} \\d"
    return (
        rf"kerasfeed: scene {BAD}, epoch ({epoch}), step {step}, in {where}.*\n+"
        rf"Reproduce it here: kf\.load\(feed, epoch=\1, step={step}\), or sequence\[{BAD}\]"
    )


def bring_up(feed):
    """Start workers and slots of a feed that several tests share, so that no test seems to leak them."""
    held = [feed.submit(0, 0) for _ in range(24)]
    assert all(len(future.result()) == 2 for future in held)


def whole_text(error):
    """The text that Python prints for an exception."""
    return "".join(traceback.format_exception(error))


def assert_arrived(error, kind, workers, worker_type, **place):
    """Check the sequence's exception with all its information."""
    expected, text = KINDS[kind], whole_text(error)
    assert re.search(expected.text, text), text[-3000:]
    if not workers and type(error) is KeyboardInterrupt:  # counts as Ctrl-C in the main thread
        assert kind == "interrupt"
        return
    if expected.steers or (kind == "lock" and worker_type == "process"):
        assert type(error) is kf.errors.SceneError
        assert f"the sequence raised {expected.type.__name__}: " in str(error)
        if expected.steers:
            # Or raised `from None`, like Keras does.
            assert type(error.__cause__) is expected.type or error.__suppress_context__
    elif kind == "homemade":
        assert (type(error).__name__, isinstance(error, ValueError)) == ("HomemadeError", True)
    else:
        assert type(error) is expected.type
    notes = "\n".join(error.__notes__)
    assert len(re.findall(place_of(worker_type, workers, **place), notes)) == 1, notes[:3000]
    assert "in __getitem__" in text or kind == "spec"
    if kind == "huge":
        assert len(str(error)) == 2_000_000
        assert len(notes) < 50_000
    if kind == "group":
        assert [type(member) for member in error.exceptions] == [ValueError, TwoArgumentsError]
        assert error.exceptions[1].why == "clouds"
    if kind == "arguments":
        assert error.why == "clouds"


def assert_told(message, kind, workers, worker_type):
    """Check that another exception's message has all information about this one."""
    assert re.search(KINDS[kind].text, message), message[-3000:]
    if workers or kind != "interrupt":
        assert re.search(place_of(worker_type, workers), message), message[:3000]
    assert "in __getitem__" in message or kind == "spec"
    assert len(message) < 400_000
