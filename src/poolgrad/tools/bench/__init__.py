"""Benchmarks: times every row beside other libraries and relative to a copy of memory."""
