"""The demo: a small PointNet trained by `model.fit(feed)` on point clouds."""
