"""Batches of a plan, made somewhere, promised as futures: `kerasfeed.loaders.base.Loader` and its kinds.

May import: errors, util, spec, orders, sequences.
"""
