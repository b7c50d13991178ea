"""Benchmarks: every row beside the peers that are installed, and against the memory limit."""
