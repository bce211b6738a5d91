"""HDF5 files: `HDF5File`, read chunk by chunk without h5py's lock where that can be done, through h5py elsewhere."""
