"""The batches of feeds of faulty scenes, as bits, and the expected ones."""

import numpy as np

import kerasfeed as kf


def bits(batches):
    return [[np.asarray(field).tobytes() for field in batch] for batch in batches]


def reference(sequence, epoch=0, batch_size=8, **arguments):
    with kf.Feed(sequence, batch_size, seed=3, shuffle=True, workers=0, **arguments) as feed:
        return bits(feed.epoch(epoch))
