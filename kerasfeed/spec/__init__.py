"""What a scene and a batch are: fields, their shapes and dtypes, how scenes become a batch.

May import: errors, util.
"""
