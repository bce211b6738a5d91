"""kerasfeed: any indexable Python class as a fast, reproducible, crash-proof input pipeline for Keras.

Invariant: importing this package loads no framework. Every public name is resolved on first use (PEP 562),
so a worker process that needs `kerasfeed.SceneSequence` never pays for Keras or TensorFlow.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from kerasfeed.adapters.keras.backup import BackupAndRestore as BackupAndRestore
    from kerasfeed.adapters.keras.checkpoint import FeedCheckpoint as FeedCheckpoint
    from kerasfeed.adapters.keras.evaluate import evaluate as evaluate
    from kerasfeed.adapters.keras.evaluation import Evaluation as Evaluation
    from kerasfeed.adapters.keras.feed import Feed as Feed
    from kerasfeed.adapters.keras.input_monitor import InputMonitor as InputMonitor
    from kerasfeed.adapters.keras.streams import QueueFeed as QueueFeed
    from kerasfeed.adapters.keras.streams import StreamFeed as StreamFeed
    from kerasfeed.adapters.keras.summary import SummaryWriter as SummaryWriter
    from kerasfeed.adapters.tensorflow.indexable import from_indexable as from_indexable
    from kerasfeed.adapters.tensorflow.parse_records import feature_description as feature_description
    from kerasfeed.adapters.tensorflow.parse_records import parse_record as parse_record
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
    from kerasfeed.explore.show import show as show
    from kerasfeed.feeds.labels import labels_of as labels_of
    from kerasfeed.feeds.load_one import load as load
    from kerasfeed.orders.base import Sequential as Sequential
    from kerasfeed.orders.base import Shuffled as Shuffled
    from kerasfeed.orders.blocks import BlockShuffled as BlockShuffled
    from kerasfeed.orders.bucketed import Bucketed as Bucketed
    from kerasfeed.orders.weighted import Balanced as Balanced
    from kerasfeed.orders.weighted import Weighted as Weighted
    from kerasfeed.readers.files.sequence import FileSequence as FileSequence
    from kerasfeed.readers.hdf5.file import HDF5File as HDF5File
    from kerasfeed.readers.hdf5.scenes import HDF5Scenes as HDF5Scenes
    from kerasfeed.readers.tfrecord.sequence import TFRecordSequence as TFRecordSequence
    from kerasfeed.sequences.base import SceneSequence as SceneSequence
    from kerasfeed.sequences.base import Subset as Subset
    from kerasfeed.sequences.cache.cached import Cached as Cached
    from kerasfeed.sequences.context import current_rng as current_rng
    from kerasfeed.sequences.mixture import Mixture as Mixture
    from kerasfeed.sequences.split import split as split
    from kerasfeed.sequences.views import Concat as Concat
    from kerasfeed.sequences.views import Map as Map
    from kerasfeed.sequences.views import Zip as Zip
    from kerasfeed.spec.collation import Pad as Pad
    from kerasfeed.spec.collation import Ragged as Ragged
    from kerasfeed.spec.field_forms import RaggedArray as RaggedArray
    from kerasfeed.spec.scene_spec import ArraySpec as ArraySpec
    from kerasfeed.util.read_cost import ReadCostWarning as ReadCostWarning
    from kerasfeed.writers.hdf5.rechunk import rechunk as rechunk
    from kerasfeed.writers.hdf5.write import write_hdf5 as write_hdf5
    from kerasfeed.writers.tfrecord.write import write_tfrecords as write_tfrecords

_MODULE_OF = {
    "ArraySpec": "kerasfeed.spec.scene_spec",
    "Balanced": "kerasfeed.orders.weighted",
    "BlockShuffled": "kerasfeed.orders.blocks",
    "Bucketed": "kerasfeed.orders.bucketed",
    "Cached": "kerasfeed.sequences.cache.cached",
    "Concat": "kerasfeed.sequences.views",
    "Evaluation": "kerasfeed.adapters.keras.evaluation",
    "Feed": "kerasfeed.adapters.keras.feed",
    "BackupAndRestore": "kerasfeed.adapters.keras.backup",
    "FeedCheckpoint": "kerasfeed.adapters.keras.checkpoint",
    "FeedClosedError": "kerasfeed.errors",
    "FeedWarning": "kerasfeed.errors",
    "FileSequence": "kerasfeed.readers.files.sequence",
    "HDF5File": "kerasfeed.readers.hdf5.file",
    "HDF5Scenes": "kerasfeed.readers.hdf5.scenes",
    "InputMonitor": "kerasfeed.adapters.keras.input_monitor",
    "KerasfeedError": "kerasfeed.errors",
    "Map": "kerasfeed.sequences.views",
    "Mixture": "kerasfeed.sequences.mixture",
    "Pad": "kerasfeed.spec.collation",
    "ProducerDiedError": "kerasfeed.errors",
    "QueueFeed": "kerasfeed.adapters.keras.streams",
    "QueueFullError": "kerasfeed.errors",
    "Ragged": "kerasfeed.spec.collation",
    "RaggedArray": "kerasfeed.spec.field_forms",
    "ReadCostWarning": "kerasfeed.util.read_cost",
    "RecordError": "kerasfeed.errors",
    "SceneError": "kerasfeed.errors",
    "SceneSequence": "kerasfeed.sequences.base",
    "SceneTimeoutError": "kerasfeed.errors",
    "Sequential": "kerasfeed.orders.base",
    "Shuffled": "kerasfeed.orders.base",
    "SpecError": "kerasfeed.errors",
    "StreamFeed": "kerasfeed.adapters.keras.streams",
    "Subset": "kerasfeed.sequences.base",
    "SummaryWriter": "kerasfeed.adapters.keras.summary",
    "TFRecordSequence": "kerasfeed.readers.tfrecord.sequence",
    "TooManyFailuresError": "kerasfeed.errors",
    "Weighted": "kerasfeed.orders.weighted",
    "WorkerDiedError": "kerasfeed.errors",
    "Zip": "kerasfeed.sequences.views",
    "current_rng": "kerasfeed.sequences.context",
    "evaluate": "kerasfeed.adapters.keras.evaluate",
    "feature_description": "kerasfeed.adapters.tensorflow.parse_records",
    "from_indexable": "kerasfeed.adapters.tensorflow.indexable",
    "labels_of": "kerasfeed.feeds.labels",
    "load": "kerasfeed.feeds.load_one",
    "parse_record": "kerasfeed.adapters.tensorflow.parse_records",
    "rechunk": "kerasfeed.writers.hdf5.rechunk",
    "show": "kerasfeed.explore.show",
    "split": "kerasfeed.sequences.split",
    "write_hdf5": "kerasfeed.writers.hdf5.write",
    "write_tfrecords": "kerasfeed.writers.tfrecord.write",
}

__all__ = ["__version__", *sorted(_MODULE_OF)]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'kerasfeed' has no attribute {name!r}")
    value = getattr(import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
