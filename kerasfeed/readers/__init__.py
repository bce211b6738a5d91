"""Readers of files; they know nothing of feeds."""
