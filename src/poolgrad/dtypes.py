"""Names of the dtypes that arrays may have."""

FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "bool")


def name_of(dtype: object) -> str:
    """Return the name of a dtype of any library, such as ``"float32"``; as errors show it."""
    return str(dtype).rpartition(".")[2]
