"""The public functions, which return an array of the same library as their input.

| file | contents |
|---|---|
| `families.py` | the arguments of each family of functions and modules, as dataclasses |
| `declare.py` | makes public functions from declarations; the types of public functions |
| `selecting.py`, `weighted.py`, `bins.py`, `unpool.py` | the declarations, one topic each |
| `vjp.py` | `vjp`: a pooling and its pullback |
| `modules.py` | checks the arguments of modules; limits global functions to the axes of a module |
| `inputs.py` | the shape of an input of any front end; proxies that record calls |
| `docstrings.py` | composes the docstrings of functions and modules |

Tests: ``tests/exactness/test_docs.py`` and ``tests/frontends/test_types.py``.
"""

# The order of imports is the order of `FUNCTIONS` and of the checks of `poolgrad check`.
# isort: off
from poolgrad.functional.declare import FUNCTIONS as FUNCTIONS
from poolgrad.functional.selecting import *  # noqa: F403 - the names are listed there
from poolgrad.functional.weighted import *  # noqa: F403
from poolgrad.functional.bins import *  # noqa: F403
from poolgrad.functional.unpool import *  # noqa: F403
# isort: on

__all__ = list(FUNCTIONS)
