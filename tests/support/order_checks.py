"""Checks of every order, including statistics that a good shuffle passes and a bad one does not."""

import numpy as np

PARTS = 16


def epoch_of(order, length, seed=3, epoch=0):
    """All indices of an epoch."""
    return order.indices(0, order.num_scenes(length), length=length, seed=seed, epoch=epoch)


def excess(counts):
    """Chi-square of a table of counts against independence with its margins, in standard deviations."""
    counts = np.asarray(counts, float)
    expected = counts.sum(1, keepdims=True) * counts.sum(0, keepdims=True) / counts.sum()
    chi_square = ((counts - expected) ** 2 / expected).sum()
    freedom = (counts.shape[0] - 1) * (counts.shape[1] - 1)
    return (chi_square - freedom) / np.sqrt(2 * freedom)


def table(rows, columns):
    """How often each pair of parts occurs."""
    return np.bincount(rows * PARTS + columns, minlength=PARTS * PARTS).reshape(PARTS, PARTS)


def part_of(indices, length):
    """The sixteenth of the range that each index is in."""
    return indices * PARTS // length


def by_position(epochs, length):
    """Parts of the range against parts of the epoch."""
    parts = np.arange(len(epochs[0])) * PARTS // len(epochs[0])
    return excess(sum(table(parts, part_of(found, length)) for found in epochs))


def by_neighbour(epochs, length):
    """Parts of the range of each position against the next position; no position counts twice."""
    return excess(sum(table(*part_of(found[: len(found) // 2 * 2], length).reshape(-1, 2).T) for found in epochs))


def by_distance(epochs, length):
    """Distance to the next index, modulo the length: whether each sixteenth comes equally often."""
    pairs = np.concatenate([found[: len(found) // 2 * 2].reshape(-1, 2) for found in epochs])
    counts = np.bincount(part_of((pairs[:, 1] - pairs[:, 0]) % length, length), minlength=PARTS)
    expected = len(pairs) / PARTS
    return (((counts - expected) ** 2 / expected).sum() - (PARTS - 1)) / np.sqrt(2 * (PARTS - 1))


STATISTICS = (by_position, by_neighbour, by_distance)
