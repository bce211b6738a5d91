"""The orders by name, as the conformance suite makes them for a given length."""

import numpy as np

import kerasfeed as kf
from kerasfeed.orders.custom import CustomOrder


def backwards(length, seed, epoch):
    return np.roll(np.arange(length)[::-1], epoch)


class Harder:
    """Weights of `length` scenes; later scenes are drawn more often with each epoch."""

    def __init__(self, length):
        self.length = length

    def __call__(self, epoch):
        return 1 + np.arange(self.length) * epoch


ORDERS = {
    "sequential": lambda length: kf.Sequential(),
    "shuffled": lambda length: kf.Shuffled(),
    "blocks": lambda length: kf.BlockShuffled(4, window=3),
    "named blocks": lambda length: kf.BlockShuffled(block_of=np.arange(length) // 5, window=2),
    "weighted": lambda length: kf.Weighted(1.0 + np.arange(length) % 3),
    "weighted by epoch": lambda length: kf.Weighted(Harder(length)),
    "balanced": lambda length: kf.Balanced(np.arange(length) % 3),
    "bucketed": lambda length: kf.Bucketed(1 + np.arange(length) % 7, [3, 5]),
    "custom": lambda length: CustomOrder(backwards),
}
EACH_ONCE = ["sequential", "shuffled", "blocks", "named blocks", "bucketed", "custom"]
RANDOM = ["shuffled", "blocks", "named blocks", "weighted", "weighted by epoch", "balanced", "bucketed"]
