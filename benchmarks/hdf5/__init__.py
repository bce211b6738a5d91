"""The HDF5 part of the benchmarks: readers of one file side by side, orders, and whole pipelines over it.

Invariant: every reader reads the same values, from a file in the page cache, into existing memory. Readers differ in
what decodes the chunks, and in which threads or processes.
"""
