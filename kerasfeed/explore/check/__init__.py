"""`kf.check_sequence`: its checks and its report."""
