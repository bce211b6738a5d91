"""Which scene when, as integer arithmetic: orders of an epoch, and the plan that cuts them into batches and shards.

May import: errors, util, spec.
"""
