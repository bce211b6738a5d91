"""Import this first in a program to get a feed without Keras, whose import takes 2 s of CPU time.

Such programs test only workers, memory and interrupts. Programs without this module test what Keras does when a
program ends.
"""

import sys
import types


class PyDataset:
    """The part of `keras.utils.PyDataset` that feeds need."""

    def __init__(self, workers=1, use_multiprocessing=False, max_queue_size=10):
        self._workers, self.use_multiprocessing, self.max_queue_size = workers, use_multiprocessing, max_queue_size


keras = types.ModuleType("keras")
keras.utils = types.SimpleNamespace(PyDataset=PyDataset)
keras.backend = types.SimpleNamespace(backend=lambda: "numpy")
sys.modules["keras"] = keras
