"""Feeds as Keras takes them: `Feed`, `StreamFeed`, and the callbacks."""
