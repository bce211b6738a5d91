"""The scenes with faults: one class for every library.

Invariant: this module imports only NumPy and the standard library. A scene is `(float32[values], int64[1])`, and both
fields are a function of its index, so the consumer of a batch can detect lost, repeated and damaged scenes.
"""

import ctypes
import os
import resource
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import numpy as np

BAD_INDEX = 137
"""The faulty scene: in mid-epoch, and a number that error messages do not contain by chance."""
EXIT_CODE = 3
FOREVER = 1_000_000
"""Seconds that a hung scene takes."""
HEADROOM = 64 << 20
"""Bytes by which a process may still grow when its address space is limited."""
ALLOCATION = 1 << 30
"""Bytes that a scene allocates under that limit."""
_PERIOD = 65_521
"""A prime, so that the values of no two scenes are equal."""


class UnpicklableError(Exception):
    """An exception that cannot be pickled, like one that holds a file or a connection."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.lock = threading.Lock()


class TwoArgumentsError(Exception):
    """An exception that pickles and does not unpickle, because its class needs two arguments."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")


def content(labels: np.ndarray, values: int) -> np.ndarray:
    """The values of the scenes `labels` (int64[B]): float32[B, values]."""
    places = np.arange(values, dtype=np.int64)
    return ((labels[:, None] * 40_503 + places * 97) % _PERIOD).astype(np.float32)


class FaultyScenes:
    """Scenes whose number `BAD_INDEX` is faulty.

    Args:
        fault: Key of `FAULTS`, or another name for scenes without a fault.
        folder: Each process that loads scenes writes its number there; a fault that occurs only once writes its mark
            there.
        length: Number of scenes.
        seconds: Wait per scene, in seconds.
        values: Numbers a scene.
    """

    def __init__(self, fault: str, folder: str, length: int, seconds: float, values: int) -> None:
        self.fault = fault
        self.folder = folder
        self.length = length
        self.seconds = seconds
        self.values = values
        self.noted = 0

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        if self.noted != os.getpid():
            self.noted = os.getpid()
            (Path(self.folder) / str(self.noted)).touch()
        time.sleep(self.seconds)
        if index == BAD_INDEX and self.fault in FAULTS:
            FAULTS[self.fault](self.folder)
        label = np.array([index], np.int64)
        return content(label, self.values)[0], label


def _segfault(folder: str) -> None:
    ctypes.string_at(0)


def _segfault_once(folder: str) -> None:
    try:
        (Path(folder) / "struck").touch(exist_ok=False)
    except FileExistsError:
        return
    ctypes.string_at(0)


def _exit_at_once(folder: str) -> NoReturn:
    os._exit(EXIT_CODE)


def _exceed_memory(folder: str) -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + HEADROOM, hard))
    try:
        np.ones(ALLOCATION, np.uint8)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _hang(folder: str) -> None:
    time.sleep(FOREVER)


def _hang_with_gil(folder: str) -> None:
    while True:
        ctypes.PyDLL(None).sleep(FOREVER)  # unlike CDLL, PyDLL keeps the GIL; a signal ends one sleep


def _raise(folder: str) -> NoReturn:
    raise ValueError("the points are not finite")


def _raise_unpicklable(folder: str) -> NoReturn:
    raise UnpicklableError("the connection broke")


def _raise_two_arguments(folder: str) -> NoReturn:
    raise TwoArgumentsError("rooms.h5", "the file is cut short")


def _exit(folder: str) -> NoReturn:
    sys.exit(EXIT_CODE)


def _interrupt(folder: str) -> NoReturn:
    raise KeyboardInterrupt


FAULTS: dict[str, Callable[[str], None]] = {
    "segfault": _segfault,
    "segfault-once": _segfault_once,
    "os-exit": _exit_at_once,
    "memory-limit": _exceed_memory,
    "hang": _hang,
    "hang-gil": _hang_with_gil,
    "raise": _raise,
    "raise-unpicklable": _raise_unpicklable,
    "raise-two-arguments": _raise_two_arguments,
    "sys-exit": _exit,
    "keyboard-interrupt": _interrupt,
}
