"""What people write today and kerasfeed, side by side: `python -m benchmarks.migrate`.

Invariant: both sides of a case load the same scenes, each in a process of its own, one after the other.
"""
