"""Batches that other hosts make: each holds a loader of its own, reached through Ray."""
