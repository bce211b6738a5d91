"""Adapters for Keras, TensorFlow, JAX and PyTorch, which only they import.

May import: errors, util, spec, orders, sequences, pool, readers, loaders, feeds.
"""
