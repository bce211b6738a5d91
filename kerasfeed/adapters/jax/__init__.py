"""Batches for JAX: loops of `jax.Array`s, on one device or divided among several."""
