"""Batches from other hosts, each with its own loader, through Ray."""
