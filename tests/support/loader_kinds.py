"""The loaders by name, and how tests make them."""

from functools import partial

from kerasfeed.loaders.base import Job
from kerasfeed.loaders.loader import Loader
from kerasfeed.orders.base import Shuffled
from kerasfeed.orders.plan import Plan

InlineLoader = partial(Loader, worker_type="inline")
ThreadLoader = partial(Loader, worker_type="thread")
ProcessLoader = partial(Loader, worker_type="process")
LOADERS = {"inline": InlineLoader, "thread": ThreadLoader, "process": ProcessLoader}
PARALLEL = ["thread", "process"]


def new_loader(kind, sequence, batch_size=8, *, workers=2, max_memory=1 << 30, seed=3, look_ahead=4, **plan):
    job = Job(sequence, Plan(len(sequence), batch_size, Shuffled(), seed, **plan), workers, max_memory, look_ahead)
    return LOADERS[kind](job)
