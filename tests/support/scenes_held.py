"""Classes that keep random generators in attributes, lists, classes and modules; importable in workers."""

import random
import time

import numpy as np

LENGTH = 24
OF_MODULE = np.random.default_rng(1)


class Subclass(random.Random):
    """A user's class of generators."""


class Augment:
    """Like a class of an augmentation library."""

    of_class = np.random.RandomState(2)

    def __init__(self):
        self.legacy = np.random.RandomState(3)
        self.python = random.Random(4)
        self.several = [np.random.Generator(np.random.MT19937(5)), {"one": np.random.Generator(np.random.SFC64(6))}]
        self.own = Subclass(7)

    def __call__(self, value):
        drawn = [self.legacy.rand(), self.python.random(), self.of_class.rand(), self.own.random()]
        return [value, *drawn, self.several[0].random(), self.several[1]["one"].random()]


class Slots:
    """A generator in an object without a dict."""

    __slots__ = ("inside",)

    def __init__(self):
        self.inside = np.random.default_rng()


class Keeping:
    """Scenes float64[11] of generators in many places."""

    def __init__(self):
        self.r = np.random.default_rng(7)
        self.slots = Slots()
        self.augment = Augment()
        self.legacy = self.augment.legacy  # the same object

    def __len__(self):
        return LENGTH

    def __getitem__(self, index):
        drawn = [self.r.random(), self.slots.inside.random(), OF_MODULE.random(), self.legacy.normal()]
        return np.array([*self.augment(index), *drawn])


class OnlyAtFirst:
    """Scenes int64[] of an order that was drawn when the object was made."""

    def __init__(self):
        self.r = np.random.default_rng(7)
        self.order = self.r.permutation(LENGTH)

    def __len__(self):
        return LENGTH

    def __getitem__(self, index):
        return self.order[index]


class Seldom(OnlyAtFirst):
    """One scene in 8 draws, and none of the first scenes that the feed reads."""

    def __getitem__(self, index):
        return np.array([index, self.r.random() if index % 8 == 5 else 0.0])


class Probably(OnlyAtFirst):
    """Scenes that are nearly always the same."""

    def __getitem__(self, index):
        return np.array([index, float(self.r.random() < 1e-9)])


class OfTorch(OnlyAtFirst):
    """Scenes of a generator of PyTorch."""

    def __init__(self):
        import torch

        self.r = torch.Generator()

    def __getitem__(self, index):
        import torch

        return np.array([index, float(torch.rand((), generator=self.r))])


class Mixing:
    """A function that makes batches with random numbers."""

    def __init__(self):
        self.r = np.random.RandomState(3)

    def __call__(self, scenes):
        return np.array([[scene, self.r.rand()] for scene in scenes])


class Counting:
    """Scenes float64[2] of a counter; each takes some time."""

    def __init__(self, seconds):
        self.seconds = seconds
        self.read = 0

    def __len__(self):
        return LENGTH

    def __getitem__(self, index):
        time.sleep(self.seconds)
        self.read += 1
        return np.array([index, self.read])
