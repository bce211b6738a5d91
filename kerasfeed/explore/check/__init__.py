"""`kf.check_sequence`: what it reads and compares, and its report."""
