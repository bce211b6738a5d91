"""Show how loaders react to faults, side by side: `python -m benchmarks.faults`.

Invariant: every fault is real (a signal, a crash in C, a limit of the kernel), each case runs alone in its own
process with a time limit, and all libraries read the same class. Linux only: it watches processes in /proc.
"""
