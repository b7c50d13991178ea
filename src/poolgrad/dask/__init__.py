"""The front end for Dask: the functions of `poolgrad` take Dask arrays and return lazy arrays.

>>> import dask.array as da, poolgrad
>>> x = da.ones((4000, 4000), chunks=1000)
>>> poolgrad.max_pool2d(x, 3, 2).chunks
((500, 500, 500, 499), (500, 500, 500, 499))
>>> y, pullback = poolgrad.vjp(poolgrad.avg_pool2d, x, 2)
>>> pullback(y).numblocks
(4, 4)

An output chunk holds the windows that begin in one input chunk (`segments.py`). `map_chunks`
(`arrays.py`) runs a function of `tasks.py` on the inputs of these windows, or for a gradient on the
windows that read an input chunk; the functions call the front end for NumPy with windows that are a
slice of the whole axis, so that results are bit-identical. `function.py` is the front end,
`regions.py` pools regions of interest.

Tests: ``tests/frontends/test_dask.py`` and ``test_dask_chunks.py``.
"""

try:
    import dask.array  # noqa: F401 - to report what is missing
except ImportError as error:
    raise ModuleNotFoundError(
        'poolgrad.dask needs dask: pip install "poolgrad[dask]"', name="dask"
    ) from error

__all__: list[str] = []
