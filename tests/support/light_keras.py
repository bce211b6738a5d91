"""Import this first in a program to have a feed without Keras, whose import takes 2 s of a core.

Of such programs only workers, memory and interrupts are looked at. What Keras itself does when a program ends is seen
where the same is done without this.
"""

import sys
import types


class PyDataset:
    """What feeds need of `keras.utils.PyDataset`."""

    def __init__(self, workers=1, use_multiprocessing=False, max_queue_size=10):
        self._workers, self.use_multiprocessing, self.max_queue_size = workers, use_multiprocessing, max_queue_size


keras = types.ModuleType("keras")
keras.utils = types.SimpleNamespace(PyDataset=PyDataset)
keras.backend = types.SimpleNamespace(backend=lambda: "numpy")
sys.modules["keras"] = keras
