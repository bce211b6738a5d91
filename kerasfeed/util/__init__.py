"""Helpers for error texts, reports, files, numbers, pickles and user modules.

May import: errors.
"""
