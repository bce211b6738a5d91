"""`write_hdf5`."""
