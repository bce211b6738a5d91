"""The cost of writing and reading records, compared with TensorFlow: `python -m benchmarks.records`.

Invariant: every peer writes and reads the same scenes, in its own process, and peers take turns.
"""
