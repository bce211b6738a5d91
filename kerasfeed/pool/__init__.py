"""Workers that hold one object and run tasks on it.

See `kerasfeed.pool.base.Pool` and its kinds.

May import: errors, util, sequences.
"""
