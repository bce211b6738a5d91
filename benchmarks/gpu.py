"""Batches copied to a GPU: `python -m benchmarks.gpu torch`, `python -m benchmarks.gpu jax`.

Matrix products represent a training step. Their number is chosen so that a step takes 4/3 of the time that a loop
without a step needs for a batch. So the loader works at three quarters of its speed. Each figure is the time of such a
step with batches copied in one way, over its time with a batch that stays on the device; the ways take turns, and each
figure is the median of the turns. The last figure is the time of Keras's `fit` on a feed, over `fit` of a PyDataset
that returns the same batch each time.
"""

import argparse
import os
import statistics
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import kerasfeed as kf
from benchmarks.machine import describe

SIZE = 2048
"""Rows of the matrices: a product takes about 50 us."""
STEPS = 120
"""Steps of an epoch; the first 8 do not count."""


class Images(kf.SceneSequence):
    """Images float32[224, 224, 3], unpacked from bytes and normalised, and their labels."""

    rows = 64

    def __init__(self, length: int) -> None:
        self.length = length
        made = np.random.default_rng(0).integers(0, 64, (64, 224, 224, 3), np.uint8)
        self.stored = [zlib.compress(image.tobytes(), 1) for image in made]

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        image = np.frombuffer(zlib.decompress(self.stored[index % 64]), np.uint8).reshape(224, 224, 3)
        return (image - np.float32(127.5)) / np.float32(58.0), np.int32(index % 10)


class Clouds(kf.SceneSequence):
    """Clouds float32[2048, 3], turned about an axis and sorted by height, and their labels."""

    rows = 128

    def __init__(self, length: int) -> None:
        self.length = length
        self.stored = np.random.default_rng(0).normal(size=(64, 2048, 3)).astype(np.float32)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        angle = self.rng.uniform(0, 2 * np.pi)
        turn = np.eye(3, dtype=np.float32)
        turn[:2, :2] = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
        cloud = self.stored[index % 64] @ turn
        return cloud[np.argsort(cloud[:, 2])], np.int32(index % 10)


@dataclass(frozen=True)
class Device:
    """The operations of a framework on its GPU.

    Attributes:
        name: Name of the GPU.
        step: Called with a batch and a number of products; computes without waiting; `wait` gets the result.
        wait: Waits for the result of `step`.
        put: Copies a batch of NumPy arrays to the device, as a handwritten loop does.
        ways: By name, each way to loop over a feed that copies its batches to the device itself.
    """

    name: str
    step: Callable[[Any, int], Any]
    wait: Callable[[Any], None]
    put: Callable[[Any], Any]
    ways: dict[str, Callable[[Any], Iterable[Any]]]


def with_torch() -> Device:
    """PyTorch on CUDA."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = True
    matrix = torch.randn(SIZE, SIZE, device="cuda") / SIZE**0.5

    def step(batch: Any, products: int) -> Any:
        found = matrix
        for _ in range(products):
            found = found @ matrix
        return found[0, 0] + batch[0].mean() + batch[1].sum()

    def put(batch: Any) -> Any:
        return tuple(torch.from_numpy(array).to("cuda") for array in batch)

    return Device(
        torch.cuda.get_device_name(),
        step,
        lambda result: result.item(),
        put,
        {
            "to_torch('cuda')": lambda feed: feed.to_torch("cuda"),
            "to_torch('cuda', pin_memory=True)": lambda feed: feed.to_torch("cuda", pin_memory=True),
            "to_torch('cuda', prefetch=0)": lambda feed: feed.to_torch("cuda", prefetch=0),
            "by hand": lambda feed: map(put, feed),
        },
    )


def with_jax() -> Device:
    """JAX on its default device."""
    import jax

    matrix = jax.random.normal(jax.random.key(0), (SIZE, SIZE)) / SIZE**0.5

    @jax.jit
    def step(batch: Any, products: int) -> Any:
        found = jax.lax.fori_loop(0, products, lambda _, found: found @ matrix, matrix)
        return found[0, 0] + batch[0].mean() + batch[1].sum()

    return Device(
        jax.devices()[0].device_kind,
        step,
        lambda result: result.block_until_ready(),
        jax.device_put,
        {
            "to_jax()": lambda feed: feed.to_jax(),
            "to_jax(prefetch=0)": lambda feed: feed.to_jax(prefetch=0),
            "by hand": lambda feed: map(jax.device_put, feed),
        },
    )


def seconds_a_step(batches: Iterable[Any], device: Device, products: int, *, waits: bool, warmup: int = 8) -> float:
    """Time of a step; with `waits`, the loop waits for each result, like one that reads its loss."""
    begun, count, result = 0.0, -warmup, None
    for batch in batches:
        result = device.step(batch, products)
        if waits or count == -1:
            device.wait(result)
        count += 1
        if count == 0:
            begun = time.perf_counter()
    device.wait(result)
    return (time.perf_counter() - begun) / count


def seconds_a_batch(batches: Iterable[Any]) -> float:
    """Time of a loop that does nothing with its batches."""
    return seconds_a_step(batches, Device("", lambda *_: None, lambda _: None, lambda batch: batch, {}), 0, waits=False)


def products_of(seconds: float, device: Device, batch: Any) -> int:
    """Number of products for a step of about `seconds`."""
    times = []
    for products in (20, 120):
        device.wait(device.step(batch, products))
        begun = time.perf_counter()
        for _ in range(10):
            result = device.step(batch, products)
        device.wait(result)
        times.append((time.perf_counter() - begun) / 10)
    one = (times[1] - times[0]) / 100
    return max(1, round((seconds - times[0]) / one) + 20)


def ahead_of_compute(kind: type[Any], device: Device, workers: int, repeats: int) -> Iterator[str]:
    """The cost of batches that are copied while a step computes."""
    with kf.Feed(
        kind(kind.rows * STEPS), kind.rows, shuffle=True, seed=0, workers=workers, worker_type="process"
    ) as feed:
        kept = device.put(feed[0])
        megabytes = sum(array.nbytes for array in feed[0]) / 1e6
        limit = min(seconds_a_batch(feed) for _ in range(2))
        products = products_of(limit / 0.75, device, kept)
        yield f"{kind.__name__}: batches of {megabytes:.1f} MB, {1e3 * limit:.2f} ms a batch without a step"
        ways = {"kept on the device": lambda feed: (kept for _ in range(len(feed))), **device.ways}
        for waits in (True, False):
            times: dict[str, list[float]] = {name: [] for name in ways}
            for _ in range(repeats):
                for name, way in ways.items():
                    times[name].append(seconds_a_step(way(feed), device, products, waits=waits))
            base = statistics.median(times["kept on the device"])
            yield f"  {'waits for each step' if waits else 'does not wait'}: a step takes {1e3 * base:.2f} ms"
            for name in device.ways:
                ratios = sorted(found / base for found in times[name])
                yield f"    {name:36} {statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})"


def fit_figures(kind: type[Any], workers: int, repeats: int) -> Iterator[str]:
    """`fit` on a feed, over `fit` of a constant batch."""
    import keras

    scenes = kind(kind.rows * STEPS)
    shape = scenes[0][0].shape
    inputs = keras.Input(shape)
    convolution = keras.layers.Conv2D if len(shape) == 3 else keras.layers.Conv1D
    pooling = keras.layers.GlobalAveragePooling2D if len(shape) == 3 else keras.layers.GlobalAveragePooling1D
    found = inputs
    for filters in (64, 128, 128):
        found = convolution(filters, 3, strides=2, activation="relu")(found)
    model = keras.Model(inputs, keras.layers.Dense(10)(pooling()(found)))
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    batch = tuple(np.stack(field) for field in zip(*(scenes[index] for index in range(kind.rows)), strict=True))

    class Constant(keras.utils.PyDataset):
        def __len__(self) -> int:
            return STEPS

        def __getitem__(self, index: int) -> Any:
            return batch

    def seconds(data: Any) -> float:
        begun = time.perf_counter()
        model.fit(data, epochs=1, verbose=0)
        return (time.perf_counter() - begun) / STEPS

    with kf.Feed(scenes, kind.rows, shuffle=True, seed=0, workers=workers, worker_type="process") as feed:
        seconds(Constant())
        seconds(feed)
        times = [(seconds(Constant()), seconds(feed)) for _ in range(repeats)]
    constant, ours = (statistics.median(column) for column in zip(*times, strict=True))
    yield (
        f"{kind.__name__}, fit on {keras.backend.backend()}: {1e3 * constant:.2f} ms a step with a constant batch, "
        f"{1e3 * ours:.2f} ms with the feed: {ours / constant:.3f}"
    )


def main() -> None:
    """Print the figures as they are measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("framework", choices=("torch", "jax"))
    parser.add_argument("--workers", type=int, default=8, help="worker processes")
    parser.add_argument("--repeats", type=int, default=3, help="number of turns")
    arguments = parser.parse_args()
    os.environ["KERAS_BACKEND"] = arguments.framework
    device = with_torch() if arguments.framework == "torch" else with_jax()
    print(device.name, describe(), flush=True)
    for kind in (Images, Clouds):
        for line in ahead_of_compute(kind, device, arguments.workers, arguments.repeats):
            print(line, flush=True)
    for kind in (Images, Clouds):
        for line in fit_figures(kind, arguments.workers, arguments.repeats):
            print(line, flush=True)


if __name__ == "__main__":
    main()
