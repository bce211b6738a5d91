"""What becomes of scenes that fail, hang, or end their worker."""
