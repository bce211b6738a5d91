"""TFRecord files, read without TensorFlow: `TFRecordSequence`."""
