"""Batches in progress: their memory, and writing scenes into it."""
