"""Statistics of fields and scenes, made by workers and merged exactly, and their texts and tables."""
