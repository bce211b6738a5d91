"""Pictures of scenes and batches: what fields are, and how each kind is drawn with matplotlib."""
