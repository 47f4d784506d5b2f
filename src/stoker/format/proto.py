"""The messages inside TFRecords, Example and SequenceExample, without protobuf: where features lie, and their values.

Three field numbers are all that is needed; unknown fields are skipped, repeated numbers are read packed or not, of a
name that comes twice the last counts, as the standard says. A list of one is read as a scalar: the format does not tell
them apart. https://protobuf.dev/programming-guides/encoding and tensorflow/core/example/{example,feature}.proto.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from stoker.errors import SampleError, UsageError
from stoker.format.limits import FIELD_NAME_BYTES_MAX, LIST_ITEMS_MAX, TFRECORD_FEATURES_MAX

Data = bytes | memoryview
_Item = TypeVar("_Item")
_VARINT_BYTES_MAX = 10
_FEW = 32
"""Up to so many, one by one is faster than by arrays."""
_BYTES, _FLOAT, _INT64 = 1, 2, 3
"""Field numbers of a Feature: the kind of list that it holds."""
_KINDS = {_BYTES: "bytes", _FLOAT: "float", _INT64: "int64"}
_FORMAT = "tfrecord"


class ProtoError(ValueError):
    """The bytes are no message."""


@dataclass(frozen=True, slots=True)
class Feature:
    """One named value of a record: bytes [offset, offset + length) of it, and how they become the value."""

    name: str
    offset: int
    length: int
    codec: str
    """"" = the bytes are the value; else what `decode_feature` takes, behind the prefix "tf:"."""


def _varint(data: Data, at: int, stop: int) -> tuple[int, int]:
    """The number at *at*, and where it ends."""
    value = shift = 0
    while at < stop:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift >= 7 * _VARINT_BYTES_MAX:
            break
    raise ProtoError(f"a number that does not end at byte {at}")


def message(data: Data, at: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
    """The fields of a message: (number, wire type, start, stop) of each payload."""
    while at < stop:
        tag, at = _varint(data, at, stop)
        number, wire = tag >> 3, tag & 7
        start = at
        if wire == 2:
            length, start = _varint(data, at, stop)
            at = start + length
        elif wire == 0:
            _, at = _varint(data, at, stop)
        elif wire in (1, 5):
            at += 8 if wire == 1 else 4
        else:
            raise ProtoError(f"wire type {wire} at byte {start}")
        if number == 0 or at > stop:
            raise ProtoError(f"field {number} reaches from byte {start} to {at}, its message ends at {stop}")
        yield number, wire, start, at


def _nested(data: Data, at: int, stop: int, number: int) -> Iterator[tuple[int, int]]:
    """The payloads of one field number that holds bytes or messages."""
    for found, wire, start, end in message(data, at, stop):
        if found == number and wire == 2:
            yield start, end


def features(record: bytes) -> list[Feature]:
    """The features of an Example or SequenceExample; none when the record is no such message or has no features."""
    found: dict[str, Feature] = {}
    try:
        for number, wire, start, stop in message(record, 0, len(record)):
            if wire != 2 or number not in (1, 2):
                continue
            for entry in _nested(record, start, stop, 1):
                feature = _named(record, *entry, sequence=number == 2)
                if feature is not None:
                    found[feature.name] = feature
            if len(found) > TFRECORD_FEATURES_MAX:
                return []
    except (ProtoError, UnicodeDecodeError):
        return []
    return list(found.values())


def _named(record: bytes, at: int, stop: int, *, sequence: bool) -> Feature | None:
    """One entry of the map of features; None when it has no name or no value."""
    name, value = "", None
    for number, wire, start, end in message(record, at, stop):
        if number == 1 and wire == 2:
            if end - start > FIELD_NAME_BYTES_MAX:
                raise ProtoError(f"a feature's name of {end - start} bytes")
            name = record[start:end].decode()
        elif number == 2 and wire == 2:
            value = (start, end)
    if not name or value is None:
        return None
    if sequence:
        for step in _nested(record, *value, 1):
            _kind(record, *step)
        return Feature(name, value[0], value[1] - value[0], "seq")
    kind, lists = _kind(record, *value)
    if kind == _BYTES and len(lists) == 1:
        single = list(_nested(record, *lists[0], 1))
        if len(single) == 1:
            return Feature(name, single[0][0], single[0][1] - single[0][0], "")
    return Feature(name, value[0], value[1] - value[0], _KINDS[kind]) if kind else None


def _kind(data: Data, at: int, stop: int) -> tuple[int, list[tuple[int, int]]]:
    """What a Feature holds (0 = nothing), and where its lists of that kind lie: the last kind counts."""
    kind = 0
    lists: list[tuple[int, int]] = []
    for number, wire, start, end in message(data, at, stop):
        if number in _KINDS and wire == 2:
            if number != kind:
                kind, lists = number, []
            lists.append((start, end))
    return kind, lists


def decode_feature(kind: str, data: Data) -> object:
    """The value of a Feature ("bytes", "float", "int64") or FeatureList ("seq"). SampleError when it is none.

    "seq": an array [steps, values] when every step has as many numbers, else a list of arrays, or of lists of bytes.
    """
    try:
        if kind != "seq":
            value = _list(data, 0, len(data), kind)
            return value[0].item() if isinstance(value, np.ndarray) and len(value) == 1 else value
        steps = [_list(data, start, stop, None) for start, stop in _few(_nested(data, 0, len(data), 1))]
    except ProtoError as error:
        raise SampleError(f"no {'FeatureList' if kind == 'seq' else 'Feature'} of {kind}: {error}") from None
    arrays = [step for step in steps if isinstance(step, np.ndarray)]
    if arrays and len(arrays) == len(steps) and len({(step.shape, step.dtype) for step in arrays}) == 1:
        return np.stack(arrays)
    return steps


def _list(data: Data, at: int, stop: int, expected: str | None) -> np.ndarray | list[bytes]:
    """All values of one Feature."""
    kind, lists = _kind(data, at, stop)
    if expected is not None and _KINDS.get(kind) != expected:
        raise ProtoError(f"expected a list of {expected}, found {_KINDS.get(kind, 'nothing')}")
    if kind in (0, _BYTES):
        return [bytes(data[a:b]) for start, end in lists for a, b in _few(_nested(data, start, end, 1))]
    single = 5 if kind == _FLOAT else 0
    packed = b"".join(
        data[a:b]
        for start, end in lists
        for number, wire, a, b in _few(message(data, start, end))
        if number == 1 and wire in (2, single)
    )
    if kind == _INT64:
        return _numbers(packed)
    if len(packed) % 4:
        raise ProtoError(f"{len(packed)} bytes of floats, expected a multiple of 4")
    return np.frombuffer(packed, "<f4").copy()


def _few(items: Iterable[_Item]) -> Iterator[_Item]:
    """The same, as long as they are not more than an honest list has: each costs many times its bytes of memory."""
    for count, item in enumerate(items):
        if count == LIST_ITEMS_MAX:
            raise ProtoError(f"a list of more than {LIST_ITEMS_MAX} items")
        yield item


def _numbers(packed: bytes) -> np.ndarray:
    """int64 values of varints back to back."""
    if len(packed) <= _FEW:
        values, at = [], 0
        while at < len(packed):
            value, at = _varint(packed, at, len(packed))
            values.append(value & 0xFFFFFFFFFFFFFFFF)
        return np.array(values, np.uint64).view(np.int64)
    raw = np.frombuffer(packed, np.uint8)
    ends = np.flatnonzero(raw < 0x80)
    if raw.size and (not ends.size or ends[-1] != raw.size - 1):
        raise ProtoError("a number that does not end")
    starts = np.concatenate(([0], ends[:-1] + 1)) if ends.size else ends
    lengths = ends - starts + 1
    if lengths.size and lengths.max() > _VARINT_BYTES_MAX:
        raise ProtoError(f"a number of {lengths.max()} bytes")
    numbers = np.zeros(len(ends), np.uint64)
    for place in range(int(lengths.max(initial=0))):
        has = lengths > place
        numbers[has] |= (raw[starts[has] + place].astype(np.uint64) & np.uint64(0x7F)) << np.uint64(7 * place)
    return numbers.view(np.int64)


def _tagged(number: int, payload: bytes) -> bytes:
    """A field of bytes."""
    return bytes([number << 3 | 2]) + _one(len(payload)) + payload


def _one(value: int) -> bytes:
    """A number of 64 bits as a varint."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _varints(values: np.ndarray) -> bytes:
    """uint64 values as varints back to back."""
    if values.size <= _FEW:
        return b"".join(map(_one, values.tolist()))
    shifts = np.arange(_VARINT_BYTES_MAX, dtype=np.uint64) * np.uint64(7)
    rest = values[:, None] >> shifts
    groups = (rest & np.uint64(0x7F)).astype(np.uint8)
    used = rest != 0
    used[:, 0] = True
    groups[:, :-1] |= np.where(used[:, 1:], 0x80, 0).astype(np.uint8)
    return bytes(groups[used].tobytes())


def encode(values: Mapping[str, object]) -> bytes:
    """An Example; a SequenceExample when a value is an array [steps, values] or a list of lists.

    UsageError names a field whose value the format cannot hold.
    """
    context, lists = b"", b""
    for name, value in values.items():
        if not name or len(name.encode()) > FIELD_NAME_BYTES_MAX:
            raise _cannot(name, value, f"a name has 1 to {FIELD_NAME_BYTES_MAX} bytes")
        steps = _steps(name, value)
        if steps is None:
            context += _tagged(1, _tagged(1, name.encode()) + _tagged(2, _feature(name, value)))
        else:
            payload = b"".join(_tagged(1, _feature(name, step)) for step in steps)
            lists += _tagged(1, _tagged(1, name.encode()) + _tagged(2, payload))
    return _tagged(1, context) + (_tagged(2, lists) if lists else b"")


def _steps(name: str, value: object) -> Sequence[object] | None:
    """The steps of a value that is a list of lists; None for any other."""
    if isinstance(value, np.ndarray) and value.ndim >= 2:
        if value.ndim > 2 or not len(value):
            raise _cannot(name, value, "arrays have one or two dimensions and at least one step")
        return list(value)
    if isinstance(value, list | tuple) and any(isinstance(step, list | tuple | np.ndarray) for step in value):
        return value
    return None


def _feature(name: str, value: object) -> bytes:
    """A Feature of one value or of a flat list."""
    if isinstance(value, bytes | bytearray | memoryview | str) or not isinstance(value, list | tuple | np.ndarray):
        value = [value]
    if isinstance(value, list | tuple):
        if all(isinstance(one, bytes | bytearray | memoryview | str) for one in value):
            texts = [one.encode() if isinstance(one, str) else bytes(one) for one in value]
            return _tagged(_BYTES, b"".join(_tagged(1, text) for text in texts))
        if any(isinstance(one, bool | np.bool) or not isinstance(one, int | float | np.number) for one in value):
            raise _cannot(name, value[0] if len(value) == 1 else value, "bytes, text, int64, float32 and lists of them")
        value = _array(name, value)
    if value.ndim > 1:
        raise _cannot(name, value, "one array a step, of one dimension")
    return _numeric(name, value.reshape(-1))


def _array(name: str, value: Sequence[object]) -> np.ndarray:
    try:
        return np.asarray(value)
    except OverflowError:
        raise _cannot(name, value, "integers have 64 bits") from None


def _numeric(name: str, value: np.ndarray) -> bytes:
    if value.dtype.kind in "iu":
        if value.dtype == np.uint64 and value.size and value.max() > np.iinfo(np.int64).max:
            raise _cannot(name, value, "integers are int64")
        packed = _varints(value.astype(np.int64).view(np.uint64)) if value.size else b""
        return _tagged(_INT64, _tagged(1, packed) if packed else b"")
    if value.dtype.kind != "f":
        raise _cannot(name, value, "arrays hold integers or floats")
    with np.errstate(over="ignore"):
        narrow = value.astype("<f4")
    if not np.array_equal(narrow, value, equal_nan=True):
        raise _cannot(name, value, "floats have 32 bits, and these would lose digits: make them float32")
    return _tagged(_FLOAT, _tagged(1, narrow.tobytes()) if value.size else b"")


def _cannot(name: str, value: object, why: str) -> UsageError:
    kind = f"array of {value.dtype} {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__
    return UsageError(f"field {name!r}: {_FORMAT} cannot hold this {kind}: {why}")
