"""What writing and reading records costs, beside TensorFlow: `python -m benchmarks.records`.

Invariant: every peer writes and reads the same scenes, in a process of its own, peers taking turns.
"""
