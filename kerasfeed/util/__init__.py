"""Helpers that know no scene: text of errors, files, numbers, waiting. May import: errors."""
