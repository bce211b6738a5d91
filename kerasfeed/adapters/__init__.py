"""The frameworks, one folder each: the only places that import Keras, TensorFlow, JAX and PyTorch.

May import: errors, util, spec, orders, sequences, pool, readers, loaders, feeds.
"""
