"""Names of the dtypes that arrays may have, and their limits."""

import math

FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "bool")
DTYPE_NAMES = (*FLOATS, *INTEGERS)  # by their numbers in the kernels: Dtype of csrc/simd/dtype.hpp


def name_of(dtype: object) -> str:
    """Return the name of a dtype of any library, such as ``"float32"``; as errors show it."""
    return str(dtype).rpartition(".")[2]


def limits(dtype: str) -> tuple[float, float]:
    """Return the lowest and the highest number of a dtype."""
    if dtype == "bool":
        return 0, 1
    if dtype in FLOATS:
        return -math.inf, math.inf
    bits, signed = int(dtype.lstrip("uint")), not dtype.startswith("u")
    return -(2 ** (bits - 1)) * signed, 2 ** (bits - signed) - 1
