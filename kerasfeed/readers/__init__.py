"""Readers of files by path or URL, one folder per format.

May import: errors, util, spec, sequences.
"""
