"""The encodings of MDS columns: from the bytes of a field to its value, and back.

Values are those of the streaming library, with two exceptions. Encoded pictures (`jpeg`, `png`) stay bytes, because the
loader decodes them straight into a batch; `pil`, which is raw pixels, is an array. A pickle (`pkl`) stays bytes and is
never loaded here: who trusts it names `pickle.loads` as the field's decoder.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from math import prod

import numpy as np

from stoker.errors import SampleError, ShardError, UsageError
from stoker.format.limits import LIST_ITEMS_MAX

Data = bytes | memoryview
SCALARS = tuple(f"{kind}{bits}" for kind, sizes in (("uint", (8, 16, 32, 64)), ("int", (8, 16, 32, 64)),
                                                    ("float", (16, 32, 64))) for bits in sizes)  # fmt: skip
_PICTURES = ("jpeg", "png", "pil")
_KEPT = ("bytes", "jpeg", "png", "pkl")
"""Encodings whose bytes are handed over as they are."""
_NUMBER_OF_DTYPE = {8: "uint8", 9: "int8", 16: "uint16", 17: "int16", 18: "float16", 32: "uint32", 33: "int32",
                    34: "float32", 64: "uint64", 65: "int64", 66: "float64"}  # fmt: skip
_DTYPE_NUMBER = {name: number for number, name in _NUMBER_OF_DTYPE.items()}
_SHAPE_DTYPES = ("u1", "<u2", "<u4", "<u8")
_MODES = {"L": ("u1", 1), "P": ("u1", 1), "RGB": ("u1", 3), "YCbCr": ("u1", 3), "HSV": ("u1", 3), "LAB": ("u1", 3),
          "LA": ("u1", 2), "PA": ("u1", 2), "RGBA": ("u1", 4), "RGBX": ("u1", 4), "CMYK": ("u1", 4), "I": ("<i4", 1),
          "F": ("<f4", 1), "I;16": ("<u2", 1)}  # fmt: skip
"""Pillow's modes: element type and channels. Mode "1", bits, is taken apart."""
_DIGITS_MAX = 4_000


@dataclass(frozen=True, slots=True)
class Encoding:
    """An encoding by its parts: "ndarray:float32:3,4" → name ndarray, dtype float32, shape (3, 4)."""

    name: str
    dtype: str | None = None
    shape: tuple[int, ...] | None = None

    @property
    def size(self) -> int | None:
        """Bytes of every value; None when they differ."""
        if self.name == "int":
            return 8
        if self.name in SCALARS:
            return np.dtype(self.name).itemsize
        if self.dtype is None or self.shape is None:
            return None
        return prod(self.shape) * np.dtype(self.dtype).itemsize


@lru_cache(maxsize=1_024)
def parse(text: str) -> Encoding:
    """The encoding of that name. ShardError when there is none."""
    name, *arguments = text.split(":")
    if name == "ndarray" and len(arguments) <= 2:
        dtype = arguments[0] if arguments else None
        shape = tuple(int(x) if x.isdecimal() else 0 for x in arguments[1].split(",")) if len(arguments) == 2 else None
        if (dtype is None or dtype in _DTYPE_NUMBER) and (shape is None or (min(shape) > 0 and len(shape) < 64)):
            return Encoding(name, dtype, shape)
    elif not arguments and name in _DECODERS:
        return Encoding(name)
    raise ShardError(f"unknown encoding {text[:100]!r}", f"known are ndarray, {', '.join(_DECODERS)}")


def decode(encoding: str, data: Data) -> object:
    """The value of a field. SampleError when the bytes are not what the encoding says."""
    name = encoding.partition(":")[0]
    try:
        if name == "ndarray":
            return _array(parse(encoding), data)
        return _DECODERS[name](data)
    except (ValueError, KeyError, IndexError, RecursionError, InvalidOperation) as error:
        if isinstance(error, SampleError | ShardError):
            raise
        raise SampleError(f"expected {encoding}, found {bytes(data[:20])!r} ({len(data)} bytes): {error}") from None


def _scalar(dtype: str) -> Callable[[Data], object]:
    kind = np.dtype(dtype).newbyteorder("<")

    def decode_one(data: Data) -> object:
        if len(data) != kind.itemsize:
            raise ValueError(f"expected {kind.itemsize} bytes")
        return np.frombuffer(data, kind)[0]

    return decode_one


def _int(data: Data) -> int:
    if len(data) != 8:
        raise ValueError("expected 8 bytes")
    return int.from_bytes(data, "little", signed=True)


def _text(data: Data) -> str:
    return str(data, "utf-8")


def _digits(data: Data) -> str:
    if len(data) > _DIGITS_MAX:
        raise ValueError(f"at most {_DIGITS_MAX} digits are allowed")
    return _text(data)


def _array(kind: Encoding, data: Data) -> np.ndarray:
    """[dtype: 1] [dimensions << 2 | width of sizes: 1] [sizes] values; the first parts only where not fixed."""
    at, dtype, shape = 0, kind.dtype, kind.shape
    if dtype is None:
        dtype, at = _NUMBER_OF_DTYPE[data[0]], 1
    if shape is None:
        dimensions, width = data[at] >> 2, data[at] & 3
        start, at = at + 1, at + 1 + (dimensions << width)
        if len(data) < at:
            raise ValueError(f"{dimensions} dimensions do not fit")
        shape = tuple(np.frombuffer(data[start:at], _SHAPE_DTYPES[width]).tolist())
    element = np.dtype(dtype).newbyteorder("<")
    count = prod(shape)
    if count * element.itemsize != len(data) - at:
        raise ValueError(f"shape {shape} of {dtype} needs {count * element.itemsize} bytes, found {len(data) - at}")
    return np.frombuffer(data[at:], element).reshape(shape).copy()


def _pixels(data: Data) -> np.ndarray:
    """[width: 4] [height: 4] [length of mode: 4] [mode] pixels."""
    if len(data) < 12:
        raise ValueError("no head of 12 bytes")
    width, height, length = np.frombuffer(data[:12], "<u4").tolist()
    mode = str(data[12 : 12 + length], "ascii") if length <= 16 else "?"
    raw = data[12 + length :]
    if mode == "1":
        if len(raw) != height * ((width + 7) // 8):
            raise ValueError(f"{width} × {height} bits need {height * ((width + 7) // 8)} bytes, found {len(raw)}")
        rows = np.frombuffer(raw, np.uint8).reshape(height, -1)
        return np.unpackbits(rows, axis=1, count=width).astype(bool)
    element, channels = _MODES[mode]
    need = width * height * channels * np.dtype(element).itemsize
    if need != len(raw):
        raise ValueError(f"{width} × {height} pixels of {mode} need {need} bytes, found {len(raw)}")
    shape = (height, width) if channels == 1 else (height, width, channels)
    return np.frombuffer(raw, element).reshape(shape).copy()


def _items(data: Data, at: int) -> Iterator[Data]:
    """[count: 4] [length: 4 each] items, from *at* on."""
    count = int(np.frombuffer(data[at : at + 4], "<u4")[0])
    start = at + 4 + 4 * count
    if count > LIST_ITEMS_MAX or start > len(data):
        raise ValueError(f"a list of {count} items")
    for length in np.frombuffer(data[at + 4 : start], "<u4").tolist():
        if start + length > len(data):
            raise ValueError(f"an item of {length} bytes at {start}")
        yield data[start : start + length]
        start += length
    if start != len(data):
        raise ValueError(f"{len(data) - start} bytes behind the last item")


def _pixel_list(data: Data) -> list[object]:
    return [_pixels(item) for item in _items(data, 4)]


def _listed(data: Data) -> list[object]:
    return [bytes(item) for item in _items(data, 4)]


def _jpeg_array(data: Data) -> list[object]:
    return [bytes(item) for item in _items(data, 0)]


_DECODERS: dict[str, Callable[[Data], object]] = {
    **dict.fromkeys(_KEPT, bytes),
    **{name: _scalar(name) for name in SCALARS},
    "int": _int,
    "str": _text,
    "str_int": lambda data: int(_digits(data)),
    "str_float": lambda data: float(_digits(data)),
    "str_decimal": lambda data: Decimal(_digits(data)),
    "json": lambda data: json.loads(bytes(data)),
    "pil": _pixels,
    "list[pil]": _pixel_list,
    "list[jpeg]": _listed,
    "list[png]": _listed,
    "jpeg_array": _jpeg_array,
    "jpegarray": _jpeg_array,
}


def codec_of(encoding: str) -> str:
    """The codec of a field's place: "" where the bytes are the value and nothing more is to be said."""
    return "" if encoding == "bytes" else f"mds:{encoding}"


def encoding_for(value: object) -> str | None:
    """The encoding that keeps a value of that type; None where none does."""
    if isinstance(value, bool | np.bool):
        return None
    if isinstance(value, np.generic):
        return value.dtype.name if value.dtype.name in SCALARS else None
    if isinstance(value, np.ndarray):
        return "ndarray" if value.dtype.name in _DTYPE_NUMBER and value.size and value.ndim else None
    for kind, name in ((bytes, "bytes"), (str, "str"), (int, "int"), (float, "float64"), (Decimal, "str_decimal")):
        if isinstance(value, kind):
            return name
    return "json" if isinstance(value, list | tuple | dict) else None


def encode(encoding: str, value: object, field: str) -> bytes:
    """The bytes of a value. UsageError naming the field when the encoding cannot hold it."""
    kind = parse(encoding)
    try:
        data = _encoded(kind, value)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise _cannot(field, value, encoding, str(error)) from None
    if data is None:
        raise _cannot(field, value, encoding, "another type is expected")
    return data


def _encoded(kind: Encoding, value: object) -> bytes | None:
    """None when the value is of another type."""
    name = kind.name
    if isinstance(value, bool | np.bool):
        return json.dumps(value).encode() if name == "json" and isinstance(value, bool) else None
    if name in _KEPT:
        return bytes(value) if isinstance(value, bytes | bytearray | memoryview) else None
    if name == "str":
        return value.encode() if isinstance(value, str) else None
    if name == "ndarray":
        return _array_bytes(kind, value) if isinstance(value, np.ndarray) else None
    if name == "int" or name in SCALARS:
        return _number_bytes("int64" if name == "int" else name, value)
    if name in ("str_int", "str_float", "str_decimal"):
        fits = {"str_int": int, "str_float": float, "str_decimal": Decimal}[name]
        return str(value).encode() if isinstance(value, fits) else None
    if name == "json":
        return json.dumps(value).encode()
    if name in ("list[jpeg]", "list[png]", "jpeg_array", "jpegarray"):
        return _list_bytes(value, head=b"" if name.startswith("jpeg") else bytes(4))
    return bytes(value) if isinstance(value, bytes | bytearray | memoryview) else None


def _number_bytes(dtype: str, value: object) -> bytes | None:
    """One number, exactly: no digit may be lost."""
    if not isinstance(value, int | float | np.integer | np.floating):
        return None
    if np.dtype(dtype).kind in "iu" and isinstance(value, float | np.floating):
        return None
    element, exact = np.dtype(dtype).newbyteorder("<"), value.item() if isinstance(value, np.generic) else value
    with np.errstate(over="ignore"):
        narrow = np.array(exact, element)
    if narrow.item() != exact and exact == exact:
        raise ValueError(f"it would become {narrow}")
    return bytes(narrow.tobytes())


def _array_bytes(kind: Encoding, value: np.ndarray) -> bytes:
    if value.dtype.name not in _DTYPE_NUMBER or kind.dtype not in (None, value.dtype.name):
        raise ValueError(f"expected elements of {kind.dtype or 'a sized number'}, found {value.dtype}")
    if not value.size or not 0 < value.ndim < 64 or kind.shape not in (None, value.shape):
        raise ValueError(f"expected shape {kind.shape or 'of 1 to 63 dimensions, none of them 0'}, found {value.shape}")
    parts = [] if kind.dtype else [bytes([_DTYPE_NUMBER[value.dtype.name]])]
    if kind.shape is None:
        width = next(w for w in range(4) if max(value.shape) < 1 << (8 << w))
        parts += [bytes([value.ndim << 2 | width]), np.array(value.shape).astype(_SHAPE_DTYPES[width]).tobytes()]
    return b"".join([*parts, value.astype(value.dtype.newbyteorder("<"), copy=False).tobytes()])


def _list_bytes(value: object, *, head: bytes) -> bytes | None:
    if not isinstance(value, list | tuple) or not all(isinstance(one, bytes | bytearray | memoryview) for one in value):
        return None
    lengths = np.array([len(value), *(len(one) for one in value)], "<u4")
    return b"".join([head, lengths.tobytes(), *value])


def _cannot(field: str, value: object, encoding: str, why: str) -> UsageError:
    kind = f"array of {value.dtype} {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__
    return UsageError(f"field {field!r}: mds cannot hold this {kind} as {encoding}: {why}")
