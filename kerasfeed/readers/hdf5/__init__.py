"""HDF5 files: `HDF5File` reads chunks without h5py's lock if possible."""
