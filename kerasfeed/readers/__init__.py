"""Readers of files, one folder a format; files by URL, and the cost of reading. They know no feed.

May import: errors, util, spec, sequences.
"""
