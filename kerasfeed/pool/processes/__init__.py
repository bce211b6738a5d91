"""The pool whose workers are processes: a supervisor thread, pipes, and memory that all share."""
