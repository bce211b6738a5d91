"""The loaders by name, and how tests make them."""

import dataclasses
from functools import partial

import pytest
from subprocess_hosts import SubprocessHosts

from kerasfeed.loaders.base import Job
from kerasfeed.loaders.loader import Loader
from kerasfeed.orders.base import Shuffled
from kerasfeed.orders.plan import Plan

InlineLoader = partial(Loader, worker_type="inline")
ThreadLoader = partial(Loader, worker_type="thread")
ProcessLoader = partial(Loader, worker_type="process")


def HostsLoader(job):
    return Loader(dataclasses.replace(job, hosts=SubprocessHosts()), "process")


LOADERS = {"inline": InlineLoader, "thread": ThreadLoader, "process": ProcessLoader}
PARALLEL = ["thread", "process"]
HOSTS = pytest.param("hosts", marks=pytest.mark.heavy)  # take seconds to start


def crossed(kinds, cases):
    """Parameters (kind, *case): all cases with the cheap loaders; the first also in a process and on hosts."""
    free = [(kind, *case) for kind in kinds if kind in ("inline", "thread") for case in cases]
    return [*free, ("process", *cases[0]), pytest.param("hosts", *cases[0], marks=pytest.mark.heavy)]


def new_loader(kind, sequence, batch_size=8, *, workers=2, max_memory=1 << 30, seed=3, look_ahead=4, **plan):
    job = Job(sequence, Plan(len(sequence), batch_size, Shuffled(), seed, **plan), workers, max_memory, look_ahead)
    return HostsLoader(job) if kind == "hosts" else LOADERS[kind](job)
