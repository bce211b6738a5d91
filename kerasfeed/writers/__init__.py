"""Scenes written to files by workers, a shard a task.

May import: errors, util, spec, orders, sequences, pool, readers, loaders.
"""
