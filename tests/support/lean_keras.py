"""Import this first in a program to get Keras and TensorFlow without their optional imports.

These are JAX, pandas with PyArrow, matplotlib and IPython: a third of the 5 s of CPU time that Keras and TensorFlow
take here. Users without these packages do not import them either. Keras then accepts no pandas data; the program may
import all of them itself.
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
