"""Orders, which choose the index at each position, and plans.

A plan divides the positions of an epoch into batches and shards.

May import: errors, util, spec.
"""
