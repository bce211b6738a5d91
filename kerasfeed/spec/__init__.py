"""Specs of scenes, and how scenes become a batch.

May import: errors, util.
"""
