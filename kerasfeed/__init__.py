"""kerasfeed: any indexable Python class as a fast, reproducible, crash-proof input pipeline for Keras.

Invariant: importing this package loads no framework. Every public name is resolved on first use (PEP 562),
so a worker process that needs `kerasfeed.SceneSequence` never pays for Keras or TensorFlow.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kerasfeed._version import __version__

if TYPE_CHECKING:
    from kerasfeed.adapters.tf_records import feature_description as feature_description
    from kerasfeed.adapters.tf_records import parse_record as parse_record
    from kerasfeed.backup import BackupAndRestore as BackupAndRestore
    from kerasfeed.cached import Cached as Cached
    from kerasfeed.callbacks import InputMonitor as InputMonitor
    from kerasfeed.checkpoint import FeedCheckpoint as FeedCheckpoint
    from kerasfeed.collate import Pad as Pad
    from kerasfeed.collate import Ragged as Ragged
    from kerasfeed.context import current_rng as current_rng
    from kerasfeed.costs import ReadCostWarning as ReadCostWarning
    from kerasfeed.errors import FeedClosedError as FeedClosedError
    from kerasfeed.errors import FeedWarning as FeedWarning
    from kerasfeed.errors import KerasfeedError as KerasfeedError
    from kerasfeed.errors import ProducerDiedError as ProducerDiedError
    from kerasfeed.errors import QueueFullError as QueueFullError
    from kerasfeed.errors import RecordError as RecordError
    from kerasfeed.errors import SceneError as SceneError
    from kerasfeed.errors import SceneTimeoutError as SceneTimeoutError
    from kerasfeed.errors import SpecError as SpecError
    from kerasfeed.errors import TooManyFailuresError as TooManyFailuresError
    from kerasfeed.errors import WorkerDiedError as WorkerDiedError
    from kerasfeed.evaluating import evaluate as evaluate
    from kerasfeed.evaluation import Evaluation as Evaluation
    from kerasfeed.feed import Feed as Feed
    from kerasfeed.files.sequence import FileSequence as FileSequence
    from kerasfeed.forms import RaggedArray as RaggedArray
    from kerasfeed.indexable import from_indexable as from_indexable
    from kerasfeed.inspect.show import show as show
    from kerasfeed.labels import labels_of as labels_of
    from kerasfeed.mixture import Mixture as Mixture
    from kerasfeed.order import Sequential as Sequential
    from kerasfeed.order import Shuffled as Shuffled
    from kerasfeed.order_blocks import BlockShuffled as BlockShuffled
    from kerasfeed.order_bucketed import Bucketed as Bucketed
    from kerasfeed.order_drawn import Balanced as Balanced
    from kerasfeed.order_drawn import Weighted as Weighted
    from kerasfeed.queue_feed import QueueFeed as QueueFeed
    from kerasfeed.readers.hdf5 import HDF5File as HDF5File
    from kerasfeed.readers.rechunk import rechunk as rechunk
    from kerasfeed.records.hdf5_scenes import HDF5Scenes as HDF5Scenes
    from kerasfeed.records.sequence import TFRecordSequence as TFRecordSequence
    from kerasfeed.records.tfrecords import write_tfrecords as write_tfrecords
    from kerasfeed.records.write_hdf5 import write_hdf5 as write_hdf5
    from kerasfeed.reproduce import load as load
    from kerasfeed.scene import SceneSequence as SceneSequence
    from kerasfeed.scene import Subset as Subset
    from kerasfeed.spec import ArraySpec as ArraySpec
    from kerasfeed.splitting import split as split
    from kerasfeed.stream_feed import StreamFeed as StreamFeed
    from kerasfeed.summary import SummaryWriter as SummaryWriter
    from kerasfeed.views import Concat as Concat
    from kerasfeed.views import Map as Map
    from kerasfeed.views import Zip as Zip

_ROOM_OF = {
    "ArraySpec": "kerasfeed.spec",
    "Balanced": "kerasfeed.order_drawn",
    "BlockShuffled": "kerasfeed.order_blocks",
    "Bucketed": "kerasfeed.order_bucketed",
    "Cached": "kerasfeed.cached",
    "Concat": "kerasfeed.views",
    "Evaluation": "kerasfeed.evaluation",
    "Feed": "kerasfeed.feed",
    "BackupAndRestore": "kerasfeed.backup",
    "FeedCheckpoint": "kerasfeed.checkpoint",
    "FeedClosedError": "kerasfeed.errors",
    "FeedWarning": "kerasfeed.errors",
    "FileSequence": "kerasfeed.files.sequence",
    "HDF5File": "kerasfeed.readers.hdf5",
    "HDF5Scenes": "kerasfeed.records.hdf5_scenes",
    "InputMonitor": "kerasfeed.callbacks",
    "KerasfeedError": "kerasfeed.errors",
    "Map": "kerasfeed.views",
    "Mixture": "kerasfeed.mixture",
    "Pad": "kerasfeed.collate",
    "ProducerDiedError": "kerasfeed.errors",
    "QueueFeed": "kerasfeed.queue_feed",
    "QueueFullError": "kerasfeed.errors",
    "Ragged": "kerasfeed.collate",
    "RaggedArray": "kerasfeed.forms",
    "ReadCostWarning": "kerasfeed.costs",
    "RecordError": "kerasfeed.errors",
    "SceneError": "kerasfeed.errors",
    "SceneSequence": "kerasfeed.scene",
    "SceneTimeoutError": "kerasfeed.errors",
    "Sequential": "kerasfeed.order",
    "Shuffled": "kerasfeed.order",
    "SpecError": "kerasfeed.errors",
    "StreamFeed": "kerasfeed.stream_feed",
    "Subset": "kerasfeed.scene",
    "SummaryWriter": "kerasfeed.summary",
    "TFRecordSequence": "kerasfeed.records.sequence",
    "TooManyFailuresError": "kerasfeed.errors",
    "Weighted": "kerasfeed.order_drawn",
    "WorkerDiedError": "kerasfeed.errors",
    "Zip": "kerasfeed.views",
    "current_rng": "kerasfeed.context",
    "evaluate": "kerasfeed.evaluating",
    "feature_description": "kerasfeed.adapters.tf_records",
    "from_indexable": "kerasfeed.indexable",
    "labels_of": "kerasfeed.labels",
    "load": "kerasfeed.reproduce",
    "parse_record": "kerasfeed.adapters.tf_records",
    "rechunk": "kerasfeed.readers.rechunk",
    "show": "kerasfeed.inspect.show",
    "split": "kerasfeed.splitting",
    "write_hdf5": "kerasfeed.records.write_hdf5",
    "write_tfrecords": "kerasfeed.records.tfrecords",
}

__all__ = ["__version__", *sorted(_ROOM_OF)]


def __getattr__(name: str) -> Any:
    if name not in _ROOM_OF:
        raise AttributeError(f"module 'kerasfeed' has no attribute {name!r}")
    value = getattr(import_module(_ROOM_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
