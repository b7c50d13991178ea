"""Compares ways of downsampling on one data set: the work behind `poolgrad compare`.

Importing this package is quick: PyTorch and Lightning are imported by the modules that need them.
"""
