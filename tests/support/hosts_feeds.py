"""Feeds with hosts that are processes of this machine, and their expected batches."""

import optree
from subprocess_hosts import SubprocessHosts

from kerasfeed.feeds.base import BaseFeed


def feed_of(scenes, *, count=2, start_timeout=60.0, **arguments):
    hosts = SubprocessHosts(count, start_timeout)
    feed = BaseFeed(scenes, 16, hosts=hosts, **{"shuffle": True, "seed": 3, "workers": 1, **arguments})
    return feed, hosts.clusters[0]


def reference(scenes, epochs=1, **arguments):
    with BaseFeed(scenes, 16, **{"shuffle": True, "seed": 3, "workers": 0, **arguments}) as feed:
        return [batch for _ in range(epochs) for batch in feed]


def same(batches, others):
    assert len(batches) == len(others)
    for batch, other in zip(batches, others, strict=True):
        for array, expected in zip(optree.tree_leaves(batch), optree.tree_leaves(other), strict=True):
            assert (array.dtype, array.shape) == (expected.dtype, expected.shape)
            assert array.tolist() == expected.tolist()
            assert array.flags.writeable
