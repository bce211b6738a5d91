"""Scenes that come one after the other, without random access, fed through the same loaders."""
