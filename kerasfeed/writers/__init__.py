"""Writers: the scenes of a sequence as files, one shard per task.

May import: errors, util, spec, orders, sequences, pool, readers, loaders.
"""
