"""`kf.profile`: the speed of a feed and what limits it."""
