"""Adapters: one framework a file, imported nowhere else."""
