"""`write_tfrecords`."""
