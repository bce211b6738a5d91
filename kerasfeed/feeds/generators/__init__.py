"""Generators run by threads or worker processes, joined scene by scene in turn."""
