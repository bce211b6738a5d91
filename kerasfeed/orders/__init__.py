"""Orders, which compute the index at each position of an epoch, and the plan of batches and shards.

May import: errors, util, spec.
"""
