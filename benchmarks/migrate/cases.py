"""The cases and their sides. The process that measures imports the frameworks."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Side:
    """One way to get the scenes.

    Attributes:
        name: Its name in the table.
        room: Module of the function, in this package.
        function: Name of the function, which returns endless batches or scenes/s.
        arguments: Its first arguments. The last may be `folder`, to write to, and `seconds`, to measure.
    """

    name: str
    room: str
    function: str
    arguments: tuple[Any, ...]

    def bound(self, folder: Path, seconds: float) -> Callable[[], Any]:
        """The function with its arguments; imports the module."""
        wanted = getattr(import_module(f"benchmarks.migrate.{self.room}"), self.function)
        parameters = inspect.signature(wanted).parameters
        known = {"folder": folder, "seconds": seconds}
        more = {key: value for key, value in known.items() if key in parameters}
        inspect.signature(wanted).bind(*self.arguments, **more)
        return partial(wanted, *self.arguments, **more)


@dataclass(frozen=True)
class Case:
    """Existing code, and its replacement.

    Attributes:
        name: Its name in the table.
        sides: The sides; today's first.
    """

    name: str
    sides: tuple[Side, ...]


def _today(name: str, function: str, *arguments: Any) -> Side:
    return Side(name, "today", function, arguments)


def _ours(name: str, function: str, *arguments: Any) -> Side:
    return Side(name, "with_kerasfeed", function, arguments)


CASES = [
    Case(
        "one generator, scenes at once",
        (
            _today("`from_generator`", "from_generator", "instant"),
            _ours("`StreamFeed`, a thread", "one_generator", "instant", "thread"),
            _ours("a process", "one_generator", "instant", "process"),
        ),
    ),
    Case(
        "one generator, 1 ms a scene",
        (
            _today("`from_generator`", "from_generator", "busy"),
            _ours("`StreamFeed`, a process", "one_generator", "busy", "process"),
            _ours("`Feed`, 2 processes", "by_number", "busy", 2, "process"),
        ),
    ),
    Case(
        "four generators, 1 ms",
        (
            _today("`interleave`", "interleave", "busy"),
            _ours("`StreamFeed`, 2 processes", "four_generators", "busy", 2, "process"),
        ),
    ),
    Case(
        "four generators, 5 ms of waiting",
        (
            _today("`interleave`", "interleave", "waiting"),
            _ours("`StreamFeed`, 4 threads", "four_generators", "waiting", 4, "thread"),
            _ours("4 processes", "four_generators", "waiting", 4, "process"),
        ),
    ),
    Case(
        "a light generator, then 1 ms",
        (
            _today("`from_generator.map`", "light_map"),
            _ours("`StreamFeed.map`, 2 processes", "light_map"),
        ),
    ),
    Case(
        "by number, 1 ms",
        (
            _today("`range.map`", "range_map", "busy"),
            _ours("`Feed`, 2 processes", "by_number", "busy", 2, "process"),
        ),
    ),
    Case(
        "by number, 5 ms of waiting",
        (
            _today("`range.map`, 8 calls", "range_map", "waiting", 8),
            _ours("`Feed`, 8 threads", "by_number", "waiting", 8, "thread"),
        ),
    ),
    Case(
        "`fit` on generators, 1 ms",
        (
            _today("a generator", "fit_generator"),
            _ours("`StreamFeed`, 2 processes", "fit_stream"),
        ),
    ),
    Case(
        "`fit`, 1 ms",
        (
            _today("PyDataset, 2 processes", "fit_processes"),
            _ours("`Feed`, 2 processes", "fit_feed", "busy", 2, "process"),
        ),
    ),
    Case(
        "`fit`, 5 ms of waiting",
        (
            _today("PyDataset, 8 threads", "fit_threads"),
            _ours("`Feed`, 8 threads", "fit_feed", "waiting", 8, "thread"),
        ),
    ),
    Case(
        "a session, 1 ms",
        (
            _today("`feed_dict`", "feed_dict"),
            _ours("the same from a `Feed`, 2 processes", "session", "busy", 2, "process"),
        ),
    ),
    Case(
        "a session with queues, 1 ms",
        (
            _today("queue runners, 2 threads", "queue_runners", "busy", 2),
            _ours("`to_tf_dataset`, 2 processes", "dataset_in_session", "busy", 2, "process"),
        ),
    ),
    Case(
        "a session with queues, 5 ms of waiting",
        (
            _today("queue runners, 8 threads", "queue_runners", "waiting", 8),
            _ours("`to_tf_dataset`, 8 threads", "dataset_in_session", "waiting", 8, "thread"),
        ),
    ),
    Case(
        "files of 500 scenes",
        (
            _today("`interleave`", "interleaved_files"),
            _ours("`FileSequence`, 2 threads", "interleaved_files"),
        ),
    ),
    Case(
        "classes 9 : 1 balanced, 1 ms",
        (
            _today("`rejection_resample`", "rejection_resample"),
            _ours("`Balanced`, 2 processes", "balanced"),
        ),
    ),
    Case(
        "texts by length, 1 ms",
        (
            _today("`bucket_by_sequence_length`", "bucket_by_sequence_length"),
            _ours("`Bucketed`, 2 processes", "bucketed"),
        ),
    ),
    Case(
        "TFRecords written, 1 ms",
        (
            _today("one `TFRecordWriter` loop", "write_tfrecords"),
            _ours("`write_tfrecords`, 2 processes", "write_tfrecords"),
        ),
    ),
    Case(
        "TFRecords read",
        (
            _today("`parse_single_example`, a shuffle buffer", "read_tfrecords"),
            _ours("`TFRecordSequence`, full shuffle, 2 processes", "read_tfrecords", "process"),
            _ours("2 threads", "read_tfrecords", "thread"),
        ),
    ),
    Case(
        "a thread that receives, scenes at once",
        (
            _today("`queue.Queue`, `from_generator`", "receiving_thread"),
            _ours("`StreamFeed` of the queue", "receiving_thread"),
        ),
    ),
]
