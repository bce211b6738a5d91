"""Import this first in a program to have Keras and TensorFlow without what they import only where it is installed.

That is JAX, pandas with PyArrow, matplotlib and IPython, a third of the 5 s of a core that both take here, and not
installed where kerasfeed alone is. Keras then takes no data of pandas; the program may import all of them itself.
"""

import os
import sys

_UNASKED = {"jax", "pandas", "pyarrow", "matplotlib", "IPython"} - {os.environ.get("KERAS_BACKEND")} - {*sys.modules}
sys.modules.update(dict.fromkeys(_UNASKED))

import keras  # noqa: E402

if keras.backend.backend() == "tensorflow":
    import tensorflow  # noqa: F401

for _name in _UNASKED:
    del sys.modules[_name]
