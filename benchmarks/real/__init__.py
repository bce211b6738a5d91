"""Real workloads on kerasfeed and its peers: `python -m benchmarks.real`.

Invariant: each reader runs in its own process, and is measured only after one of its epochs held each scene exactly
once, with the right values.
"""
