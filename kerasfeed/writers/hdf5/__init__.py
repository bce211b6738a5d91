"""`write_hdf5` and `rechunk`."""
