"""`Cached`: scenes kept in memory or in a file, under a key of code, state and source files."""
