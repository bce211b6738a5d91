"""Exceptions that users may catch.

Invariant: the consumer gets an exception of the user's own `__getitem__` with its type. The classes here are for
errors that kerasfeed detects. Each derives from the built-in exception that a caller would expect.
"""


class KerasfeedError(Exception):
    """Base class of the errors in `kerasfeed.errors`.

    An exception that your own code raises in `__getitem__` is not one of these: it keeps its own type.

    Examples:
        >>> with kf.Feed([np.zeros(2), np.zeros(3)], batch_size=2, workers=0) as feed:
        ...     try:
        ...         feed[0]
        ...     except kf.KerasfeedError as error:
        ...         print(type(error).__name__)
        SpecError
    """


class SceneError(KerasfeedError, RuntimeError):
    """A scene raised an exception that cannot be passed on unchanged.

    Raised in place of `StopIteration`, `SystemExit`, `KeyboardInterrupt`, and of exceptions that cannot be pickled. The
    original exception is the `__cause__` of this one. If it cannot be pickled, the message has its text and traceback.

    Examples:
        >>> def leave(scene):
        ...     raise SystemExit(1)
        >>> with kf.Feed(kf.Map([1.0, 2.0], leave), batch_size=2, workers=0) as feed:
        ...     try:
        ...         feed[0]
        ...     except kf.errors.SceneError as error:
        ...         print(repr(error.__cause__))
        SystemExit(1)
    """


class SpecError(KerasfeedError, ValueError):
    """A scene that does not match the spec or its batch.

    The scene differs from the spec in structure, shape or dtype. The spec of a feed is inferred from a few scenes, or
    given with `output_signature=`. The message names field, index and both specs. It is also a `ValueError`.

    Examples:
        >>> clouds = [np.zeros((4, 3)), np.zeros((5, 3))]
        >>> with kf.Feed(clouds, batch_size=2, workers=0) as feed:
        ...     try:
        ...         feed[0]
        ...     except kf.errors.SpecError as error:
        ...         print(error)
        field 'scene' cannot be stacked: scene 0 has shape (4, 3) and scene 1 has shape (5, 3)...
    """


class RecordError(KerasfeedError, ValueError):
    """A file of records is damaged, truncated, incomplete or of another kind.

    Raised for TFRecord files, and for HDF5 files that `write_hdf5` should have written. The message names the file, and
    for a damaged record its byte offset and number. It is also a `ValueError`.

    Examples:
        >>> with open("damaged.tfrecord", "wb") as file:
        ...     _ = file.write(b"this is no TFRecord file")
        >>> try:
        ...     kf.TFRecordSequence("damaged.tfrecord")
        ... except kf.errors.RecordError as error:
        ...     print(error)
        record 0 of ...damaged.tfrecord' (at byte 0): the checksum of the length at byte 0 does not match...
    """


class WorkerDiedError(KerasfeedError, RuntimeError):
    """A scene ended its worker process several times in a row.

    A worker process that dies is replaced, and its work is done again. This error is raised when one scene has ended
    its worker `max_failures` times (3 by default). The message names the scene, the signal or exit code, the peak
    memory, and the line that loads this scene in your own process. The error is also raised if the worker processes
    cannot be kept running. It is also a `RuntimeError`.

    Examples:
        >>> import os
        >>> feed = kf.Feed(kf.Map([1.0, 2.0], lambda x: os._exit(3)), 2, workers=1, worker_type="process")
        >>> with feed:
        ...     try:
        ...         feed[0]
        ...     except kf.errors.WorkerDiedError as error:
        ...         print("exit code 3" in str(error))
        True
    """


class HostLostError(WorkerDiedError):
    """A batch lost its host several times, or no host is left.

    Hosts are the machines of `Feed(hosts=...)`. Ray restarts a host that is lost, and other hosts load its batches.
    This error is raised if one batch has lost its host `max_failures` times (3 by default), if Ray does not restart a
    host, or if the feed has had no host for `start_timeout` seconds.

    Examples:
        >>> issubclass(kf.errors.HostLostError, kf.errors.WorkerDiedError)
        True
    """


class WorkerStartError(WorkerDiedError):
    """A worker process could not load the sequence."""


class SceneTimeoutError(KerasfeedError, TimeoutError):
    """A scene took longer than the `timeout` of its feed.

    A worker process that hangs is replaced, and the scene is tried once more before this error is raised. A thread
    cannot be ended: its batch fails at once, and another thread takes its place. It is also a `TimeoutError`.

    Examples:
        >>> import time
        >>> slow = kf.Map([1.0, 2.0], lambda x: time.sleep(1))
        >>> with kf.Feed(slow, batch_size=2, workers=2, worker_type="thread", timeout=0.1) as feed:
        ...     try:
        ...         feed[0]
        ...     except kf.errors.SceneTimeoutError:
        ...         print("too slow")
        too slow
    """


class TooManyFailuresError(KerasfeedError, RuntimeError):
    """More scenes failed than `max_failures` allows.

    Raised only with `on_error="replace"`, `"mask"` or `"skip"`. Its `__cause__` is the failure that was one too many.
    It is also a `RuntimeError`.

    Examples:
        >>> def fail(scene):
        ...     raise ValueError("damaged")
        >>> scenes = kf.Map([1.0, 2.0, 3.0], fail)
        >>> with kf.Feed(scenes, batch_size=1, workers=0, on_error="skip", max_failures=1) as feed:
        ...     try:
        ...         list(feed)
        ...     except kf.errors.TooManyFailuresError as error:
        ...         print(repr(error.__cause__))
        ValueError('damaged')
    """


class FeedClosedError(KerasfeedError, RuntimeError):
    """The feed was used after `close()`, or after its `with` block.

    It is also a `RuntimeError`.

    Examples:
        >>> feed = kf.Feed([1.0, 2.0], batch_size=2, workers=0)
        >>> feed.close()
        >>> try:
        ...     feed[0]
        ... except kf.errors.FeedClosedError:
        ...     print("closed")
        closed
    """


class FeedWarning(UserWarning):
    """The feed has handled a problem, or reports a likely mistake.

    For example: a worker process was replaced, a scene has been loading for 30 s, batches are copied because
    `max_memory` is reached, or `predict` gets the scenes in another order than the sequence. The page on errors lists
    the messages with their remedies.

    Examples:
        Turn these warnings into errors:

        >>> import warnings
        >>> np.save("scans.npy", np.zeros((2, 3)))
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("error", kf.FeedWarning)
        ...     try:
        ...         kf.FileSequence(["scans.npy", "missing.npy"], np.load, on_error="skip")
        ...     except kf.FeedWarning:
        ...         print("a file was left out")
        a file was left out
    """


class ReadCostWarning(UserWarning):
    """The order of reading decodes far more data than the scenes hold.

    A feed issues it once if its sequence reads HDF5 chunks, or files of many scenes, in an order that reads them
    repeatedly. The message says how much is read for each scene, and names the remedy: usually
    `order=kf.BlockShuffled(...)`, a larger cache, or other chunks.

    Examples:
        Ignore it if a slow first epoch is acceptable:

        >>> import warnings
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("ignore", kf.errors.ReadCostWarning)
        ...     with kf.Feed([1.0, 2.0], batch_size=2, shuffle=True, workers=0) as feed:
        ...         batches = list(feed)
    """
