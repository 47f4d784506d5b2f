"""From a field's bytes to its value where its name does not say how: codecs like "mds:int32", by prefix."""

from __future__ import annotations

from collections.abc import Callable

from stoker.errors import ShardError
from stoker.format import arrays, mds_values, proto

Decode = Callable[[str, bytes | memoryview], object]
"""(what stands behind the prefix, the field's bytes) → the value. SampleError when the bytes are not such a value."""

CODECS: dict[str, Decode] = {"mds": mds_values.decode, "tf": proto.decode_feature, "np": arrays.decode_np}
"""Prefix → decoder."""


def decode_value(codec: str, data: bytes | memoryview) -> object:
    """The value of *data*. ShardError for a codec that this stoker does not know."""
    prefix, _, rest = codec.partition(":")
    decode = CODECS.get(prefix)
    if decode is None:
        raise ShardError(f"unknown codec {codec!r}", f"this stoker knows {', '.join(sorted(CODECS)) or 'none'}")
    return decode(rest, data)
