"""Scenes that somebody puts into a queue, from this process or another."""
