"""The files that store a training.

One file maps optimizer iterations to positions in the feed. The other holds arrays and a header.

Invariant: the map is replaced atomically. The model itself determines the next batch: its optimizer counts the batches
of training, and is saved with it. So for any restored state of the model, and after any crash while the model or the
map was written, the model and the map agree, or the map is refused. A truncated or damaged file of arrays is always
detected: its table of contents is at the end, and each array has a checksum.
"""

import contextlib
import io
import json
import os
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from kerasfeed.util.atomic_write import write_whole
from kerasfeed.util.error_text import message_of, summary

_KIND, _VERSION = "kerasfeed.FeedCheckpoint", 2
_KEPT = 16  # latest records, besides the first
_HEADER = "header.json"


@dataclass(frozen=True)
class Record:
    """One moment of a training.

    Attributes:
        iterations: Sum of the iterations of all optimizers.
        scale: Sum of the optimizers' loss scales; 0 without loss scales. A skipped batch adds no iteration, but halves
            the scale.
        epoch: The epoch of `fit` that contains the next batch.
        done: Batches of that epoch that were trained on, including those before a resume.
        state: State of the feed, without its fingerprint.
    """

    iterations: int
    scale: float
    epoch: int
    done: int
    state: dict[str, Any]

    def is_before(self, other: "Record") -> bool:
        """Whether a model reaches this moment before `other`."""
        return (self.iterations, -self.scale) < (other.iterations, -other.scale)


@dataclass(frozen=True)
class Progress:
    """Content of a checkpoint file.

    Attributes:
        steps: Batches of an epoch of `fit`; None if an epoch is a repetition of a stream.
        execution: Batches of one execution of the training function.
        even: Whether each batch adds the same number of iterations, so that the batches between two records can be
            counted. False with a loss scale, which skips some batches, and for streams, because their state is known
            only at records.
        fingerprint: Identifies the feed.
        records: In the order of their iterations; the first one is the start of training.
    """

    steps: int | None
    execution: int
    even: bool
    fingerprint: dict[str, Any]
    records: tuple[Record, ...] = ()

    def with_record(self, record: Record) -> "Progress":
        """Replace later records; keep the first and the most recent ones."""
        before = [each for each in self.records if each.is_before(record)]
        return replace(self, records=(*before[:1], *before[1:][1 - _KEPT :], record))

    def at(self, iterations: int, scale: float = 0.0) -> tuple[Record, int]:
        """Return the last record up to a moment, and the batches since.

        Args:
            iterations: Sum of the iterations of all optimizers at that moment.
            scale: Sum of the optimizers' loss scales; 0 without loss scales.

        Raises:
            ValueError: The position is unknown.
        """
        for record in reversed(self.records):
            if (record.iterations, record.scale) == (iterations, scale):
                return record, 0
        before = [record for record in self.records if record.iterations < iterations]
        if not before:
            raise ValueError(
                f"its optimizer has counted {iterations:,} iterations, but the training began at "
                f"{self.records[0].iterations:,}. It is another model, or was restored without its optimizer"
            )
        last, more = before[-1], iterations - before[-1].iterations
        if self.even and self.steps and len(self.records) == 1:  # killed during the first execution
            return last, min(self.execution, self.steps - last.done)
        rate = self._rate()
        if not rate or more % rate:
            known = ", ".join(f"{record.iterations:,}" for record in self.records)
            raise ValueError(
                f"its optimizer has counted {iterations:,} iterations, but the batch is known only for {known} "
                "iterations: the data are a stream, or iterations do not grow evenly with the batches (a loss scale "
                "skips some, for example). Save the model with BackupAndRestore, or put FeedCheckpoint before the "
                "callback that saves the model, with the same save_freq"
            )
        return last, more // rate

    def _rate(self) -> int:
        """Iterations per batch if constant; else 0."""
        if not self.even or not self.steps:
            return 0
        rates = set()
        for one, other in zip(self.records, self.records[1:], strict=False):
            batches = (other.epoch - one.epoch) * self.steps + other.done - one.done
            rates.add((other.iterations - one.iterations) / batches if batches > 0 else 0.0)
        rate = rates.pop() if len(rates) == 1 else 0.0
        return int(rate) if rate == int(rate) else 0

    # ---- the file

    def write(self, path: Path) -> None:
        """Replace the file at `path` atomically and durably.

        Raises:
            OSError: The file or its folder cannot be written.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        content = {"kind": _KIND, "version": _VERSION, **asdict(self)}
        write_whole(path, json.dumps(content).encode(), durable=True)

    @classmethod
    def read(cls, path: Path) -> "Progress | None":
        """Read the file at `path`; None if there is none.

        Raises:
            ValueError: The file is damaged, or another kind of file.
        """
        try:
            content = json.loads(path.read_bytes())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise _unusable(path, f"it is not JSON, or was cut short ({summary(error)})") from None
        if not isinstance(content, dict) or content.pop("kind", None) != _KIND:
            raise _unusable(path, f"it was not written by {_KIND}")
        version = content.pop("version", None)
        if version != _VERSION:
            raise _unusable(path, f"it has version {version!r}, not {_VERSION}")
        try:
            return cls(**{**content, "records": tuple(Record(**record) for record in content["records"])})
        except (KeyError, TypeError) as error:
            raise _unusable(path, f"it is damaged ({summary(error)})") from None


def _unusable(path: Path, reason: str) -> ValueError:
    return ValueError(
        f"{path} does not give the position of the training: {reason}. Restore the file; or, to start over, delete it "
        "and the saved model"
    )


# ---- a file of arrays


class DamagedFileError(ValueError):
    """A file of arrays is damaged or cut short."""


def write_arrays(path: Path, header: Mapping[str, Any], arrays: Iterable[tuple[str, np.ndarray]]) -> None:
    """Write the arrays and a JSON header, then fsync.

    Args:
        path: The file; it is not replaced atomically.
        header: For JSON.
        arrays: Arrays of any dtype except object, including the dtypes of `ml_dtypes`.
    """
    dtypes = {}
    with path.open("wb") as file:
        with zipfile.ZipFile(file, "w") as archive:
            for name, array in arrays:
                if array.dtype.isbuiltin == 2:  # of ml_dtypes, which NumPy's files do not support
                    dtypes[name] = array.dtype.name
                    array = array.view(f"u{array.dtype.itemsize}")
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)
            archive.writestr(_HEADER, json.dumps({**header, "dtypes": dtypes}))
        file.flush()
        os.fsync(file.fileno())


class ArrayFile:
    """A file written by `write_arrays`.

    Attributes:
        header: The header.
        names: Names of the arrays.

    Raises:
        DamagedFileError: The file is damaged; raised by any method.
        OSError: The file cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._archive() as archive:
            self.header: dict[str, Any] = json.loads(archive.read(_HEADER))
            self.names = [name.removesuffix(".npy") for name in archive.namelist() if name != _HEADER]

    def read(self, names: Iterable[str]) -> Iterable[tuple[str, np.ndarray]]:
        """Yield name and array for each of these names.

        Raises:
            KeyError: There is no array of this name.
        """
        with self._archive() as archive:
            for name in names:
                content = archive.read(f"{name}.npy")  # compares the checksum
                array = np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
                dtype = self.header["dtypes"].get(name)
                yield name, array if dtype is None else array.view(dtype)

    @contextlib.contextmanager
    def _archive(self) -> Iterator[zipfile.ZipFile]:
        try:
            with zipfile.ZipFile(self._path) as archive:
                yield archive
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
            raise DamagedFileError(
                f"{self._path} is damaged ({message_of(error)}): delete the folder to start over"
            ) from None
