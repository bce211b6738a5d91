"""Sequence or generators, a plan and a loader: epochs, look-ahead, state, shards. No framework.

May import: errors, util, spec, orders, sequences, pool, readers, loaders.
"""
