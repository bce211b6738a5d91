"""Scenes written to files, and read back from TFRecords."""
