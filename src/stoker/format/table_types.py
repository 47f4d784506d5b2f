"""What a value becomes in a table: its type, and the type of a column that holds several. Pure.

1. Numbers, text, bytes and arrays have the type that they say.
2. Other values (lists of text, nested lists, dicts, decimals, dates) have the type that Arrow infers from them.
3. A column has one type. An empty list or a null inside a list says nothing and takes what other rows say; decimals
   take the digits of all. Nothing else is widened: a number stays what it is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from stoker.errors import UsageError
from stoker.format.limits import ROW_BYTES_MAX

_TIMES = ("s", "ms", "us", "ns")


def is_list(kind: pa.DataType) -> bool:
    """Whether a cell holds any number of elements."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def is_number(kind: pa.DataType) -> bool:
    """Whether NumPy has the type, and it is no text."""
    return bool(pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind))


def storable(name: str, value: object) -> Any:
    """The value as it will be stored: text, bytes, an array, or what Arrow takes. UsageError where there is none."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise UsageError(f"field {name!r}: a text that is no Unicode: {error}") from error
        return _small_enough(name, value, len(value))
    if isinstance(value, bytes | bytearray | memoryview):
        return _small_enough(name, bytes(value), len(value))
    try:
        array = np.asarray(value)
    except ValueError:  # lists of differing lengths
        array = np.empty(0, object)
    if not isinstance(value, np.ndarray | np.generic) and (array.dtype.kind not in "biuf" or _nested(value)):
        _inferred(name, value)
        return value
    instant = array.dtype.kind == "M" and not array.ndim and np.datetime_data(array.dtype)[0] in _TIMES
    if instant and not np.isnat(array):
        return array
    if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8 or (array.ndim > 1 and not array.size):
        said = f"{array.dtype} {array.shape or ''}".rstrip()
        raise UsageError(f"field {name!r}: a table cannot hold a {type(value).__name__} of {said}")
    return _small_enough(name, array.astype(array.dtype.newbyteorder("="), copy=False), array.nbytes)


def _small_enough(name: str, value: Any, count_bytes: int) -> Any:
    """The value, if its row group can be read back."""
    if count_bytes > ROW_BYTES_MAX:
        raise UsageError(f"field {name!r}: {count_bytes} bytes in one row, at most {ROW_BYTES_MAX} are written")
    return value


def _nested(value: object) -> bool:
    """Whether it is a list that says no type, or a list of lists: other rows may have other lengths."""
    return isinstance(value, list | tuple) and (not value or isinstance(value[0], list | tuple))


def _inferred(name: str, value: object) -> pa.Array:
    """A column of just this value."""
    try:
        made = pa.array([value])
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        said = " ".join(str(error).split())
        raise UsageError(f"field {name!r}: a table cannot hold this {type(value).__name__}: {said}") from error
    if made.null_count:
        raise UsageError(f"field {name!r}: a table cannot hold a {type(value).__name__}: a null is a field not there")
    _small_enough(name, made, made.nbytes)
    return made


def type_of(name: str, value: Any) -> pa.DataType:
    """The type of a value that `storable` gave."""
    if isinstance(value, str):
        return pa.string()
    if isinstance(value, bytes):
        return pa.binary()
    if not isinstance(value, np.ndarray):
        return _inferred(name, value).type
    element = pa.from_numpy_dtype(value.dtype)
    if value.ndim == 0:
        return element
    return pa.list_(element) if value.ndim == 1 else pa.fixed_shape_tensor(element, value.shape)


def joined(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The type of a column that holds values of both; None where there is none."""
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    if pa.types.is_decimal(one) and pa.types.is_decimal(other):
        scale = max(one.scale, other.scale)
        digits = max(one.precision - one.scale, other.precision - other.scale) + scale
        return pa.decimal128(digits, scale) if digits <= 38 else pa.decimal256(digits, scale) if digits <= 76 else None
    if pa.types.is_list(one) and pa.types.is_list(other):
        element = joined(one.value_type, other.value_type)
        return None if element is None else pa.list_(element)
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        if {field.name for field in one} != {field.name for field in other}:
            return None
        members = {field.name: joined(field.type, other.field(field.name).type) for field in one}
        return None if None in members.values() else pa.struct(list(members.items()))
    return None


def size_of(name: str, value: Any) -> int:
    """About how many bytes it takes."""
    if isinstance(value, str | bytes):
        return len(value)
    return int(value.nbytes if isinstance(value, np.ndarray) else _inferred(name, value).nbytes)


def array_of(values: list[Any], kind: pa.DataType) -> pa.Array:
    """A column of a row group; None is a null."""
    if isinstance(kind, pa.FixedShapeTensorType):
        flat = [None if value is None else value.reshape(-1) for value in values]
        return pa.ExtensionArray.from_storage(kind, pa.array(flat, kind.storage_type))
    if not is_list(kind):
        values = [value[()] if isinstance(value, np.ndarray) else value for value in values]
    return pa.array(values, kind)
