"""Feeds as Keras takes them: `Feed`, `StreamFeed`, `QueueFeed`, and the callbacks."""
