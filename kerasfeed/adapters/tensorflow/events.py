"""TensorBoard's event files, written with TensorFlow's own record writer and messages.

Invariant: what was flushed is read back whatever becomes of the process; no two writers ever share a file. Nothing here
starts TensorFlow's runtime, so no GPU is touched and no memory of one taken.
"""

import itertools
import os
import platform
import threading
import time

from kerasfeed.adapters.tensorflow.framework import tf

_numbers = itertools.count()


class EventFile:
    """One event file. All methods may be called from any thread."""

    def __init__(self, folder: str) -> None:
        """Begin a file in `folder`, made if need be; a path or a URL that TensorFlow knows.

        Raises:
            tf.errors.OpError: It cannot be written.
        """
        tf.io.gfile.makedirs(folder)
        name = f"events.out.tfevents.{int(time.time()):010d}.{platform.node()}.{os.getpid()}.{next(_numbers)}"
        self.path = os.path.join(folder, name)  # noqa: PTH118 - it may be a URL
        self._writer = tf.io.TFRecordWriter(self.path)
        self._lock = threading.Lock()
        self._add(tf.compat.v1.Event(wall_time=time.time(), file_version="brain.Event:2"))
        self.flush()

    def scalar(self, tag: str, value: float, step: int) -> None:
        """Add one number."""
        summary = tf.compat.v1.Summary(value=[tf.compat.v1.Summary.Value(tag=tag, simple_value=value)])
        self._add(tf.compat.v1.Event(wall_time=time.time(), step=step, summary=summary))

    def _add(self, event: "tf.compat.v1.Event") -> None:
        with self._lock:
            self._writer.write(event.SerializeToString())

    def flush(self) -> None:
        """Hand to the system what was added."""
        with self._lock:
            self._writer.flush()

    def close(self) -> None:
        """Flush, and end the file."""
        with self._lock:
            self._writer.close()
