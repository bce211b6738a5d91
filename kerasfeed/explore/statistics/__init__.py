"""Statistics of fields and scenes, made by workers and merged, and their texts and tables."""
