"""The loader whose workers are threads."""
