"""Batches as `jax.Array`s, on one device or divided among several."""
