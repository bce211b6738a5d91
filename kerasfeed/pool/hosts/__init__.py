"""The pool whose workers stand on other hosts: each runs a pool of processes, reached through an engine such as Ray."""
