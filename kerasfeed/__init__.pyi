"""Public names and their modules, for type checkers; `__init__.py` holds the same table."""

from kerasfeed import errors as errors
from kerasfeed.adapters.keras.backup import BackupAndRestore as BackupAndRestore
from kerasfeed.adapters.keras.checkpoint import FeedCheckpoint as FeedCheckpoint
from kerasfeed.adapters.keras.evaluate import Evaluation as Evaluation
from kerasfeed.adapters.keras.evaluate import evaluate as evaluate
from kerasfeed.adapters.keras.feed import Feed as Feed
from kerasfeed.adapters.keras.input_monitor import InputMonitor as InputMonitor
from kerasfeed.adapters.keras.streams import StreamFeed as StreamFeed
from kerasfeed.adapters.tensorflow.indexable import from_indexable as from_indexable
from kerasfeed.adapters.tensorflow.parse_records import feature_description as feature_description
from kerasfeed.adapters.tensorflow.parse_records import parse_record as parse_record
from kerasfeed.errors import FeedWarning as FeedWarning
from kerasfeed.errors import KerasfeedError as KerasfeedError
from kerasfeed.explore.check.check import check_sequence as check_sequence
from kerasfeed.explore.describe.describe import describe as describe
from kerasfeed.explore.profile.profile import profile as profile
from kerasfeed.explore.show.show import show as show
from kerasfeed.feeds.labels import labels_of as labels_of
from kerasfeed.feeds.load_one import load as load
from kerasfeed.loaders.hosts.ray_hosts import RayHosts as RayHosts
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
from kerasfeed.sequences.cached import Cached as Cached
from kerasfeed.sequences.context import current_rng as current_rng
from kerasfeed.sequences.mixture import Mixture as Mixture
from kerasfeed.sequences.packed import Packed as Packed
from kerasfeed.sequences.patches import Patches as Patches
from kerasfeed.sequences.patches import Windows as Windows
from kerasfeed.sequences.shared import shared as shared
from kerasfeed.sequences.split import folds as folds
from kerasfeed.sequences.split import split as split
from kerasfeed.sequences.views import Concat as Concat
from kerasfeed.sequences.views import Map as Map
from kerasfeed.sequences.views import Zip as Zip
from kerasfeed.spec.collation import Pad as Pad
from kerasfeed.spec.collation import Ragged as Ragged
from kerasfeed.spec.field_forms import RaggedArray as RaggedArray
from kerasfeed.spec.scene_spec import ArraySpec as ArraySpec
from kerasfeed.writers.hdf5.write import write_hdf5 as write_hdf5
from kerasfeed.writers.tfrecord import write_tfrecords as write_tfrecords

__version__: str
__all__: list[str]
