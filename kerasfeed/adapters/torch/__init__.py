"""Batches for PyTorch."""
