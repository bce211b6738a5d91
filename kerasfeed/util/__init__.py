"""Helpers that import no other package: text of errors, files, numbers, waiting, what a user's object offers.

May import: errors.
"""
