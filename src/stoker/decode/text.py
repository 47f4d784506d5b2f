"""Fields that are text: numbers, strings, JSON, and bytes as they are. Nothing here is ever unpickled."""

from __future__ import annotations

import json as parser
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from stoker.errors import SampleError, UsageError

NUMBER_BYTES_MAX = 64
JSON_BYTES_MAX = 64 << 20
_INT = re.compile(rb"\s*([+-]?[0-9]+)\s*")
_FLOAT = re.compile(rb"\s*([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[+-]?(?:nan|inf))\s*", re.IGNORECASE)


def _seen(raw: bytes | memoryview) -> str:
    """The beginning of a field for a message."""
    return f"{bytes(raw[:40])!r}{'' if len(raw) <= 40 else f' … ({len(raw)} bytes)'}"


@dataclass(frozen=True)
class Number:
    """A number in ASCII digits, as `7` or `-1.5e3`, blanks allowed around it: "int" is an int64, "float" a float64."""

    kind: str

    def __post_init__(self) -> None:
        if self.kind not in ("int", "float"):
            raise UsageError(f"a number is 'int' or 'float', found {self.kind!r}")

    @property
    def shape(self) -> tuple[int, ...]:
        """A scalar."""
        return ()

    @property
    def dtype(self) -> np.dtype[Any]:
        """int64 or float64."""
        return np.dtype(np.int64 if self.kind == "int" else np.float64)

    def decode(self, raw: bytes | memoryview, out: np.ndarray[Any, Any] | None, draw: int) -> int | float | None:
        """The number; an integer beyond 64 bits is an error."""
        pattern = _INT if self.kind == "int" else _FLOAT
        match = pattern.fullmatch(bytes(raw)) if len(raw) <= NUMBER_BYTES_MAX else None
        if match is None:
            raise SampleError(
                f"expected {'an integer' if self.kind == 'int' else 'a number'} in digits, found {_seen(raw)}"
            )
        value = int(match[1]) if self.kind == "int" else float(match[1])
        if self.kind == "int" and not -(2**63) <= value < 2**63:
            raise SampleError(f"expected an integer of 64 bits, found {value}")
        if out is None:
            return value
        out[...] = value
        return None


class _Unshaped:
    """The part of the contract that values without a fixed shape share."""

    @property
    def shape(self) -> None:
        """They differ."""
        return

    @property
    def dtype(self) -> None:
        """No array."""
        return


@dataclass(frozen=True)
class Text(_Unshaped):
    """UTF-8, strictly."""

    def decode(self, raw: bytes | memoryview, out: object, draw: int) -> str:
        """The string."""
        try:
            return str(raw, "utf-8")
        except UnicodeDecodeError as error:
            raise SampleError(
                f"expected UTF-8, found byte 0x{raw[error.start]:02x} at {error.start} of {len(raw)} ({error.reason})"
            ) from None


@dataclass(frozen=True)
class Bytes(_Unshaped):
    """The bytes as they are."""

    def decode(self, raw: bytes | memoryview, out: object, draw: int) -> bytes:
        """A copy of the bytes."""
        return bytes(raw)


@dataclass(frozen=True)
class Json(_Unshaped):
    """A JSON document."""

    def decode(self, raw: bytes | memoryview, out: object, draw: int) -> Any:
        """Its value in plain Python."""
        if len(raw) > JSON_BYTES_MAX:
            raise SampleError(f"JSON: {len(raw)} bytes, allowed are {JSON_BYTES_MAX}")
        try:
            return parser.loads(bytes(raw))
        except (ValueError, RecursionError) as error:
            raise SampleError(f"JSON: {type(error).__name__}: {error}; found {_seen(raw)}") from None


@dataclass(frozen=True)
class Call(_Unshaped):
    """A function of the user's: bytes → any value."""

    function: Callable[[bytes], Any]

    def decode(self, raw: bytes | memoryview, out: object, draw: int) -> Any:
        """What the function returns; its exceptions pass."""
        return self.function(bytes(raw))
