"""What loaders do when things go wrong, side by side: `python -m benchmarks.faults`.

Invariant: every fault is caused for real (a signal, a crash in C, a limit of the kernel), each case runs alone in a
process of its own under a time limit, and all libraries read the same class. Linux only: it watches processes in /proc.
"""
