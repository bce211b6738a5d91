"""kerasfeed: input pipelines for Keras from any indexable Python class.

Invariant: importing this package loads no framework. Every public name is resolved on first use (PEP 562),
so a worker process that needs `kerasfeed.SceneSequence` does not import Keras or TensorFlow.
`__init__.pyi` holds the same table for type checkers.
"""

import logging
from importlib import import_module
from typing import Any

from kerasfeed.util.resources import open_closed

__version__ = "0.1.0"
logging.getLogger(__name__).addHandler(logging.NullHandler())  # the pool logs starts and deaths of workers
open_closed()  # before any file is opened

# Name to module. Not read from `__init__.pyi`, because a frozen program has no files of the package.
_MODULE_OF = {
    "ArraySpec": "spec.scene_spec",
    "BackupAndRestore": "adapters.keras.backup",
    "Balanced": "orders.weighted",
    "BlockShuffled": "orders.blocks",
    "Bucketed": "orders.bucketed",
    "Cached": "sequences.cached",
    "Concat": "sequences.views",
    "Evaluation": "adapters.keras.evaluate",
    "Feed": "adapters.keras.feed",
    "FeedCheckpoint": "adapters.keras.checkpoint",
    "FeedWarning": "errors",
    "FileSequence": "readers.files.sequence",
    "HDF5File": "readers.hdf5.file",
    "HDF5Scenes": "readers.hdf5.scenes",
    "InputMonitor": "adapters.keras.input_monitor",
    "KerasfeedError": "errors",
    "Map": "sequences.views",
    "Mixture": "sequences.mixture",
    "Packed": "sequences.packed",
    "Pad": "spec.collation",
    "Patches": "sequences.patches",
    "Ragged": "spec.collation",
    "RaggedArray": "spec.field_forms",
    "RayHosts": "loaders.hosts.ray_hosts",
    "SceneSequence": "sequences.base",
    "Sequential": "orders.base",
    "Shuffled": "orders.base",
    "StreamFeed": "adapters.keras.streams",
    "Subset": "sequences.base",
    "TFRecordSequence": "readers.tfrecord.sequence",
    "Weighted": "orders.weighted",
    "Windows": "sequences.patches",
    "Zip": "sequences.views",
    "check_sequence": "explore.check.check",
    "current_rng": "sequences.context",
    "describe": "explore.describe.describe",
    "evaluate": "adapters.keras.evaluate",
    "feature_description": "adapters.tensorflow.parse_records",
    "folds": "sequences.split",
    "from_indexable": "adapters.tensorflow.indexable",
    "labels_of": "feeds.labels",
    "load": "feeds.load_one",
    "parse_record": "adapters.tensorflow.parse_records",
    "profile": "explore.profile.profile",
    "shared": "sequences.shared",
    "show": "explore.show.show",
    "split": "sequences.split",
    "write_hdf5": "writers.hdf5.write",
    "write_tfrecords": "writers.tfrecord",
}
_LIVE_DATA = "read a queue.Queue or multiprocessing.Queue by kf.StreamFeed(lambda: iter(queue.get, END), 32, workers=0)"
_BASE_CLASS = "the base class of scenes is kf.SceneSequence, and kf.Feed makes batches of them"
_IN_ERRORS = (
    "FeedClosedError", "HostLostError", "ReadCostWarning", "RecordError", "SceneError", "SceneTimeoutError",
    "SpecError", "TooManyFailuresError", "WorkerDiedError",
)  # fmt: skip
# Names that do not exist, and what to use instead.
_INSTEAD = {
    **{name: f"use kf.errors.{name}" for name in _IN_ERRORS},
    "DataLoader": "kf.Feed(sequence, batch_size) makes batches",
    "Dataset": _BASE_CLASS,
    "HDF5Matrix": "use kf.HDF5File(path)[name]",
    "KFold": "use kf.folds(sequence, count, seed=0)",
    "ProducerDiedError": _LIVE_DATA,
    "PyDataset": _BASE_CLASS,
    "QueueFeed": _LIVE_DATA,
    "QueueFullError": _LIVE_DATA,
    "Sequence": _BASE_CLASS,
    "from_generator": "use kf.StreamFeed(make_generator, batch_size)",
    "plot": "use kf.show(sequence, index)",
    "train_test_split": "use kf.split(sequence, (0.8, 0.2), seed=0)",
    "testing": "in a test, write kf.check_sequence(x).raise_if_failed()",
    "rechunk": "write the scenes with kf.write_hdf5(scenes, path, scenes_per_chunk=1), or copy the whole file with the "
    "HDF Group's h5repack",
    "SummaryWriter": 'pass keras.callbacks.TensorBoard(f"logs/worker-{feed.shard.index}") to fit, and '
    "kf.InputMonitor(feed) before it",
}
__all__ = ["__version__", "errors", *sorted(_MODULE_OF)]


def __getattr__(name: str) -> Any:
    if name == "errors":
        return import_module("kerasfeed.errors")  # sets the attribute
    if name not in _MODULE_OF:
        advice = f": {_INSTEAD[name]}" if name in _INSTEAD else ""
        raise AttributeError(f"module 'kerasfeed' has no attribute {name!r}{advice}")
    try:
        value = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    except ModuleNotFoundError as error:
        from kerasfeed.util.error_text import message_of

        package = str(error.name).partition(".")[0]
        if package not in ("tensorflow", "jax", "torch"):
            raise
        raise ImportError(
            f"kerasfeed.{name} needs Keras, which cannot be imported without its backend ({message_of(error)}). "
            f"Run pip install {package} (the extra kerasfeed[{package}]), or set KERAS_BACKEND to an installed backend",
            name=package,
        ) from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
