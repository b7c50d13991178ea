"""The front end for JAX."""
