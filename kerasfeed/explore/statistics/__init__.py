"""Statistics of fields and scenes, made by workers and merged."""
