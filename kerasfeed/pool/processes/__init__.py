"""The pool of worker processes: supervisor thread, pipes, shared memory."""
