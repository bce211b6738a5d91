"""Writers: workers write the scenes of a sequence to files, one shard per task.

May import: errors, util, spec, orders, sequences, pool, readers, loaders.
"""
