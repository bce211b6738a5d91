"""Side-by-side measurements of kerasfeed and its peers: `python -m benchmarks`.

Invariant: every figure of one report comes from one run on one machine, and each case runs in its own process.
"""
