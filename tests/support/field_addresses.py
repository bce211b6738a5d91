"""Where the fields of batches stand in memory: for tests that nothing is copied on the way to a framework."""

from contextlib import contextmanager

import optree


def address(array):
    """Of the first byte of a NumPy array."""
    return array.__array_interface__["data"][0]


@contextmanager
def addresses_made(feed):
    """A dict from step to the addresses of the fields of the batch that the feed's loader has made for it meanwhile."""
    made = {}

    submit = feed.submit

    def noting(epoch, step, **options):
        future = submit(epoch, step, **options)
        made[step] = [address(leaf) for leaf in optree.tree_leaves(future.result())]
        return future

    feed.submit = noting
    try:
        yield made
    finally:
        del feed.submit
