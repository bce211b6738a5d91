"""Loaders: the batches of a plan as futures, made by a pool.

May import: errors, util, spec, orders, sequences, pool, readers.
"""
