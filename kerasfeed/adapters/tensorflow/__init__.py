"""Feeds and sequences as `tf.data` datasets; TFRecords parsed in a graph."""
