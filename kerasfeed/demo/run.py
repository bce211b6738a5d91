"""The demo's classifier, its training, and its results.

Invariant: the line of each epoch has the demo's main figures: scenes per second, and the share of time spent waiting.
"""

import argparse
import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import layers

import kerasfeed as kf
from kerasfeed.adapters.keras.input_monitor import InputMonitor
from kerasfeed.demo.data import PointClouds, hold_out, sibling_for_validation, summarize
from kerasfeed.demo.shapes import write_shapes

_WIDTHS = (32, 64, 256)
_PEAK_RATE = 2e-3  # best on BIMNet10: 2e-3 to 3e-3, of 5e-4 to 6e-3


@contextlib.contextmanager
def data_files(data: Path | None, validation: Path | None, seed: int) -> Iterator[tuple[Path, Path | None]]:
    """Yield the training and validation files.

    If the second is None, scenes of the first are held out for validation. Without `data`, both files are written to a
    temporary folder, which is deleted afterwards.
    """
    if data is not None:
        yield data, validation or sibling_for_validation(data)
        return
    with tempfile.TemporaryDirectory(prefix="kerasfeed-demo-") as folder:
        train, test = Path(folder, "shapes_train.h5"), Path(folder, "shapes_test.h5")
        write_shapes(train, 240, seed=2 * seed)
        write_shapes(test, 80, seed=2 * seed + 1)
        yield train, validation or test


def build_classifier(classes: int, *, steps: int, seed: int) -> Any:
    """Build a model from points float32[B, N, 3] to logits float32[B, classes].

    The plain form of PointNet (Qi et al. 2017, arXiv:1612.00593), without transforms: every point goes through the same
    dense layers, and only the maximum over all points reaches the head, so the order of points does not matter.

    Args:
        classes: Number of classes.
        steps: Number of all training steps; the learning rate falls to 0 over these along a cosine.
        seed: Integer >= 0, the seed of the initial weights and the dropout.
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
            # With Keras's momentum of 0.99, the averages span more steps than a small file has in ten epochs.
            layers.BatchNormalization(momentum=0.9),
            layers.ReLU(),
        ]
    )


def _initial(seed: int, layer: int) -> Any:
    return keras.initializers.GlorotUniform(seed=100 * seed + layer)


def run(settings: argparse.Namespace) -> None:
    """Run the demo: get the data, train, and print the result.

    Without a file for validation, 20 % of the scenes are held out.

    Args:
        settings: The arguments of `kerasfeed demo`.

    Raises:
        DataError: A file cannot be used.
    """
    with data_files(settings.data, settings.validation, settings.seed) as (train_file, test_file):
        trained = summarize(train_file, points=settings.points)
        tested = trained if test_file is None else summarize(test_file, points=settings.points)
        with (
            contextlib.closing(PointClouds(train_file, points=settings.points, augment=True)) as clouds,
            contextlib.closing(PointClouds(tested.path, points=settings.points)) as others,
        ):
            labels, answers = trained.labels, tested.labels
            training: kf.SceneSequence = clouds
            testing: kf.SceneSequence = others
            if test_file is None:
                training, held = hold_out(clouds, settings.seed)
                print(f"{trained}, {len(held):,} of them held out for validation")
                labels, answers = labels[training.indices], answers[held.indices]
                testing = kf.Subset(others, held.indices)
            else:
                print(f"{trained}\n{tested}, for validation")
            classes = int(max(labels.max(), answers.max())) + 1
            result = _train(training, testing, classes, settings)
            majority = np.mean(answers == np.bincount(labels).argmax())
    print(f"{result}. Always answering with the most frequent class would give {majority:.1%}.")


def _train(training: kf.SceneSequence, testing: kf.SceneSequence, classes: int, settings: argparse.Namespace) -> str:
    """Train a classifier on point clouds; return the result as text."""
    with (
        kf.Feed(
            training,
            settings.batch_size,
            shuffle=True,
            seed=settings.seed,
            workers=settings.workers,
            worker_type=settings.worker_type,
        ) as feed,
        # Validation loads few scenes, so two threads are enough.
        kf.Feed(testing, settings.batch_size, workers=2, worker_type="thread") as validation,
    ):
        print(repr(feed))
        print("The first epoch takes longest: Keras compiles the model in it.", flush=True)
        model = build_classifier(classes, steps=settings.epochs * len(feed), seed=settings.seed)
        monitor = InputMonitor(feed)
        model.fit(
            feed,
            epochs=settings.epochs,
            validation_data=validation,
            validation_freq=max(1, settings.epochs // 8),
            callbacks=[monitor],
            shuffle=False,  # the feed shuffles scenes; Keras would only shuffle batches
            verbose=2,
        )
        accuracy = model.evaluate(validation, return_dict=True, verbose=0)["accuracy"]
    timings = monitor.epochs[1:] or monitor.epochs  # the first one includes compiling the model
    seconds = sum(timing.seconds for timing in timings)
    return (
        f"Training processed {sum(timing.scenes for timing in timings) / seconds:,.0f} scenes/s and waited for input "
        f"{sum(timing.wait_seconds for timing in timings) / seconds:.1%} of the time.\n"
        f"The accuracy on the validation scenes is {accuracy:.1%}"
    )
