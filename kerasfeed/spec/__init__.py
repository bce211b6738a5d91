"""Specs of scenes and batches: fields, their shapes and dtypes, and how scenes become a batch.

May import: errors, util.
"""
