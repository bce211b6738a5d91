"""The demo: a small PointNet trained through `model.fit(feed)` on an HDF5 file of point clouds."""
