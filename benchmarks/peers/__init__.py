"""One module per framework: each function turns a `Job` into a context manager around its batches.

Invariant: a peer is used as its own guide advises (persistent workers, look-ahead). Importing a module here
loads its framework, so that a measurement never includes an import.
"""
