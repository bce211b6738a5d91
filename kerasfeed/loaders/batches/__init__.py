"""A batch in the making: its memory, and how scenes come into it."""
