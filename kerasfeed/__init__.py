"""kerasfeed: any indexable Python class as a fast, reproducible, crash-proof input pipeline for Keras.

Invariant: importing this package loads no framework. Every public name is resolved on first use (PEP 562),
so a worker process that needs `kerasfeed.SceneSequence` never pays for Keras or TensorFlow.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kerasfeed._version import __version__

if TYPE_CHECKING:
    from kerasfeed.callbacks import InputMonitor as InputMonitor
    from kerasfeed.costs import ReadCostWarning as ReadCostWarning
    from kerasfeed.errors import FeedClosedError as FeedClosedError
    from kerasfeed.errors import FeedWarning as FeedWarning
    from kerasfeed.errors import KerasfeedError as KerasfeedError
    from kerasfeed.errors import SceneError as SceneError
    from kerasfeed.errors import SceneTimeoutError as SceneTimeoutError
    from kerasfeed.errors import SpecError as SpecError
    from kerasfeed.errors import TooManyFailuresError as TooManyFailuresError
    from kerasfeed.errors import WorkerDiedError as WorkerDiedError
    from kerasfeed.feed import Feed as Feed
    from kerasfeed.order import BlockShuffled as BlockShuffled
    from kerasfeed.order import Sequential as Sequential
    from kerasfeed.order import Shuffled as Shuffled
    from kerasfeed.readers.hdf5 import HDF5File as HDF5File
    from kerasfeed.readers.rechunk import rechunk as rechunk
    from kerasfeed.reproduce import load as load
    from kerasfeed.scene import SceneSequence as SceneSequence
    from kerasfeed.spec import ArraySpec as ArraySpec

_ROOM_OF = {
    "ArraySpec": "kerasfeed.spec",
    "BlockShuffled": "kerasfeed.order",
    "Feed": "kerasfeed.feed",
    "FeedClosedError": "kerasfeed.errors",
    "FeedWarning": "kerasfeed.errors",
    "HDF5File": "kerasfeed.readers.hdf5",
    "InputMonitor": "kerasfeed.callbacks",
    "KerasfeedError": "kerasfeed.errors",
    "ReadCostWarning": "kerasfeed.costs",
    "SceneError": "kerasfeed.errors",
    "SceneTimeoutError": "kerasfeed.errors",
    "SceneSequence": "kerasfeed.scene",
    "Sequential": "kerasfeed.order",
    "Shuffled": "kerasfeed.order",
    "SpecError": "kerasfeed.errors",
    "TooManyFailuresError": "kerasfeed.errors",
    "WorkerDiedError": "kerasfeed.errors",
    "load": "kerasfeed.reproduce",
    "rechunk": "kerasfeed.readers.rechunk",
}

__all__ = ["__version__", *sorted(_ROOM_OF)]


def __getattr__(name: str) -> Any:
    if name not in _ROOM_OF:
        raise AttributeError(f"module 'kerasfeed' has no attribute {name!r}")
    value = getattr(import_module(_ROOM_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_ROOM_OF})
