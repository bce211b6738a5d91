"""`kf.profile`: the speed of a feed and what limits it, as text and as HTML."""
