"""The HDF5 part of the benchmarks: readers of one file side by side, orders, and whole pipelines over it.

Invariant: every reader reads the same values, from a file in the page cache, into memory that exists already; what
differs is who decodes, and where.
"""
