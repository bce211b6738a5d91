"""Batches of a plan, promised as futures, made by the tasks of a pool: `kerasfeed.loaders.loader.Loader`.

May import: errors, util, spec, orders, sequences, pool, readers.
"""
