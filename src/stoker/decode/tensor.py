"""Fields that are torch tensors (`.pt`), read without torch and without unpickling.

`torch.save` writes a zip: `data.pkl`, a pickle that builds the tensor, and its elements in `data/0`. The pickle of one
tensor uses a dozen opcodes and three functions. These are interpreted here as data: nothing is imported, nothing is
called, and a pickle that wants anything else is no tensor. So a hostile file can but be refused, whatever torch there
is (`weights_only=True` of torch before 2.6 could be escaped, CVE-2025-32434).

Layout: torch/csrc/api and torch/serialization.py; opcodes: the standard library's `pickletools`.
"""

from __future__ import annotations

import io
import pickletools
import struct
import zipfile
import zlib
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from stoker.decode.array import ArrayField
from stoker.errors import SampleError

PROGRAM_BYTES_MAX = 64 << 10
"""The pickle of a tensor takes some 300 bytes."""
MEMBERS_MAX = 64
_LOCAL_HEADER = struct.Struct("<4s22xHH")
_ELEMENTS = {
    "FloatStorage": "f4", "DoubleStorage": "f8", "HalfStorage": "f2", "LongStorage": "i8", "IntStorage": "i4",
    "ShortStorage": "i2", "CharStorage": "i1", "ByteStorage": "u1", "BoolStorage": "b1", "ComplexFloatStorage": "c8",
    "ComplexDoubleStorage": "c16", "uint16": "u2", "uint32": "u4", "uint64": "u8",
}  # fmt: skip
"""Name in `torch` of a storage, or of an element type that has none → NumPy's."""
_CONSTANTS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_PUSHED = frozenset(("BININT", "BININT1", "BININT2", "LONG1", "BINUNICODE", "SHORT_BINUNICODE"))
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_FAILURES = (
    ValueError, TypeError, LookupError, OverflowError, struct.error, zipfile.BadZipFile, EOFError, NotImplementedError,
    RuntimeError, AttributeError,
)  # fmt: skip
_MARK = object()


@dataclass(frozen=True, slots=True)
class _Name:
    """What a pickle calls a function or class: never looked up."""

    text: str


@dataclass(frozen=True, slots=True)
class _Storage:
    """A run of elements in the zip."""

    elements: str
    """Name of the element type in `torch`; "UntypedStorage" where the tensor says it."""
    key: str
    count: int


@dataclass(frozen=True, slots=True)
class _Tensor:
    storage: _Storage
    elements: str
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]


class Pt(ArrayField):
    """One tensor as `torch.save` writes it (torch 1.6 and later), as an array."""

    kind = "pt"

    def _view(self, raw: bytes | memoryview) -> np.ndarray[Any, Any]:
        try:
            return _read(raw)
        except _FAILURES as error:
            if isinstance(error, SampleError):
                raise
            raise SampleError(
                f"pt: no single tensor: {type(error).__name__}: {error}; found {len(raw)} bytes"[:400],
                "torch.save(tensor, file) writes what is read here; nothing else is ever unpickled",
            ) from None


def _read(raw: bytes | memoryview) -> np.ndarray[Any, Any]:
    members = _members(raw)
    program = members["data.pkl"]
    if len(program) > PROGRAM_BYTES_MAX:
        raise ValueError(f"a pickle of {len(program)} bytes, at most {PROGRAM_BYTES_MAX} are allowed")
    tensor = _interpret(bytes(program))
    if tensor.elements not in _ELEMENTS:
        raise SampleError(f"pt: elements of {tensor.elements[:80]}, which NumPy has not", "save it as float32")
    big = bytes(members.get("byteorder", b"little")) == b"big"
    dtype = np.dtype(f"{'>' if big else '<'}{_ELEMENTS[tensor.elements]}")
    data = members[f"data/{tensor.storage.key}"]
    flat = np.frombuffer(data, dtype) if len(data) else np.empty(0, dtype)
    count = prod(tensor.size)
    last = tensor.offset + sum((side - 1) * step for side, step in zip(tensor.size, tensor.stride, strict=True))
    if count > len(flat) or (count and last >= len(flat)):  # a stride of 0 would make much of little
        raise ValueError(f"shape {tensor.size} with strides {tensor.stride} of {len(flat)} elements")
    if not count:
        return np.empty(tensor.size, dtype)
    strides = [step * dtype.itemsize for step in tensor.stride]
    return np.lib.stride_tricks.as_strided(flat[tensor.offset :], tensor.size, strides, writeable=False)


def _members(raw: bytes | memoryview) -> dict[str, memoryview]:
    """The stored members of the zip by their names below its one folder, each with a right checksum."""
    view, found = memoryview(raw), {}
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        entries = archive.infolist()
    if len(entries) > MEMBERS_MAX:
        raise ValueError(f"{len(entries)} members in the zip, at most {MEMBERS_MAX} are allowed")
    for entry in entries:
        if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1:
            raise ValueError(f"member {entry.filename[:80]!r} is compressed or encrypted")
        magic, name, extra = _LOCAL_HEADER.unpack_from(view, entry.header_offset)
        start = entry.header_offset + _LOCAL_HEADER.size + name + extra
        data = view[start : start + entry.file_size]
        if magic != b"PK\x03\x04" or len(data) != entry.file_size or zlib.crc32(data) != entry.CRC:
            raise ValueError(f"member {entry.filename[:80]!r} is damaged")
        found[entry.filename.partition("/")[2]] = data
    return found


def _interpret(program: bytes) -> _Tensor:
    """What the pickle would build. ValueError and its kin for all but one tensor."""
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    argument: Any  # its type depends on the opcode
    for code, argument, _ in pickletools.genops(program):
        name = code.name
        if name in _PUSHED:
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name == "MARK":
            stack.append(_MARK)
        elif name == "TUPLE":
            at = len(stack) - 1 - stack[::-1].index(_MARK)
            stack[at:] = [tuple(stack[at + 1 :])]
        elif name in _TUPLES:
            count = _TUPLES[name]
            stack[-count:] = [tuple(stack[-count:])]
        elif name in ("BINPUT", "LONG_BINPUT"):
            memo[argument] = stack[-1]
        elif name == "MEMOIZE":
            memo[len(memo)] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[argument])
        elif name == "GLOBAL":
            stack.append(_Name(argument))
        elif name == "STACK_GLOBAL":
            stack[-2:] = [_Name(f"{stack[-2]} {stack[-1]}")]
        elif name == "BINPERSID":
            stack.append(_storage(stack.pop()))
        elif name == "REDUCE":
            given, function = stack.pop(), stack.pop()
            stack.append(_made(function, given))
        elif name == "STOP":
            break
        elif name not in ("PROTO", "FRAME"):
            raise ValueError(f"the pickle's {name} builds something else")
    (made,) = stack
    if not isinstance(made, _Tensor):
        raise ValueError(f"found a {type(made).__name__.strip('_')}")
    return made


def _storage(told: Any) -> _Storage:
    kind, name, key, _, count = told
    module, _, elements = name.text.partition(" ")
    if kind != "storage" or module not in ("torch", "torch.storage") or not isinstance(key, str):
        raise ValueError(f"{str(told)[:80]} is no storage")
    return _Storage(elements, key, _whole(count))


def _made(function: Any, given: Any) -> Any:
    """What a call would give: the hooks of a tensor (always none), a tensor, a parameter."""
    called = function.text if isinstance(function, _Name) else str(function)[:80]
    if called == "collections OrderedDict" and given == ():
        return None
    if called == "torch._utils _rebuild_parameter" and isinstance(given[0], _Tensor):
        return given[0]
    if called in ("torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_tensor_v3"):
        storage, offset, size, stride = given[:4]
        elements = storage.elements
        if called.endswith("v3"):
            elements = given[6].text.removeprefix("torch ")
        whole = [tuple(_whole(number) for number in numbers) for numbers in (size, stride)]
        return _Tensor(storage, elements, _whole(offset), *whole)
    raise ValueError(f"it would call {called!r}")


def _whole(number: Any) -> int:
    if type(number) is not int or number < 0:
        raise ValueError(f"{str(number)[:80]} is no count")
    return number
