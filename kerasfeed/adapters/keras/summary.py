"""`SummaryWriter`: what one host of a distributed run measures, for TensorBoard.

Invariant: a writer writes to files that no other process writes to, below a folder that is named after its worker; all
that was written until the end of an epoch survives whatever happens then. Nothing here starts TensorFlow's runtime, so
no GPU is touched and no memory of one taken.
"""

import itertools
import os
import platform
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any

import keras

from kerasfeed.adapters.keras.evaluate import numbers_of
from kerasfeed.util.validate import check_integer

if TYPE_CHECKING:
    from kerasfeed.adapters.keras.feed import Feed

_VALIDATION = "val_"
_numbers = itertools.count()  # no two files of a process have the same


class SummaryWriter(keras.callbacks.Callback):  # type: ignore[misc]
    """Writes TensorBoard events of one worker (host) of a run, beside those of the other workers.

    As a callback of `fit` it writes `logs` and the statistics of the feed at the end of each epoch. Metrics get the
    names that `keras.callbacks.TensorBoard` gives them (`epoch_loss`), in runs `worker-N/train` and
    `worker-N/validation`, so that TensorBoard shows every worker in the same chart. A metric that is an array becomes
    several: `epoch_name[0]`, `epoch_name[1]`. Put it after `kf.InputMonitor(feed)` in the list of callbacks, to write
    scenes/s and the share of waiting too.

    Without `fit`, call `scalar(name, value, step)`. Files are created when there is something to write; `close` closes
    them, and a value written later creates new ones. No two processes share a file. What was written by the end of an
    epoch stays on the disk, whatever happens to the process. Works on every backend. TensorFlow writes the
    files.

    Args:
        log_dir: The folder below which all workers of the run write, and which TensorBoard reads.
        worker: Number of this worker, or another name; its folder is `log_dir/worker-N`. None is the `shard_index` of
            `feed`.
        feed: A `kerasfeed.Feed` whose `stats()` are written with each epoch, as `feed/batches`, `feed/respawns` and so
            on: totals since the feed was made.

    Raises:
        ImportError: TensorFlow is not installed.
        TypeError: An argument has the wrong type, or neither `worker` nor `feed` is given.
        ValueError: `worker` is negative, or cannot be the name of a folder.

    Examples:
        >>> with kf.SummaryWriter("logs", worker=0) as writer:
        ...     writer.scalar("evaluation/loss", 0.5, step=1)
        >>> import os
        >>> os.listdir("logs")
        ['worker-0']
    """

    def __init__(
        self, log_dir: str | os.PathLike[str], worker: int | str | None = None, *, feed: "Feed | None" = None
    ) -> None:
        from kerasfeed.adapters.tensorflow.framework import tf  # where it is missing, that is told now

        super().__init__()
        if not isinstance(log_dir, str | os.PathLike):
            raise TypeError(f"log_dir must be a path, received {log_dir!r} of type {type(log_dir).__name__}")
        if feed is not None and not hasattr(feed, "stats"):
            raise TypeError(f"feed must be a kerasfeed.Feed, received a {type(feed).__name__}")
        self.folder = os.path.join(os.fspath(log_dir), f"worker-{_name(worker, feed)}")  # noqa: PTH118 - or a URL
        self.feed = feed
        self._tf = tf
        self._files: dict[str, Any] = {}  # TensorFlow's writers, of each run
        self._lock = threading.Lock()

    def scalar(self, name: str, value: Any, step: int, *, run: str = "") -> None:
        """Write one number. It is on the disk after `flush`, `close` or the next end of an epoch.

        Args:
            name: Its name; a "/" groups charts.
            value: A number, or an array or tensor of one number.
            step: Its place on the horizontal axis, at least 0.
            run: A folder below that of the worker, for a curve of its own.

        Raises:
            TypeError: `value` is not a number, or `step` is not an integer.
            ValueError: `step` is negative.

        Examples:
            >>> with kf.SummaryWriter("logs", worker=0) as writer:
            ...     for step in range(3):
            ...         writer.scalar("loss", 1 / (step + 1), step, run="validation")
        """
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise TypeError(f"scalar {name!r} needs one number, received {value!r}") from None
        messages = self._tf.compat.v1
        summary = messages.Summary(value=[messages.Summary.Value(tag=str(name), simple_value=number)])
        self._write(run, messages.Event(wall_time=time.time(), step=check_integer("step", step, 0), summary=summary))

    def write_feed(self, step: int) -> None:
        """Write the statistics of the feed, if there is one.

        Args:
            step: Place on the horizontal axis, at least 0.
        """
        if self.feed is None:
            return
        stats = self.feed.stats()
        for name in ("batches", "copied", "slots", "slot_bytes", "respawns", "failed"):
            if hasattr(stats, name):
                self.scalar(f"feed/{name}", getattr(stats, name), step)

    def _write(self, run: str, *events: Any) -> None:
        """Add events to the file of a run, which is begun if need be.

        Raises:
            tf.errors.OpError: It cannot be written.
        """
        with self._lock:
            if run not in self._files:
                # Folders may be URLs.
                folder = os.path.join(self.folder, run) if run else self.folder  # noqa: PTH118
                self._tf.io.gfile.makedirs(folder)
                name = f"events.out.tfevents.{int(time.time()):010d}.{platform.node()}.{os.getpid()}.{next(_numbers)}"
                self._files[run] = file = self._tf.io.TFRecordWriter(os.path.join(folder, name))  # noqa: PTH118
                begin = self._tf.compat.v1.Event(wall_time=time.time(), file_version="brain.Event:2")
                file.write(begin.SerializeToString())
                file.flush()
            for event in events:
                self._files[run].write(event.SerializeToString())

    def flush(self) -> None:
        """Pass what was written on to the operating system, so that it is kept even if this process is killed."""
        with self._lock:
            for file in self._files.values():
                file.flush()

    def close(self) -> None:
        """Flush and close the files. May be called again."""
        with self._lock:
            files, self._files = self._files, {}
            for file in files.values():
                file.close()

    def __enter__(self) -> "SummaryWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # ---- Keras

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Called by Keras; begins the first file, so that a folder that cannot be written to is told at once."""
        self._write("train")

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Called by Keras after validation."""
        for name, value in numbers_of(logs or {}).items():
            validates = name.startswith(_VALIDATION)
            run = "validation" if validates else "train"
            self.scalar(f"epoch_{name.removeprefix(_VALIDATION)}", value, epoch, run=run)
        self.write_feed(epoch)
        self.flush()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Called by Keras."""
        self.close()


def _name(worker: Any, feed: Any) -> str:
    if worker is None:
        if feed is None:
            raise TypeError(
                "SummaryWriter needs the number of this worker, which no other worker of the run has: "
                "SummaryWriter(log_dir, worker=0), or a feed whose shard_index it is"
            )
        return str(feed.plan.shard_index)
    if isinstance(worker, str):
        if not worker or set(worker) & set("/\\\0") or worker in (".", ".."):
            raise ValueError(f"worker must be a number, or a name that a folder can have, received {worker!r}")
        return worker
    return str(check_integer("worker", worker, 0, what="a number, or a name"))
