"""The loaders by name, and how tests make them."""

from kerasfeed.loaders.base import Job
from kerasfeed.loaders.inline import InlineLoader
from kerasfeed.loaders.processes.loader import ProcessLoader
from kerasfeed.loaders.threads.loader import ThreadLoader
from kerasfeed.orders.base import Shuffled
from kerasfeed.orders.plan import Plan

LOADERS = {"inline": InlineLoader, "thread": ThreadLoader, "process": ProcessLoader}
PARALLEL = ["thread", "process"]


def new_loader(kind, sequence, batch_size=8, *, workers=2, max_memory=1 << 30, seed=3, look_ahead=4, **plan):
    job = Job(sequence, Plan(len(sequence), batch_size, Shuffled(), seed, **plan), workers, max_memory, look_ahead)
    return LOADERS[kind](job)
