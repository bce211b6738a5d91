"""Adapters for Keras, TensorFlow, JAX and PyTorch, which they import.

May import: errors, util, spec, orders, sequences, pool, readers, loaders, feeds.
"""
