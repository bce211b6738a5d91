"""Existing code and kerasfeed, side by side: `python -m benchmarks.migrate`.

Invariant: both sides of a case load the same scenes, each in its own process, one after another.
"""
