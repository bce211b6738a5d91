"""The demo's classifier, its training, and how that goes.

Invariant: what was measured is returned as a frozen value. The progress bar is rich's and not Keras's own: one
line for the whole training, with the two figures the demo is about, in place of a bar for each epoch.
"""

import contextlib
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import keras
import numpy as np
from keras import layers
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import kerasfeed as kf
from kerasfeed.adapters.keras.input_monitor import EpochTiming, InputMonitor
from kerasfeed.demo.data import PointClouds, ReadingCost, hold_out, sibling_for_validation, summarize
from kerasfeed.demo.shapes import write_shapes

_WIDTHS = (32, 64, 256)
_PEAK_RATE = 2e-3  # of 5e-4 to 6e-3 tried on BIMNet10, 2e-3 to 3e-3 did best


@dataclass(frozen=True)
class Settings:
    """How to train.

    Attributes:
        epochs: Epochs, at least 1.
        batch_size: Scenes in a batch, at least 1.
        points: Points of a scene given to the model, at least 1 and at most what the file stores.
        workers: Concurrent loads, or "auto"; see `kerasfeed.Feed`.
        worker_type: "auto", "process" or "thread"; see `kerasfeed.Feed`. With threads the chunks decoded are counted.
        seed: Integer >= 0 behind weights, order, augmentation and hold-out.
    """

    epochs: int = 30
    batch_size: int = 16
    points: int = 512
    workers: int | Literal["auto"] = "auto"
    worker_type: Literal["auto", "process", "thread"] = "thread"
    seed: int = 0


@dataclass(frozen=True)
class TrainingResult:
    """What a training came to.

    Attributes:
        accuracy: Share of validation scenes classified rightly by the trained model, in [0, 1].
        majority_rate: The same for always answering the most frequent class of the training scenes.
        seconds: Wall time of training, validation included.
        epochs: Timing of each epoch, in order.
        reading: What reading the training scenes' file cost, in a sentence.
    """

    accuracy: float
    majority_rate: float
    seconds: float
    epochs: tuple[EpochTiming, ...]
    reading: str


@dataclass(frozen=True)
class Split:
    """Two sequences and their labels.

    Attributes:
        training: Augmented scenes.
        validation: Scenes as they are.
        training_labels: int64[len(training)].
        validation_labels: int64[len(validation)].
        text: Where the two come from, for people.
        clouds: The file behind `training`.
    """

    training: kf.SceneSequence
    validation: kf.SceneSequence
    training_labels: np.ndarray[Any, Any]
    validation_labels: np.ndarray[Any, Any]
    text: str
    clouds: PointClouds


class Display(keras.callbacks.Callback):  # type: ignore[misc]
    """Shows a progress bar, and prints a line of figures after each epoch.

    Args:
        console: Where to print.
        epochs: Epochs to come.
    """

    async_safe = True

    def __init__(self, console: Console, epochs: int) -> None:
        super().__init__()
        columns = [TextColumn("training"), BarColumn(), MofNCompleteColumn(), TextColumn("epochs")]
        self._progress = Progress(*columns, TimeElapsedColumn(), TextColumn("{task.description}"), console=console)
        self._task = self._progress.add_task("", total=epochs)

    def __enter__(self) -> "Display":
        self._progress.start()
        self._print("The first epoch takes longest: Keras compiles the model in it.")
        self._print("epoch    loss  accuracy  validation  scenes/s  waiting for input")
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Called by Keras, after `InputMonitor`."""
        logs = logs or {}
        speed, waiting = logs["scenes_per_second"], logs["input_wait_share"]
        description = f"{speed:,.0f} scenes/s, {waiting:.0%} waiting"
        self._progress.update(self._task, completed=epoch + 1, description=description)
        validation = f"{logs['val_accuracy']:.3f}" if "val_accuracy" in logs else ""
        self._print(
            f"{epoch + 1:5}{logs['loss']:8.3f}{logs['accuracy']:10.3f}{validation:>12}{speed:10,.0f}{waiting:19.0%}"
        )

    def _print(self, line: str) -> None:
        self._progress.console.print(line, highlight=False)


@contextlib.contextmanager
def data_files(data: Path | None, validation: Path | None, seed: int) -> Iterator[tuple[Path, Path | None]]:
    """The files to train on and to validate with (None: hold some of the first out).

    With no `data`, both are written to a temporary folder that is gone afterwards.
    """
    if data is not None:
        yield data, validation or sibling_for_validation(data)
        return
    with tempfile.TemporaryDirectory(prefix="kerasfeed-demo-") as folder:
        train, test = Path(folder, "shapes_train.h5"), Path(folder, "shapes_test.h5")
        write_shapes(train, 240, seed=2 * seed)
        write_shapes(test, 80, seed=2 * seed + 1)
        yield train, validation or test


@contextlib.contextmanager
def split(data: Path, validation: Path | None, *, points: int, seed: int) -> Iterator[Split]:
    """Sequences for training and validation; without a validation file, 20 % of the scenes are held out.

    Raises:
        DataError: A file is not what it should be; see `summarize`.
    """
    trained = summarize(data, points=points)
    tested = trained if validation is None else summarize(validation, points=points)
    with (
        contextlib.closing(PointClouds(data, points=points, augment=True)) as training,
        contextlib.closing(PointClouds(tested.path, points=points)) as testing,
    ):
        if validation is not None:
            text = f"{trained}\n{tested}, for validation"
            yield Split(training, testing, trained.labels, tested.labels, text, training)
            return
        kept, held = hold_out(len(trained.labels), share=0.2, seed=seed)
        text = f"{trained}, {len(held):,} of them held out for validation"
        labels = trained.labels
        parts = kf.Subset(training, kept), kf.Subset(testing, held)
        yield Split(*parts, labels[kept], labels[held], text, training)


def build_classifier(classes: int, *, steps: int, seed: int) -> Any:
    """A compiled Keras model from points float32[B, N, 3] to logits float32[B, classes], for any N.

    The plain form of PointNet (Qi et al. 2017, arXiv:1612.00593), no transforms: every point goes through the same
    dense layers, and the maximum over the points is what the head sees, so the order of the points does not matter.

    Args:
        classes: Number of classes.
        steps: Training steps in all, over which the learning rate falls to 0 along a cosine.
        seed: Integer >= 0 behind the initial weights and the dropout.
    """
    inputs = keras.Input((None, 3), name="points")
    hidden = inputs
    for number, width in enumerate(_WIDTHS):
        hidden = _normalized_dense(width, _initial(seed, number))(hidden)
    hidden = layers.GlobalMaxPooling1D()(hidden)
    hidden = _normalized_dense(128, _initial(seed, 10))(hidden)
    hidden = layers.Dropout(0.3, seed=seed)(hidden)
    logits = layers.Dense(classes, kernel_initializer=_initial(seed, 11), name="logits")(hidden)
    model = keras.Model(inputs, logits, name="pointnet")
    model.compile(
        optimizer=keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(_PEAK_RATE, steps)),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def _normalized_dense(width: int, initial: Any) -> Any:
    return keras.Sequential(
        [
            layers.Dense(width, use_bias=False, kernel_initializer=initial),
            # Keras's momentum of 0.99 remembers more steps than a small file has in ten epochs.
            layers.BatchNormalization(momentum=0.9),
            layers.ReLU(),
        ]
    )


def _initial(seed: int, layer: int) -> Any:
    return keras.initializers.GlorotUniform(seed=100 * seed + layer)


def train(scenes: Split, settings: Settings, console: Console) -> TrainingResult:
    """Train a classifier on `scenes`, showing progress on `console`."""
    classes = int(max(scenes.training_labels.max(), scenes.validation_labels.max())) + 1
    majority = np.bincount(scenes.training_labels).argmax()
    with (
        kf.Feed(
            scenes.training,
            settings.batch_size,
            shuffle=True,
            seed=settings.seed,
            workers=settings.workers,
            worker_type=settings.worker_type,
        ) as feed,
        # A few scenes now and then: threads spare validation worker processes of its own.
        kf.Feed(scenes.validation, settings.batch_size, workers=2, worker_type="thread") as validation,
    ):
        console.print(repr(feed), highlight=False, soft_wrap=True)
        model = build_classifier(classes, steps=settings.epochs * len(feed), seed=settings.seed)
        monitor = InputMonitor(feed)
        every = max(1, settings.epochs // 8)
        begin = time.perf_counter()
        with Display(console, settings.epochs) as display:
            model.fit(
                feed,
                epochs=settings.epochs,
                validation_data=validation,
                validation_freq=every,
                callbacks=[monitor, display],
                shuffle=False,  # the feed shuffles scenes, which is more than Keras's shuffling of batches
                verbose=0,
            )
        accuracy = float(model.evaluate(validation, return_dict=True, verbose=0)["accuracy"])
        seconds = time.perf_counter() - begin
        in_processes = feed.stats().worker_type == "process"
    reading = ReadingCost.of(scenes.clouds).text(settings.epochs, in_processes)
    rate = float(np.mean(scenes.validation_labels == majority))
    return TrainingResult(accuracy, rate, seconds, tuple(monitor.epochs), reading)


def run(data: Path | None, validation: Path | None, settings: Settings, console: Console) -> TrainingResult:
    """The whole demo: find or write the data, train, and say what came of it.

    Raises:
        DataError: A file is not what it should be.
    """
    with (
        data_files(data, validation, settings.seed) as (train_file, test_file),
        split(train_file, test_file, points=settings.points, seed=settings.seed) as scenes,
    ):
        console.print(scenes.text, highlight=False, soft_wrap=True)
        outcome = train(scenes, settings, console)
    timings = outcome.epochs[1:] or outcome.epochs  # the first includes compiling the model
    seconds = sum(timing.seconds for timing in timings)
    console.print(
        f"{outcome.reading}\n"
        f"Training took in {sum(timing.scenes for timing in timings) / seconds:,.0f} scenes a second, and spent "
        f"{sum(timing.wait_seconds for timing in timings) / seconds:.1%} of its time waiting for them.\n"
        f"The network now names {outcome.accuracy:.1%} of the scenes right that were kept for validation; always "
        f"giving the most frequent answer would be right for {outcome.majority_rate:.1%}.",
        highlight=False,
        soft_wrap=True,
    )
    return outcome
