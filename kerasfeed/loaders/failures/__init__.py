"""Recovery from scenes that fail, hang, or end their worker."""
