"""Pictures, statistics, checks and measurements of sequences, feeds and orders.

May import: errors, util, spec, orders, sequences, pool, readers, loaders, feeds, adapters.
"""
