"""Pictures of scenes, batches and orders: what fields are, and how each kind is drawn with matplotlib."""
