"""The checks of `kf.check_sequence`: what is read and compared, and what is said of it."""
