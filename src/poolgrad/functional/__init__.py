"""The public functions, which return an array of the same library as their input.

Each module of this folder defines functions that return a `Request`, one topic each; `public` makes
the public functions from them, and passes the request to the front end of the input. Tests:
``tests/exactness/test_docs.py`` and ``tests/frontends/test_types.py``.
"""

# The order of imports is the order of `FUNCTIONS` and of the checks of `poolgrad check`.
# isort: off
from poolgrad.functional.public import FUNCTIONS as FUNCTIONS
from poolgrad.functional import selecting as selecting
from poolgrad.functional import weighted as weighted
from poolgrad.functional import bins as bins
from poolgrad.functional import unpool as unpool
# isort: on

# Type checkers read `__init__.pyi`, which tools/make_stubs.py writes.
globals().update(FUNCTIONS)
_NAMES = sorted(FUNCTIONS)
__all__ = list(_NAMES)
