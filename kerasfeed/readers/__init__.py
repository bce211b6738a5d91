"""Readers of files, one folder a format; they know nothing of feeds.

May import: errors, util, spec, sequences.
"""
