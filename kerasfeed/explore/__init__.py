"""Pictures, statistics and checks of sequences, feeds and orders.

May import: errors, util, spec, orders, sequences, pool, loaders, feeds.
"""
