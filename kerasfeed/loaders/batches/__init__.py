"""Batches in progress: their memory, and the code that writes scenes into it."""
