"""Helpers that import no other package: text of errors and reports, files, numbers, pickling, the user's modules.

May import: errors.
"""
