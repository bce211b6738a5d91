"""`kf.show`: pictures of scenes, batches and orders, drawn with matplotlib."""
