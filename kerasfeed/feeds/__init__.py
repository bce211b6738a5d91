"""Feeds: epochs, look-ahead, state and shards, without a framework.

May import: errors, util, spec, orders, sequences, pool, readers, loaders.
"""
