"""Scenes for hosts, which import this module by name."""

import time

import numpy as np

import kerasfeed as kf

LENGTH = 640


class Noisy(kf.SceneSequence):
    """Scenes that take a while."""

    def __init__(self, seconds=0.004):
        self.seconds = seconds

    def __len__(self):
        return LENGTH

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return self.rng.normal(size=(64, 3)).astype(np.float32), np.int64(index)
